"""What transformers' own speculative decoding drafts, round by round, under greedy decoding.

Every function returns the output ids and a list of rounds (start, drafts, accepted): `start` is the index into the
output at which the drafts begin, `accepted` how many of them transformers kept. Things to know when comparing:

- Rounds without a draft are listed with an empty one. MTP and DFlash have one at start 0, since they need the target's
  first pass; the others draft the very first output token, with x_n the last prompt token.
- `accepted` is what was kept of the round, less one. Where an end token or max_new_tokens cuts a round short, that can
  be fewer than the drafts that matched.
- MTP drafts one token a module and DFlash block_size - 1, near max_new_tokens too; the others stop in time, and a
  drafting model also stops after one of its own end tokens, even with eos_token_id=None among the options (set its
  generation_config.eos_token_id to None to avoid that).
- The output is always the target's greedy one. Further `options` go to generate.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from safetensors.torch import load_file

Round = tuple[int, list[int], int]
Rounds = tuple[list[int], list[Round]]


def hf_mtp_rounds(target: Any, prompt_ids: list[int], max_new_tokens: int, **options: Any) -> Rounds:
    """`target` is a deepseek_v3 or glm4_moe model loaded with from_pretrained: its folder is read again.

    The class only knows the layer numbers of the published models as MTP layers, so that those of a small one have to
    be named here. With several modules the prompt must be at least as long as there are modules.
    """
    first = target.config.num_hidden_layers
    numbers = "|".join(str(first + i) for i in range(target.config.num_mtp_layers))
    with patch.object(target, "_keys_to_ignore_on_load_unexpected", [rf"model\.layers\.(?:{numbers})\..*"]):
        return _rounds(target, prompt_ids, max_new_tokens, use_mtp=True, **options)


def hf_dflash_rounds(
    target: Any, drafter_folder: Path | str, prompt_ids: list[int], max_new_tokens: int, **options: Any
) -> Rounds:
    """The drafter is loaded into the one DFlash class that transformers has (see `load_dflash`).

    Of the target's last layer, if tapped, it takes the output after the final norm; engines take it before.
    """
    options |= {"assistant_model": load_dflash(drafter_folder), "speculation_type": "dflash"}
    return _rounds(target, prompt_ids, max_new_tokens, **options)


def hf_assisted_rounds(
    target: Any, drafter: Any, prompt_ids: list[int], num_assistant_tokens: int, max_new_tokens: int, **options: Any
) -> Rounds:
    with _constant_depth(drafter, num_assistant_tokens):
        return _rounds(target, prompt_ids, max_new_tokens, assistant_model=drafter, **options)


def hf_early_exit_rounds(
    target: Any, layers: int, prompt_ids: list[int], num_assistant_tokens: int, max_new_tokens: int, **options: Any
) -> Rounds:
    """The drafter is the target's first `layers` layers with its final norm and lm_head."""
    with _constant_depth(target, num_assistant_tokens):
        return _rounds(target, prompt_ids, max_new_tokens, assistant_early_exit=layers, **options)


def hf_prompt_lookup_rounds(
    target: Any, prompt_ids: list[int], num_tokens: int, max_new_tokens: int, *, max_ngram: int = 2, **options: Any
) -> Rounds:
    options |= {"prompt_lookup_num_tokens": num_tokens, "max_matching_ngram_size": max_ngram}
    return _rounds(target, prompt_ids, max_new_tokens, **options)


def load_dflash(folder: Path | str) -> Any:
    """A DFlash drafter in either dialect as transformers' MuseGlimmerAssistantModel, the only class of its kind.

    The tensors fit once fc and hidden_norm are called encoder.fc and encoder.output_norm_enc; config.json does not, so
    that its values are carried over. What the class cannot do is refused: causal blocks, own embedding or lm_head.
    """
    from transformers import MuseGlimmerAssistantConfig, MuseGlimmerAssistantModel

    config = json.loads((Path(folder) / "config.json").read_text())
    body = config.get("transformer_layer_config") or config
    details = config.get("dflash_config") or {}
    ids = details.get("target_layer_ids")
    if "aux_hidden_state_layer_ids" in config:
        ids = [i - 1 for i in config["aux_hidden_state_layer_ids"]]
    if ids is None or details.get("causal"):
        raise ValueError("transformers needs the layer ids and has no causal block")
    shared = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    model = MuseGlimmerAssistantModel(
        MuseGlimmerAssistantConfig(
            **{key: body[key] for key in (*shared, "head_dim", "rms_norm_eps")},
            rope_parameters={"rope_type": "default", "rope_theta": body["rope_theta"]},
            layer_types=["full_attention"] * body["num_hidden_layers"],
            block_size=config["block_size"],
            mask_token_id=details.get("mask_token_id", config.get("mask_token_id")),
            target_layer_ids=ids,
        )
    )
    tensors = load_file(Path(folder) / "model.safetensors")
    new_names = {"fc.weight": "encoder.fc.weight", "hidden_norm.weight": "encoder.output_norm_enc.weight"}
    model.load_state_dict({new_names.get(name, name): tensor for name, tensor in tensors.items()})
    return model.eval()


@contextmanager
def _constant_depth(drafter: Any, num_assistant_tokens: int) -> Iterator[None]:
    """These settings are read from the drafter's generation config; arguments of generate have no effect on them."""
    settings = {
        "num_assistant_tokens": num_assistant_tokens,
        "num_assistant_tokens_schedule": "constant",
        "assistant_confidence_threshold": 0.0,
    }
    before = {name: getattr(drafter.generation_config, name, None) for name in settings}
    for name, value in settings.items():
        setattr(drafter.generation_config, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(drafter.generation_config, name, value)


def _rounds(target: Any, prompt_ids: list[int], max_new_tokens: int, **options: Any) -> Rounds:
    rounds: list[Round] = []
    make = target._get_candidate_generator

    def recording(**arguments: Any) -> Any:
        generator = make(**arguments)
        draft, learn = generator.get_candidates, generator.update_candidate_strategy
        pending: list[tuple[int, list[int]]] = []

        def get_candidates(input_ids: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            candidates, logits = draft(input_ids, *args, **kwargs)
            length = input_ids.shape[1]
            pending.append((length - len(prompt_ids), candidates[0, length:].tolist()))
            return candidates, logits

        def update_candidate_strategy(input_ids: torch.Tensor, scores: torch.Tensor, num_matches: Any) -> None:
            rounds.append((*pending.pop(), int(num_matches)))
            learn(input_ids, scores, num_matches)

        generator.get_candidates = get_candidates
        generator.update_candidate_strategy = update_candidate_strategy
        return generator

    inputs = torch.tensor([prompt_ids])
    with patch.object(target, "_get_candidate_generator", recording):
        out = target.generate(
            inputs,
            attention_mask=torch.ones_like(inputs),
            do_sample=False,
            max_new_tokens=max_new_tokens,
            **options,
        )
    return out[0, len(prompt_ids) :].tolist(), rounds
