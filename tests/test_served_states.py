"""Heads for a target that vLLM serves: its states come from files, and are those of the target itself."""

from __future__ import annotations

import json
import shutil
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tiny_heads
import tiny_mtp
import torch
import toy_target as toy
from fake_target import serving_target
from recorded_server import replaying
from reference import make_trajectory

from specprobe.causal_lm import LoadOptions
from specprobe.cli import run_command
from specprobe.drafters import DraftContext, Limits, ModelSpec, open_drafter
from specprobe.endpoint import Endpoint
from specprobe.errors import SpecprobeError
from specprobe.features import LAST, capture_features, recording
from specprobe.profiles import resolve_profile
from specprobe.served_states import ServedStates, server_flags
from specprobe.server import Patience, parse_server
from specprobe.target import Target, load_target
from specprobe.target_frame import load_frame

LAYERS = 7
CPU = LoadOptions(device="cpu")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("target")
    return toy.write_checkpoint(folder, num_hidden_layers=LAYERS, max_position_embeddings=512)


@pytest.fixture(scope="module")
def target(checkpoint) -> Target:
    torch.set_num_threads(1)
    return load_target(str(checkpoint), device="cpu")


def states_at(target: Target, layers):
    """What vLLM writes: the stream that enters each layer, or leaves the last, by plain forward passes."""

    turn = threading.Lock()

    def states(ids: torch.Tensor) -> torch.Tensor:
        with turn, torch.inference_mode(), recording(target, layers, stops=False) as found:
            target.model(ids[None])
            return torch.stack([found[layer][0] for layer in layers], dim=1).clone()

    return states


def works():
    rng = np.random.default_rng(1)
    return [
        make_trajectory(rng.integers(0, 260, p), rng.integers(0, 260, n), rng.integers(0, 260, tail), name=str(p))
        for p, n, tail in ((5, 9, 3), (1, 6, 0), (12, 4, 2), (5, 9, 0))
    ]


def served(server, frame: Target, folder: Path):
    return Endpoint(server.url, timeout_seconds=1.0, patience=Patience(2, 0.001, 0.01)).hidden_states(folder, frame)


@pytest.mark.parametrize("tied", [False, True])
def test_a_frame_has_the_targets_own_parts_and_no_layers(tmp_path, tied):
    folder = toy.write_checkpoint(tmp_path / "toy", tie_word_embeddings=tied)
    whole = load_target(str(folder), device="cpu")
    frame = load_frame(str(folder), CPU, whole.tokenizer)
    for part in ("get_input_embeddings", "get_output_embeddings"):
        assert torch.equal(getattr(frame.model, part)().weight, getattr(whole.model, part)().weight)
    assert torch.equal(frame.final_norm.weight, whole.final_norm.weight)
    shared = frame.model.get_input_embeddings().weight is frame.model.get_output_embeddings().weight
    assert shared == tied
    assert len(frame.layers) == 0
    assert frame.text_config.num_hidden_layers == 2
    assert frame.record.vocab_size == whole.record.vocab_size


def test_a_frame_needs_the_weights_and_not_those_of_layers(tmp_path, target, checkpoint):
    from safetensors.torch import load_file, save_file

    for name in ("config.json", "tokenizer.json"):
        (tmp_path / name).write_bytes((checkpoint / name).read_bytes())
    tensors = load_file(checkpoint / "model.safetensors")
    save_file({name: t for name, t in tensors.items() if ".layers." not in name}, tmp_path / "a.safetensors")
    load_frame(str(tmp_path), CPU, target.tokenizer)
    save_file({name: t for name, t in tensors.items() if "embed" not in name}, tmp_path / "a.safetensors")
    with pytest.raises(SpecprobeError, match=r"--target-checkpoint .*have no model\.embed_tokens\.weight"):
        load_frame(str(tmp_path), CPU, target.tokenizer)


def test_states_from_files_are_those_of_the_target(target, checkpoint, tmp_path):
    taps = [0, 3, LAYERS, LAST]
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    own = capture_features(target, works(), taps, tmp_path / "here")
    frame = load_frame(str(checkpoint), CPU, target.tokenizer)
    seen: list[int] = []
    with serving_target("vllm", states=states_at(target, [0, 3, LAYERS]), states_folder=tmp_path) as server:
        states = served(server, frame, tmp_path)
        assert states.layers(taps) == [0, 3, LAYERS]
        found = states.capture(works() + works(), taps, tmp_path / "there", seen.append)
    assert seen == [1, 2, 3, 4]
    for work in works():
        for tap in taps:
            mine, theirs = own.read(tap, work), found.read(tap, work)
            assert mine.shape == theirs.shape
            torch.testing.assert_close(theirs[:-1], mine[:-1], atol=1e-4, rtol=1e-3)
    # They tell what the text was.
    assert not list(tmp_path.glob("*.safetensors*"))


HEADS = (
    ("eagle", tiny_heads.write_eagle, {"own_embed": False}),
    ("eagle3", tiny_heads.write_eagle3, {}),
    ("eagle3", tiny_heads.write_peagle, {}),
    ("medusa", tiny_heads.write_medusa, {}),
    ("mlp", tiny_heads.write_mlp_speculator, {}),
    ("dflash", tiny_mtp.write_dflash, {"target_layer_ids": [1, 3]}),
    ("early-exit", None, {"layers": "3"}),
)


@pytest.mark.parametrize(("name", "write", "options"), HEADS, ids=[f"{h[0]}-{i}" for i, h in enumerate(HEADS)])
def test_heads_draft_the_same_beside_a_server(target, checkpoint, tmp_path, name, write, options):
    """Draft by draft: the target's layers are not here, and the newest token's states are zeros."""
    if write is None:
        spec = ModelSpec(name, "", options)
    else:
        spec = ModelSpec(name, str(write(tmp_path / "head", target.text_config, **options)), {})
    context = DraftContext(target, target.tokenizer, CPU, resolve_profile("vllm@0.30"), 3, False)
    opened = open_drafter(spec, context)
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    own = opened.load(capture_features(target, works(), opened.taps, tmp_path / "here"))
    layers = sorted({LAYERS if tap == LAST else tap for tap in opened.taps})
    frame = load_frame(str(checkpoint), CPU, target.tokenizer)
    with serving_target("vllm", states=states_at(target, layers), states_folder=tmp_path) as server:
        states = served(server, frame, tmp_path)
        beside = open_drafter(spec, replace(context, target=None, elsewhere=True, states=states))
        assert beside.taps == opened.taps
        states.check(beside.taps)
        drafter = beside.load(states.capture(works(), beside.taps, tmp_path / "there"))
    for mine, theirs in zip(own.proposals(works(), 3, Limits()), drafter.proposals(works(), 3, Limits()), strict=True):
        assert np.array_equal(mine.missed, theirs.missed)
        assert np.array_equal(mine.drafted, theirs.drafted)
        assert (mine.missed >= 0).any()


REFUSED = {
    "other layers": "the drafters read 2: start vLLM with --speculative-config '",
    "narrower": "name the checkpoint of the served model",
    "none": "writes no hidden states; the drafters read 2",
    "other tokens": "of other tokens",
    "elsewhere": "shared_storage_path",
}


@pytest.mark.parametrize("what", REFUSED)
def test_states_that_do_not_fit_are_refused_before_anything_is_written(target, checkpoint, tmp_path, what):
    layers = [1] if what == "other layers" else [1, LAYERS]
    given = states_at(target, layers)

    def states(ids: torch.Tensor) -> torch.Tensor:
        found = given(ids)
        if what == "other tokens":
            ids += 1
        return found[..., :-1].contiguous() if what == "narrower" else found

    frame = load_frame(str(checkpoint), CPU, target.tokenizer)
    folder = tmp_path / "elsewhere" if what == "elsewhere" else tmp_path
    folder.mkdir(exist_ok=True)
    with serving_target("vllm", states_folder=tmp_path) as server:
        server.states = None if what == "none" else states
        with pytest.raises(SpecprobeError, match=REFUSED[what].replace("'", ".")):
            replace(served(server, frame, folder), server=short(server)).check([1, LAST])


def short(server):
    return parse_server(server.url, timeout_seconds=0.3)


def test_the_flags_that_are_told_are_json(tmp_path):
    import shlex

    words = shlex.split(server_flags([2, 15, 27], tmp_path))
    speculative, transfer = json.loads(words[1]), json.loads(words[3])
    assert speculative["draft_model_config"]["hf_config"]["eagle_aux_hidden_state_layer_ids"] == [2, 15, 27]
    assert transfer["kv_connector_extra_config"]["shared_storage_path"] == str(tmp_path)


def test_analyze_beside_a_server_is_analyze_with_the_target(target, checkpoint, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    head = tiny_heads.write_eagle3(tmp_path / "head", target.text_config)
    Path("log.jsonl").write_text("".join(json.dumps({"prompt": "count " + "x" * n}) + "\n" for n in range(4)))
    Path("states").mkdir()
    command = ["analyze", "--drafter", f"eagle3:{head}", "--depth", "3", "--max-new-tokens", "9", "--json"]
    with serving_target("vllm", states=states_at(target, [2, 3, 4]), states_folder=Path("states")) as server:
        beside = [*command, "log.jsonl", "--target", server.url]
        assert run_command(beside) == 2
        assert "--hidden-states FOLDER" in capsys.readouterr().err
        given = [*beside, "--hidden-states", "states", "--target-checkpoint", str(checkpoint)]
        assert run_command(given) == 0
        document = json.loads(capsys.readouterr().out)
        assert document["target"]["checkpoint"] == str(checkpoint)
        assert run_command([*given[:1], "log.jsonl", "--target", server.url, *given[-4:]]) == 2
        assert "no drafter reads them" in capsys.readouterr().err
        endpoint = Endpoint(server.url)
        prompts = [endpoint.encode_all([toy.raw("count " + "x" * n)])[0].tolist() for n in range(4)]
        rows = [{"prompt_token_ids": ids, "output_token_ids": server.writes(ids)[:9]} for ids in prompts]
    Path("ids.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert run_command([*command, "ids.jsonl", "--responses", "logged", "--target", str(checkpoint)]) == 0
    here = json.loads(capsys.readouterr().out)
    assert [result["depths"] for result in document["results"]] == [result["depths"] for result in here["results"]]


RECORDED = Path(__file__).parent / "golden" / "states-vllm"


def test_what_a_real_vllm_wrote(tmp_path):
    """Recorded from vLLM 0.32, layers 2, 15 and 27 of SmolLM2-135M over four tokens; what it answered, and its file."""
    (name,) = (path.name for path in RECORDED.glob("*.safetensors"))
    shutil.copy(RECORDED / name, tmp_path / name)
    config = SimpleNamespace(num_hidden_layers=30, hidden_size=576)
    frame = SimpleNamespace(text_config=config, record=SimpleNamespace(name="target", vocab_size=49152))
    with replaying(RECORDED) as (url, seen):
        states = ServedStates(parse_server(url, timeout_seconds=5), "smol", tmp_path, frame, 1, Patience(1))
        found = states.ask(torch.tensor([1, 4093, 198, 2]), [2, 15, 27], threading.Event())
        assert found.shape == (4, 3, 576)
        # Streams grow from layer to layer, and the file is read once.
        norms = found.norm(dim=-1).mean(dim=0)
        assert norms[0] < norms[1] < norms[2]
        assert not list(tmp_path.iterdir())
    ((_, body),) = seen
    assert body == {"model": "smol", "prompt": [1, 4093, 198, 2], "max_tokens": 1, "temperature": 0.0}


@pytest.mark.parametrize("kind", ["sglang", "llama.cpp", "unknown"])
def test_only_vllm_writes_its_states(kind, checkpoint, tmp_path, target):
    with serving_target(kind) as server:
        endpoint = Endpoint(server.url, tokenizer=toy.byte_tokenizer())
        with pytest.raises(SpecprobeError, match="only vLLM"):
            endpoint.hidden_states(tmp_path, target)


OPTIONS = {
    ("--hidden-states", "."): "go together",
    ("--target-checkpoint", "toy"): "go together",
    ("--hidden-states", ".", "--target-checkpoint", "toy"): "come from a server",
    ("--target", "http://localhost:1/v1", "--hidden-states", "none", "--target-checkpoint", "toy"): "no such folder",
}


@pytest.mark.parametrize("further", OPTIONS)
def test_options_that_do_not_fit_together(further, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("log.jsonl").write_text('{"prompt": "a"}\n')
    assert run_command(["analyze", "log.jsonl", "--drafter", "medusa:x", *further]) == 2
    assert OPTIONS[further] in capsys.readouterr().err
