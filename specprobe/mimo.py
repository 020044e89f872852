"""MiMo-7B is Qwen2 with extra layers for drafting, under a name that transformers does not know.

Imports transformers.
"""

from __future__ import annotations

from transformers import AutoConfig, AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM


class MimoConfig(Qwen2Config):  # type: ignore[misc]
    """As Qwen2's, under the checkpoint's own type."""

    model_type = "mimo"


class MimoForCausalLM(Qwen2ForCausalLM):  # type: ignore[misc]
    """The main model; its drafting layers are left to the drafter `mtp`."""

    config_class = MimoConfig
    # A list: older versions of transformers add another list to it.
    _keys_to_ignore_on_load_unexpected = [r"model\.mtp_layers\."]  # noqa: RUF012


def register_mimo() -> None:
    """Let transformers load `model_type: mimo` without code from the checkpoint, unless it has a class of its own."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    if MimoConfig.model_type not in CONFIG_MAPPING:
        AutoConfig.register(MimoConfig.model_type, MimoConfig)
        AutoModelForCausalLM.register(MimoConfig, MimoForCausalLM)
