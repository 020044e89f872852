"""The embedded target's own model and tokenizer against those of transformers."""

import dataclasses
import json
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest
import toy_target as toy

from specprobe import embedded
from specprobe.light_tokenizer import LightTokenizer
from specprobe.prompt import Prompt
from specprobe.target import Target, load_target
from specprobe.tokens import Tokenizer
from specprobe.trajectories import generated_trajectories

TO_JSON = "{% for m in messages %}{{ m | tojson }}{{ m.content | tojson(indent=1) }}{% endfor %}"
BLOCKS = """
    {% for m in messages %}
        {% if m.content == 'stop' %}
            {% break %}
        {% endif %}
        {{ bos_token + m.role }}: {{ m.content }}
    {% endfor %}
{{ strftime_now('%Y') }}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return toy.write_checkpoint(tmp_path_factory.mktemp("toy"), tie_word_embeddings=True)


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def models(request, folder):
    """transformers' model and ours."""
    import torch
    from transformers import AutoModelForCausalLM

    from specprobe.llama import load_llama

    torch.set_num_threads(1)
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=request.param).eval()
    return theirs, load_llama(folder, getattr(torch, request.param)).eval()


def ids(rows, columns, seed=0):
    import torch

    return torch.randint(260, (rows, columns), generator=torch.Generator().manual_seed(seed))


def assert_same_logits(models, caches=(None, None), **inputs):
    import torch

    with torch.inference_mode():
        theirs, ours = (
            model(**inputs, **({name: cache} if cache else {"use_cache": False})).logits
            for model, cache, name in zip(models, caches, cache_names(models), strict=True)
        )
    assert ours.dtype == theirs.dtype
    # Versions of transformers round differently where there is a mask: 5.24 as ours does, 5.6 by 7e-6 apart.
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def cache_names(models):
    return [Target(model, None, None).forward_inputs()[0] for model in models]


def new_caches(models):
    from specprobe.kv_cache import new_cache

    return [new_cache(model.config) for model in models]


def left_padded(rows, columns):
    """A mask [rows, columns] and positions; the last row has no padding."""
    import torch

    mask = torch.arange(columns) >= torch.arange(rows - 1, -1, -1)[:, None]
    return mask.long(), (mask.cumsum(-1) - 1).clamp(min=0)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("keep", [0, 1, 4])
def test_prefill(models, rows, keep):
    assert_same_logits(models, input_ids=ids(rows, 9), logits_to_keep=keep)
    assert_same_logits(models, input_ids=ids(rows, 1))


@pytest.mark.parametrize("is_padded", [True, False])
def test_batch_that_grows_and_loses_a_row(models, is_padded):
    import torch

    caches = new_caches(models)
    mask, positions = left_padded(3, 30) if is_padded else (torch.ones(3, 30).long(), torch.arange(30).expand(3, 30))
    for start, stop in [(0, 9), (9, 10), (10, 11), (11, 15), (15, 16)]:
        if stop == 11:
            kept = torch.tensor([0, 2])
            mask, positions = mask[kept], positions[kept]
            for cache in caches:
                cache.batch_select_indices(kept)
        assert_same_logits(
            models,
            caches,
            input_ids=ids(len(mask), stop - start, seed=start),
            attention_mask=mask[:, :stop],
            position_ids=positions[:, start:stop],
        )


def test_verification_of_drafts(models):
    caches = new_caches(models)
    assert_same_logits(models, caches, input_ids=ids(1, 8))
    for cache in caches:
        cache.batch_repeat_interleave(3)
    for tokens in (1, 2, 5):
        assert_same_logits(models, caches, input_ids=ids(3, tokens, seed=tokens))
        for cache in caches:
            cache.crop(-tokens)
            assert cache.get_seq_length() == 8


def test_mask_and_positions_of_a_tree(models):
    import torch

    mask = (torch.rand(2, 1, 7, 7, generator=torch.Generator().manual_seed(0)) < 0.5) | torch.eye(7, dtype=torch.bool)
    positions = ids(2, 7, seed=1) % 100
    assert_same_logits(models, input_ids=ids(2, 7), attention_mask=mask, position_ids=positions)
    caches = new_caches(models)
    assert_same_logits(models, caches, input_ids=ids(2, 3), attention_mask=mask[:, :, :3, :3])
    for start, stop in ((3, 6), (6, 7)):
        rows = {"attention_mask": mask[:, :, start:stop, :stop], "position_ids": positions[:, start:stop]}
        assert_same_logits(models, caches, input_ids=ids(2, stop - start), **rows)


def test_parts_are_found_where_transformers_has_them(models):
    import torch

    theirs, ours = models
    assert [(n, w.shape) for n, w in ours.state_dict().items()] == [
        (n, w.shape) for n, w in theirs.state_dict().items()
    ]
    assert sum(p.numel() for p in ours.parameters()) == sum(p.numel() for p in theirs.parameters())
    assert ours.get_input_embeddings().weight is ours.get_output_embeddings().weight
    assert (ours.dtype, ours.device) == (theirs.dtype, theirs.device)
    hidden = []
    with torch.inference_mode():
        for model in models:
            decoder = model.get_decoder()
            hook = decoder.layers[0].register_forward_hook(lambda _module, _inputs, output: hidden.append(output))
            hidden.append(decoder(input_ids=ids(1, 5)).last_hidden_state)
            hook.remove()
            hidden.append(model.get_output_embeddings()(decoder.norm(hidden[-1])))
    for theirs_part, ours_part in zip(hidden[:3], hidden[3:], strict=True):
        torch.testing.assert_close(ours_part, theirs_part, rtol=1e-6, atol=1e-6)


def test_runs_on_the_meta_device(folder):
    import torch

    from specprobe.llama import load_llama

    assert load_llama(folder, torch.float32).to("meta")(ids(2, 3).to("meta")).logits.shape == (2, 3, 260)


def embedded_copy(monkeypatch, cache):
    """A toy in the place of the converted copy."""
    monkeypatch.setenv("SPECPROBE_CACHE", str(cache))
    return toy.write_checkpoint(cache / "targets" / embedded._COPY_NAME, tie_word_embeddings=True)


def test_embedded_target_is_the_one_that_transformers_loads(monkeypatch, tmp_path):
    theirs, ours = load_target(str(embedded_copy(monkeypatch, tmp_path)), device="cpu"), load_target(device="cpu")
    name = {"name": embedded.EMBEDDED_NAME}
    tokenizer = dataclasses.replace(theirs.record.tokenizer, **name)
    # The real copy is always stored so.
    expected = dataclasses.replace(theirs.record, stored_dtype="bfloat16", tokenizer=tokenizer, **name)
    assert ours.record == expected
    prompts = [toy.chat("hi" * n, id=n) for n in (3, 1, 9, 20)]
    texts = [
        [t.output_ids.tolist() for t in generated_trajectories(prompts, target, temperature=0.8).trajectories]
        for target in (theirs, ours)
    ]
    assert texts[0] == texts[1]


def test_embedded_target_starts_without_transformers(monkeypatch, tmp_path):
    embedded_copy(monkeypatch, tmp_path)
    code = (
        "import sys; from specprobe.target import load_target; import specprobe.generate; load_target(device='cpu');"
        # Nor the parts of torch that cost a second more.
        "assert not {'transformers', 'sympy', 'torch._dynamo'} & {*sys.modules}"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


@pytest.mark.parametrize(
    "template",
    [toy.CHATML, toy.TRIMMING, toy.THINKING, toy.OPENING, toy.NO_SYSTEM, toy.TOOLS, TO_JSON, BLOCKS],
)
def test_light_tokenizer_gives_what_transformers_gives(tmp_path, template):
    backend = toy.byte_backend(template, adds_bos=True)
    backend.save_pretrained(tmp_path)
    theirs, ours = (Tokenizer(b, name="toy", template_kwargs={"x": 1}) for b in (backend, LightTokenizer(tmp_path)))
    assert ours.record == theirs.record
    prompts = [
        toy.chat("<hi> & 'ö' \n", "yes\n", "stop", answer="  so <|im_end|>🙂"),
        toy.raw("<s>ab <|end|>", answer=None),
        toy.chat("a", answer="b"),
    ]
    for prompt in prompts:
        np.testing.assert_array_equal(ours.encode_prompt(prompt), theirs.encode_prompt(prompt))
        for mine, other in zip(ours.encode_answer(prompt), theirs.encode_answer(prompt), strict=True):
            np.testing.assert_array_equal(mine, other)
        assert ours.has_special_text(prompt) == theirs.has_special_text(prompt)
    numbers = np.arange(len(backend))
    assert ours.decode(numbers) == theirs.decode(numbers)
    assert str(datetime.now().year) in ours.decode(ours.encode_prompt(prompts[0])) or template != BLOCKS


@pytest.mark.slow
def test_embedded_weights_give_the_logits_of_transformers_and_the_golden_texts():
    import torch
    from transformers import AutoModelForCausalLM

    target = load_target(device="cpu")
    models = (AutoModelForCausalLM.from_pretrained(embedded.embedded_folder(), dtype="float32").eval(), target.model)
    mask, positions = left_padded(3, 20)
    caches = new_caches(models)
    for start, stop in ((0, 12), (12, 13), (13, 20)):
        inputs = {"attention_mask": mask[:, :stop], "position_ids": positions[:, start:stop]}
        assert_same_logits(models, caches, input_ids=torch.arange(start, stop).expand(3, -1) * 97, **inputs)
    lines = (Path(__file__).parent / "golden" / "baseline_t0.jsonl").read_text().splitlines()
    rows = [row for row in map(json.loads, lines) if len(row["prompt_token_ids"]) < 100][:8]
    prompts = [Prompt(row["id"], "", n, "ids", token_ids=tuple(row["prompt_token_ids"])) for n, row in enumerate(rows)]
    found = generated_trajectories(prompts, target, temperature=0, max_new_tokens=48).trajectories
    assert [t.output_ids.tolist() for t in found] == [row["output_token_ids"][:48] for row in rows]
