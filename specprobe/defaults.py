"""What the command line and the code behind it agree on where the user says nothing."""

ENGINE = "vllm"
DEPTH = 8
MAX_NEW_TOKENS = 256
BATCH_SIZE = 16
# Without a byte from a server; those that answer in one piece write all of it meanwhile.
TIMEOUT_SECONDS = 300.0
# Requests at once: more than a replica of any engine runs; the simulation takes seconds there.
LARGEST_CONCURRENCY = 8192
# Above 0; vLLM raises what lies between to it (sampling_params.py).
SMALLEST_TEMPERATURE = 0.01
