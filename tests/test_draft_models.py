"""`draft:MODEL`: whose token ids they are, what maps to what, and what is drafted then, against plain decoding."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import toy_target as toy
from reference import make_trajectory
from transformers import AutoConfig, AutoModelForCausalLM

from specprobe.causal_lm import LoadOptions
from specprobe.cli import run_command
from specprobe.drafters import DraftContext, Limits, ModelSpec, OpenDrafter, open_drafter
from specprobe.drafters.draft import logits_at
from specprobe.drafters.vocabularies import VocabularyMatch, match_vocabularies
from specprobe.errors import SpecprobeError
from specprobe.profiles import resolve_profile
from specprobe.replay import replay, replays
from specprobe.target import Target, load_target
from specprobe.tokens import Tokenizer

DEPTH = 3
ASCII = [chr(code) for code in range(33, 127)]
LETTERS = [chr(code) for code in range(ord("a"), ord("z") + 1)]


def byte_backend(
    *,
    seed: int | None = None,
    eos: str | None = "<|im_end|>",
    further: tuple[str, ...] = (),
    first: tuple[str, ...] = (),
) -> Any:
    """Byte-level BPE with a token for a space and a letter, `Ġa` to `Ġz`; a seed permutes the ids."""
    from tokenizers import Tokenizer as FastTokenizer
    from tokenizers import decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokens = [*toy.SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet()), *("Ġ" + letter for letter in LETTERS)]
    if seed is not None:
        random.Random(seed).shuffle(tokens)
    vocab = {token: i for i, token in enumerate([*first, *tokens, *further])}
    fast = FastTokenizer(models.BPE(vocab=vocab, merges=[("Ġ", letter) for letter in LETTERS]))
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.decoder = decoders.ByteLevel()
    fast.add_special_tokens(list(toy.SPECIAL))
    return PreTrainedTokenizerFast(tokenizer_object=fast, eos_token=eos, chat_template=toy.CHATML)


def piece_backend(*, unk: str | None = "<unk>", letters: int = 26, first: tuple[str, ...] = ()) -> Any:
    """As SentencePiece cuts text: `▁` for a space; single letters, and `▁a` to `▁z`, in another order of ids."""
    from tokenizers import Tokenizer as FastTokenizer
    from tokenizers import decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    single = ASCII[::-1] if letters == len(LETTERS) else LETTERS[:letters]
    words = ["▁" + letter for letter in reversed(LETTERS[:letters])]
    vocab = {t: i for i, t in enumerate([*first, "<unk>", "</s>", "▁", *words, *single])}
    merges = [("▁", letter) for letter in LETTERS[:letters]]
    fast = FastTokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>"))
    fast.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never", split=False)
    fast.decoder = decoders.Metaspace(prepend_scheme="never")
    fast.add_special_tokens(["<unk>", "</s>"])
    return PreTrainedTokenizerFast(
        tokenizer_object=fast, unk_token=unk, eos_token="</s>", chat_template=toy.CHATML.replace("<|im_end|>", "</s>")
    )


BACKENDS: dict[str, Callable[[], Any]] = {
    "byte": byte_backend,
    "permuted": lambda: byte_backend(seed=1),
    "piece": piece_backend,
}
# Byte-level and SentencePiece share 94 signs, the space, and a space with each of 26 letters.
SHARED = len(ASCII) + 1 + len(LETTERS)


def write_model(folder: Path, backend: Any, *, rows: int | None = None, seed: int = 0, **fields: Any) -> Path:
    """A random model with this tokenizer; `rows`: of its matrices, where they are padded."""
    toy.write_checkpoint(folder, seed=seed, vocab_size=rows or len(backend), eos_token_id=1, pad_token_id=1, **fields)
    backend.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Callable[..., Path]:
    """A folder for each tokenizer and size, written once."""
    written: dict[tuple[Any, ...], Path] = {}
    torch.set_num_threads(1)

    def model(name: str, rows: int | None = None, seed: int = 0) -> Path:
        key = (name, rows, seed)
        if key not in written:
            written[key] = write_model(tmp_path_factory.mktemp(name), BACKENDS[name](), rows=rows, seed=seed)
        return written[key]

    return model


@pytest.fixture(scope="module")
def targets(models) -> Callable[[str], Target]:
    loaded: dict[str, Target] = {}
    return lambda name: loaded.setdefault(name, load_target(str(models(name)), device="cpu"))


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPECPROBE_CACHE", str(tmp_path / "cache"))
    toy.go_offline(monkeypatch)


def tokenizer(name: str) -> Tokenizer:
    return Tokenizer(BACKENDS[name](), name=name)


def opened(
    folder: Path, target: Target | None, *, sampled: bool = False, greedy: bool = True, engine: str = "vllm"
) -> OpenDrafter:
    found = target.tokenizer if target else None
    context = DraftContext(target, found, LoadOptions(device="cpu"), resolve_profile(engine), DEPTH, sampled, greedy)
    return open_drafter(ModelSpec("draft", str(folder), {}), context)


class Literal:
    """The draft model as an engine runs it: one draft after the other, ids mapped by the text of tokens."""

    def __init__(self, folder: Path, target: Tokenizer, draft: Tokenizer, fallback: int):
        from transformers import AutoModelForCausalLM

        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        theirs = {spoken(token): i for token, i in target.vocabulary.items()}
        pairs = [(theirs[spoken(token)], i) for token, i in draft.vocabulary.items() if spoken(token) in theirs]
        rows = self.model.config.vocab_size
        self.to_draft = {t: d for t, d in pairs if d < rows}
        self.to_target = {d: t for t, d in self.to_draft.items()}
        self.fallback = fallback
        self.outside = torch.ones(rows, dtype=torch.bool)
        self.outside[list(self.to_target)] = False

    def q(self, context: list[int], temperature: float = 1.0) -> torch.Tensor:
        """The distribution of the next draft, over the draft model's ids."""
        ids = [self.to_draft.get(token, self.fallback) for token in context]
        with torch.inference_mode():
            logits = self.model(torch.tensor([ids])).logits[0, -1]
        return torch.softmax(logits.masked_fill(self.outside, -torch.inf) / temperature, -1)

    def greedy(self, context: list[int]) -> int:
        return self.to_target[int(self.q(context).argmax())]


def spoken(token: str) -> str:
    return token.replace("Ġ", " ").replace("▁", " ")


def some_works(literal: Literal, vocab_size: int, *, seed: int = 0, temperature: float = 0.0):
    """Responses that the draft model would often have written, with tokens in between that it may not have."""
    rng = np.random.default_rng(seed)
    works = []
    for number, (num_prompt, num_output) in enumerate(((4, 14), (9, 8), (1, 11), (3, 1))):
        tokens = [vocab_size - 1, *rng.integers(0, vocab_size, num_prompt - 1).tolist()]
        while len(tokens) < num_prompt + num_output:
            likely = literal.greedy(tokens) if rng.random() < 0.7 else vocab_size
            # A padded draft model may prefer an id that the target does not have, and so never writes.
            tokens.append(likely if likely < vocab_size else int(rng.integers(0, vocab_size)))
        work = make_trajectory(tokens[:num_prompt], tokens[num_prompt:], name=str(number))
        log_probs = np.log(rng.uniform(0.05, 0.9, num_output)).astype(np.float32)
        works.append(replace(work, temperature=temperature, log_probs=log_probs))
    return works


def right_drafts(literal: Literal, work, depth: int) -> list[int]:
    """At each round start after the first token, how many drafts of a real draft are right."""
    tokens = [*work.prompt_ids.tolist(), *work.output_ids.tolist()]
    found = [0]
    for start in range(1, work.output_ids.size):
        context = tokens[: work.prompt_ids.size + start]
        wanted, right = tokens[len(context) : len(context) + depth], 0
        while right < len(wanted) and literal.greedy(context) == wanted[right]:
            context = [*context, wanted[right]]
            right += 1
        found.append(right)
    return found


# --- what maps to what ---


def test_equal_tokenizers_have_the_same_ids():
    match = match_vocabularies(tokenizer("byte"), tokenizer("byte"), 286, 286, "draft:x")
    assert (match.mapping, match.shared, match.record["vocabulary"]) == (None, 286, "same")


@pytest.mark.parametrize("rows", [286, 320])
def test_tokens_that_only_one_side_has_do_not_matter_where_ids_agree(rows):
    longer = Tokenizer(byte_backend(further=("<extra>", "<another>")), name="longer")
    for target, draft in ((tokenizer("byte"), longer), (longer, tokenizer("byte"))):
        assert match_vocabularies(target, draft, 288, rows, "draft:x").mapping is None


@pytest.mark.parametrize(
    ("target", "draft", "shared"),
    [("byte", "permuted", 286), ("permuted", "byte", 286), ("byte", "piece", SHARED), ("piece", "byte", SHARED)],
)
def test_tokens_are_matched_by_their_text(target, draft, shared):
    ours, theirs = tokenizer(target), tokenizer(draft)
    match = match_vocabularies(ours, theirs, ours.vocab_size, theirs.vocab_size, "draft:x")
    assert match.mapping is not None
    to_target, to_draft = match.mapping.to_target.tolist(), match.mapping.to_draft.tolist()
    spelled = {i: spoken(token) for token, i in ours.vocabulary.items()}
    for token, draft_id in theirs.vocabulary.items():
        if to_target[draft_id] >= 0:
            assert spelled[to_target[draft_id]] == spoken(token)
            assert to_draft[to_target[draft_id]] == draft_id
    covered = [token for token, i in ours.vocabulary.items() if to_draft[i] >= 0]
    assert len(covered) == sum(i >= 0 for i in to_target) == match.shared == shared
    assert match.record == {
        "vocabulary": "mapped",
        "shared_tokens": shared,
        "target_tokens": ours.vocab_size,
        "draft_tokens": theirs.vocab_size,
        "equal_sizes": False,
    }


def mapped(target: Tokenizer, draft: Tokenizer, rows: tuple[int, int] | None = None) -> VocabularyMatch:
    target_rows, draft_rows = rows or (target.vocab_size, draft.vocab_size)
    match = match_vocabularies(target, draft, target_rows, draft_rows, "draft:x")
    assert match.mapping is not None
    return match


def test_of_tokens_with_the_same_text_the_first_counts(monkeypatch):
    """By id: a tokenizer gives its vocabulary in another order in every process."""
    twice = Tokenizer(byte_backend(first=(" a",), further=(" b",)), name="twice")
    piece = tokenizer("piece")
    whole = twice.vocabulary
    for order in (list(whole), sorted(whole), sorted(whole, reverse=True), sorted(whole, key=whole.__getitem__)):
        monkeypatch.setattr(twice._backend, "get_vocab", lambda order=order: {token: whole[token] for token in order})
        to_target = mapped(twice, piece).mapping.to_target
        assert to_target[piece.vocabulary["▁a"]] == whole[" a"] == 0
        assert to_target[piece.vocabulary["▁b"]] == whole["Ġb"]
        to_draft = mapped(piece, twice).mapping.to_draft
        assert to_draft[piece.vocabulary["▁a"]] == 0


def test_a_sign_marks_a_space_only_where_the_tokenizer_uses_it_so():
    """`Ġ` is a letter of Maltese, which SentencePiece vocabularies have (vLLM tries out what a space becomes)."""
    maltese = Tokenizer(piece_backend(first=("Ġ", "Ġa")), name="maltese")
    byte = tokenizer("byte")
    to_target = mapped(byte, maltese).mapping.to_target
    assert to_target[maltese.vocabulary["▁"]] == byte.vocabulary["Ġ"]
    assert to_target[maltese.vocabulary["▁a"]] == byte.vocabulary["Ġa"]
    assert to_target[[0, 1]].tolist() == [-1, -1]


def test_ids_beyond_a_models_rows_are_left_out():
    byte, piece = tokenizer("byte"), tokenizer("piece")
    match = mapped(byte, piece, (byte.vocabulary["Ġp"] + 1, piece.vocabulary["!"]))
    assert match.mapping.to_target.numel() == piece.vocabulary["!"]
    assert match.mapping.to_draft.numel() == byte.vocabulary["Ġp"] + 1
    # Without ! and the space with q to z.
    assert match.shared == SHARED - 11
    assert (match.mapping.to_target >= 0).sum() == (match.mapping.to_draft >= 0).sum() == match.shared


def test_what_the_draft_lacks_becomes_its_unknown_token_or_its_end():
    byte = tokenizer("byte")
    piece = tokenizer("piece")
    assert mapped(byte, piece).unknown_id == piece.vocabulary["<unk>"]
    assert mapped(piece, byte).unknown_id == byte.vocabulary["<|im_end|>"]
    without = Tokenizer(piece_backend(unk=None), name="without")
    assert mapped(byte, without).unknown_id == without.vocabulary["</s>"]
    with pytest.raises(SpecprobeError, match="neither an unknown nor an end token"):
        mapped(piece, Tokenizer(byte_backend(eos=None), name="endless"))


def test_too_little_in_common_is_refused():
    byte, small = tokenizer("byte"), Tokenizer(piece_backend(letters=20), name="small")
    for target, draft in ((byte, small), (small, byte)):
        with pytest.raises(SpecprobeError, match="shares 41 tokens") as refused:
            mapped(target, draft)
        assert "\n" not in str(refused.value)


# --- what is drafted ---


@pytest.mark.parametrize("rows", [None, 320, 280])
def test_a_padded_model_of_the_same_tokenizer_drafts_as_it_is(models, targets, rows):
    """More rows than the tokenizer has ids, fewer than the target's: ids agree, so nothing is mapped."""
    target, folder = targets("byte"), models("byte", rows=rows, seed=1)
    found = opened(folder, target)
    literal = Literal(folder, target.tokenizer, target.tokenizer, fallback=2)
    literal.outside[:] = False
    literal.to_target = {i: i for i in range(len(literal.outside))}
    works = some_works(literal, target.text_config.vocab_size)
    drafter = found.load(None)
    assert drafter.config["vocabulary"] == "same"
    for work, proposals in zip(works, drafter.proposals(works, DEPTH, Limits()), strict=True):
        assert proposals.outside is None
        assert proposals.accepted[-1].tolist() == right_drafts(literal, work, DEPTH)


@pytest.mark.parametrize(
    ("target", "draft", "rows"),
    [("byte", "permuted", None), ("byte", "piece", None), ("piece", "byte", None), ("byte", "piece", 160)],
)
def test_a_mapped_model_drafts_what_plain_decoding_drafts(models, targets, target, draft, rows):
    of, folder = targets(target), models(draft, rows=rows, seed=1)
    unknown = tokenizer(draft).vocabulary["<unk>" if draft == "piece" else "<|im_end|>"]
    literal = Literal(folder, of.tokenizer, tokenizer(draft), fallback=unknown)
    works = some_works(literal, of.text_config.vocab_size)
    found = opened(folder, of)
    assert [notice.code for notice in found.notices] == ["vocabulary_mapped"]
    drafter = found.load(None)
    assert drafter.config["vocabulary"] == "mapped"
    for work, proposals in zip(works, drafter.proposals(works, DEPTH, Limits()), strict=True):
        expected = right_drafts(literal, work, DEPTH)
        assert proposals.accepted[-1].tolist() == expected
        assert proposals.outside == sum(int(token) not in literal.to_draft for token in work.output_ids[1:])
    # The share of what could not have been drafted, of all output tokens but the first of each response.
    result = replay(drafter, works, DEPTH)
    later = np.concatenate([work.output_ids[1:] for work in works]).tolist()
    assert result.outside_share == pytest.approx(np.mean([token not in literal.to_draft for token in later]))
    assert result.accepted_at.sum() > 0
    if draft == "piece":
        assert result.outside_share > 0


def test_sampled_drafts_of_a_mapped_model_stay_inside_the_intersection(models, targets):
    target, folder = targets("byte"), models("piece", seed=1)
    literal = Literal(folder, target.tokenizer, tokenizer("piece"), fallback=0)
    works = some_works(literal, target.text_config.vocab_size, temperature=0.7)
    drafter = opened(folder, target, sampled=True, engine="hf").load(None)
    greedy, sampled = replays(drafter, works, DEPTH, ("greedy", "sampled"))
    assert greedy.rounds.dtype.kind == "i"
    for work, proposals in zip(works, drafter.proposals(works, 1, Limits()), strict=True):
        tokens = [*work.prompt_ids.tolist(), *work.output_ids.tolist()]
        for start in range(1, work.output_ids.size):
            position = work.prompt_ids.size + start
            draft_id = literal.to_draft.get(tokens[position])
            # transformers hands the target's processors to the assistant, which adds its own: T twice.
            q = 0.0 if draft_id is None else float(literal.q(tokens[:position], 0.7**2)[draft_id])
            expected = min(1.0, q / float(np.exp(work.log_probs[start])))
            assert proposals.survival[0, 0, start] == pytest.approx(expected, abs=1e-4)
    assert 0 < sampled.accepted_at.sum() < greedy.drafted_at.sum()
    assert sampled.outside_share == greedy.outside_share > 0


@pytest.mark.parametrize("engine", ["vllm", "vllm@0.22", "vllm-v1"])
def test_vllm_does_not_sample_across_vocabularies(models, targets, engine):
    with pytest.raises(SpecprobeError, match="greedy") as refused:
        opened(models("piece"), targets("byte"), sampled=True, greedy=False, engine=engine)
    assert "\n" not in str(refused.value)
    assert not opened(models("piece"), targets("byte"), sampled=True, engine=engine).can_sample
    opened(models("byte", rows=320), targets("byte"), sampled=True, engine=engine)


def test_pard_needs_the_targets_own_ids(models, targets, tmp_path):
    folder = write_model(tmp_path / "pard", piece_backend(), pard_token=5)
    context = DraftContext(
        targets("byte"), targets("byte").tokenizer, LoadOptions(device="cpu"), resolve_profile("vllm"), 3, False
    )
    with pytest.raises(SpecprobeError, match="tokenizer is not the target's"):
        open_drafter(ModelSpec("pard", str(folder), {}), context)


# --- logs ---


def run(capsys, *arguments: str) -> tuple[int, dict[str, Any], str]:
    status = run_command((*arguments, "--json", "--depth", "3", "--device", "cpu"))
    out, err = capsys.readouterr()
    return status, json.loads(out) if out else {}, err


def write_rows(rows: list[dict[str, Any]]) -> str:
    Path("log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return "log.jsonl"


def id_rows(literal: Literal, vocab_size: int, **fields: Any) -> list[dict[str, Any]]:
    return [
        {"prompt_token_ids": w.prompt_ids.tolist(), "output_token_ids": w.output_ids.tolist(), **fields}
        for w in some_works(literal, vocab_size)
    ]


def test_rows_of_token_ids_need_neither_tokenizer_nor_target(capsys, models):
    """Ids are all there is to go by; the folder has no tokenizer that could be read."""
    folder = models("byte", seed=1)
    bare = Path("bare")
    bare.mkdir()
    for name in ("config.json", "generation_config.json", "model.safetensors"):
        (bare / name).symlink_to(folder / name)
    literal = Literal(folder, tokenizer("byte"), tokenizer("byte"), fallback=2)
    log = write_rows(id_rows(literal, 286))
    status, document, err = run(capsys, "analyze", log, "--responses", "logged", "--drafter", "draft:bare")
    assert status == 0, err
    (result,) = document["results"]
    assert (document["target"], result["config"]["vocabulary"], result["outside_share"]) == (None, "same", None)
    works = some_works(literal, 286)
    expected = replay(opened(bare, None).load(None), works, DEPTH)
    assert result["depths"][-1]["accepted_at"] == expected.accepted_at[:, -1].sum(axis=0).tolist()
    assert result["depths"][0]["accepted_tokens"] > 0


def test_a_log_of_ids_is_read_with_the_tokenizer_that_was_named(capsys, models):
    """The ids are those of the tokenizer named, not the draft model's."""
    folder = models("permuted", seed=1)
    literal = Literal(folder, tokenizer("byte"), tokenizer("permuted"), fallback=0)
    log = write_rows(id_rows(literal, 286))
    arguments = ["analyze", log, "--responses", "logged", "--drafter", f"draft:{folder}"]
    for whose in (["--tokenizer", str(models("byte"))], ["--target", str(models("byte"))]):
        status, document, err = run(capsys, *arguments, *whose)
        assert status == 0, err
        (result,) = document["results"]
        assert result["config"]["vocabulary"] == "mapped"
        assert result["depths"][0]["accepted_tokens"] > 5


@pytest.mark.parametrize("whose", ["--target", "--tokenizer"])
def test_logged_text_is_cut_by_the_model_that_wrote_it(capsys, models, whose):
    rows = [
        {"messages": [{"role": "user", "content": f"a b {i}"}, {"role": "assistant", "content": "c d " * (i + 2)}]}
        for i in range(3)
    ]
    arguments = ["analyze", write_rows(rows), "--responses", "logged", "--drafter", f"draft:{models('piece')}"]
    status, document, err = run(capsys, *arguments, whose, str(models("byte")))
    assert status == 0, err
    (result,) = document["results"]
    assert result["config"]["shared_tokens"] == SHARED
    assert "vocabulary_mapped" in {warning["code"] for warning in document["warnings"]}
    # Each response ends with a token that the draft model does not have.
    assert result["outside_share"] == pytest.approx(3 / result["depths"][0]["emitted_tokens"])
    assert (document["target"] is None) == (whose == "--tokenizer")


def test_sampled_drafts_over_a_log_need_the_target(capsys, models):
    folder = models("byte", seed=1)
    literal = Literal(folder, tokenizer("byte"), tokenizer("byte"), fallback=2)
    log = write_rows(id_rows(literal, 286, temperature=0.7))
    arguments = ["analyze", log, "--responses", "logged", "--drafter", f"draft:{folder}"]
    for sampling in ("sampled", "both"):
        status, document, err = run(capsys, *arguments, "--draft-sampling", sampling)
        assert (status, document) == (2, {})
        assert err.splitlines()[-1].startswith("error: --draft-sampling")
        assert "--target" in err.splitlines()[-1]
    status, document, err = run(capsys, *arguments, "--draft-sampling", "both", "--target", str(models("byte")))
    assert status == 0, err
    assert [result["draft_sampling"] for result in document["results"]] == ["greedy", "sampled"]
    assert run(capsys, *arguments, "--draft-sampling", "both", "--temperature", "0")[0] == 0


def test_ids_that_the_draft_model_does_not_have_are_not_drafted(capsys, models):
    """Without a tokenizer, too, ids beyond its rows neither crash nor count."""
    rows = [{"prompt_token_ids": [5, 9000, 7], "output_token_ids": [6, 9001, 5, 5, 2_000_000, 4]}]
    arguments = ["analyze", write_rows(rows), "--responses", "logged", "--drafter", f"draft:{models('byte')}"]
    status, document, err = run(capsys, *arguments)
    assert status == 0, err
    assert document["results"][0]["depths"][0]["emitted_tokens"] == 5


@pytest.mark.parametrize("kind", ["llama", "capped", "scaled", "head is not called", "head is not named"])
def test_the_head_runs_over_the_tokens_that_are_asked_for(kind):
    """And what a model does to its logits behind it stays done."""
    sizes = {"vocab_size": 40, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8}
    more = {"capped": {"final_logit_softcapping": 0.1}, "scaled": {"logits_scaling": 7.0}}.get(kind, {})
    config = AutoConfig.for_model(
        {"capped": "gemma2", "scaled": "granite"}.get(kind, "llama"), **sizes, **heads, **more
    )
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    head = model.get_output_embeddings()
    if kind == "head is not called":
        model.lm_head = torch.nn.Module()
        model.lm_head.forward = lambda states: states @ head.weight.T
        model.get_output_embeddings = lambda: head
    if kind == "head is not named":
        model.get_output_embeddings = lambda: None
    ids = torch.randint(40, (3, 7))
    row, column = torch.tensor([0, 0, 2]), torch.tensor([1, 6, 3])
    rows: list[int] = []
    head.register_forward_hook(lambda _head, _given, logits: rows.append(logits.shape[:-1].numel()))
    with torch.inference_mode():
        whole = model(input_ids=ids, use_cache=False).logits
        found = logits_at(model, ids, row, column)
        again = model(input_ids=ids, use_cache=False).logits
    assert torch.allclose(found, whole[row, column], atol=1e-6)
    assert whole.std() > 0.01
    assert (again == whole).all()
    assert rows == {"head is not called": [], "head is not named": [21, 21, 21]}.get(kind, [21, 3, 21])
