"""A byte tokenizer, hand-written chat templates and a tiny random Llama: no download, no golden data."""

from pathlib import Path
from typing import Any

from specprobe.prompt import Message, Prompt
from specprobe.target import Target, load_target
from specprobe.tokens import Tokenizer

SPECIAL = ("<|end|>", "<|im_start|>", "<|im_end|>", "<s>")
# Letters that also end a response, since a random model seldom chooses the one end token.
GENERATION_EOS = tuple(range(40, 50))

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TRIMMING = CHATML.replace("m.content", "m.content | trim")
# Keeps reasoning in the last turn only, as reasoning models do, and shows an empty block where there is none.
THINKING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and loop.last %}<think>\n{{ m.reasoning_content or '' }}\n</think>\n\n{% endif %}"
    "{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
# Opens a block of thinking for the model, which the rendered answer then lacks.
OPENING = CHATML.replace("assistant\n{% endif %}", "assistant\n<think>\n{% endif %}")
NO_SYSTEM = "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}" + CHATML
TOOLS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% for c in m.tool_calls or [] %}"
    "<call>{{ c.function.name }}{% for k, v in c.function.arguments | items %}|{{ k }}={{ v }}{% endfor %}</call>"
    "{% endfor %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TOOLS_AS_TEXT = TOOLS.replace(
    "{% for k, v in c.function.arguments | items %}|{{ k }}={{ v }}{% endfor %}", "{{ '' + c.function.arguments }}"
)


def byte_backend(template: str | None = CHATML, *, adds_bos: bool = False) -> Any:
    """A transformers tokenizer: ids 0..3 are SPECIAL, then one id a byte."""
    from tokenizers import Tokenizer as FastTokenizer
    from tokenizers import decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {text: i for i, text in enumerate([*SPECIAL, *alphabet])}
    fast = FastTokenizer(models.BPE(vocab=vocab, merges=[]))
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.decoder = decoders.ByteLevel()
    fast.add_special_tokens(list(SPECIAL))
    if adds_bos:
        fast.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 3)])
    return PreTrainedTokenizerFast(tokenizer_object=fast, eos_token="<|end|>", bos_token="<s>", chat_template=template)


def byte_tokenizer(template: str | None = CHATML, *, adds_bos: bool = False, **template_kwargs: Any) -> Tokenizer:
    return Tokenizer(byte_backend(template, adds_bos=adds_bos), name="toy", template_kwargs=template_kwargs)


def write_checkpoint(
    folder: Path, template: str | None = CHATML, *, seed: int = 0, kind: str = "llama", **config_fields: Any
) -> Path:
    """A random model, some ten thousand weights with grouped keys and values, and a tokenizer."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(seed)
    fields = {
        "vocab_size": 260,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "bos_token_id": 3,
        "eos_token_id": 0,
        "pad_token_id": 0,
        "initializer_range": 0.4,
    }
    config = AutoConfig.for_model(kind, **fields | config_fields)
    model = AutoModelForCausalLM.from_config(config)
    model.generation_config.eos_token_id = list(GENERATION_EOS)
    model.save_pretrained(folder)
    byte_backend(template).save_pretrained(folder)
    return folder


def toy_target(folder: Path, **fields: Any) -> Target:
    import torch

    # On so small a model a second thread only waits, and where the machine is busy it waits long.
    torch.set_num_threads(1)
    return load_target(str(write_checkpoint(folder, **fields)), device="cpu")


def go_offline(monkeypatch: Any) -> None:
    """As with HF_HUB_OFFLINE=1, which is only read when huggingface_hub is imported."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


def chat(*texts: str, id: str | int = "a", answer: Message | str | None = None, **fields: Any) -> Prompt:
    """A conversation that begins with the user, whose turns alternate."""
    roles = ("user", "assistant")
    messages = tuple(Message(roles[i % 2], text) for i, text in enumerate(texts))
    reply = Message("assistant", answer) if isinstance(answer, str) else answer
    return Prompt(id, "toy.jsonl", 1, "messages", messages=messages, answer=reply, **fields)


def raw(text: str, **fields: Any) -> Prompt:
    return Prompt("raw", "toy.jsonl", 1, "prompt", text=text, **fields)
