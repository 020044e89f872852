"""What the command line and the code behind it agree on where the user says nothing."""

ENGINE = "vllm"
DEPTH = 8
MAX_NEW_TOKENS = 256
BATCH_SIZE = 16
# Above 0; vLLM raises what lies between to it (sampling_params.py).
SMALLEST_TEMPERATURE = 0.01
