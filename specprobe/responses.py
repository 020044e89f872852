"""Where the responses to replay come from: the target writes them now, or the log holds them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from specprobe.errors import SpecprobeError
from specprobe.notices import Notice, inert
from specprobe.options import ONE_TEMPERATURE, AnalyzeOptions
from specprobe.progress import Advance, Stages
from specprobe.prompt import Prompt
from specprobe.trajectories import TrajectorySet, generated_trajectories, logged_trajectories
from specprobe.trajectory import TokenIds, token_ids
from specprobe.workload import Workload

if TYPE_CHECKING:
    from specprobe.generate import Progress
    from specprobe.store import TrajectoryStore
    from specprobe.target import Target
    from specprobe.tokens import Tokenizer


@dataclass(frozen=True, slots=True)
class Origin:
    """Who the responses come from, known before there are any: the log, or a target that writes them now."""

    mode: Literal["generated", "logged"]
    temperatures: tuple[float, ...]
    target: Target | None
    tokenizer: Tokenizer | None
    notices: tuple[Notice, ...] = ()


@dataclass(frozen=True, slots=True)
class Sources:
    """Trajectories by temperature, and who they come from; `notices` hold the origin's, too."""

    origin: Origin
    sets: tuple[TrajectorySet, ...]
    mismatch: Mapping[str, Any] | None = None
    notices: tuple[Notice, ...] = ()


def open_origin(options: AnalyzeOptions, prompts: Sequence[Prompt], stages: Stages, *, model_free: bool) -> Origin:
    """Decide where responses come from and load the model or tokenizer that this takes.

    `model_free`: whether all drafters draft from the text alone; then an answered log needs no target.
    """
    if options.responses == "auto" and all(prompt.has_answer for prompt in prompts):
        if not model_free:
            unused = Notice(
                "answers_not_used",
                "every prompt has a logged answer, but a drafter with a model was named, so the target's own responses "
                "were generated and replayed; --responses logged replays the answers",
            )
            return _writing_origin(options, stages, unused)
        if len(options.temperatures or ()) > 1:
            raise SpecprobeError(ONE_TEMPERATURE)
        return _logged_origin(options, prompts, stages, model_free=model_free)
    if options.responses == "logged":
        return _logged_origin(options, prompts, stages, model_free=model_free)
    return _writing_origin(options, stages)


def get_responses(
    origin: Origin, options: AnalyzeOptions, workload: Workload, stages: Stages, store: TrajectoryStore | None
) -> Sources:
    """The responses to replay; raises SpecprobeError where there is none."""
    logged = origin.mode == "logged"
    sources = (
        _logged(origin, options, workload, stages) if logged else _generated(origin, options, workload, stages, store)
    )
    for trajectories in sources.sets:
        if not trajectories.trajectories:
            reasons = ", ".join(f"{reason} {n}" for reason, n in sorted(trajectories.skipped.items())) or "none given"
            remedy = "use --responses generate" if logged else "check the prompts against the model's context"
            raise SpecprobeError(f"no response to replay (skipped: {reasons}); {remedy}")
    return sources


def _writing_origin(options: AnalyzeOptions, stages: Stages, *notices: Notice) -> Origin:
    if options.tokenizer is not None:
        raise SpecprobeError(
            "--tokenizer: is for logged text, and here responses are generated; use --responses logged"
        )
    target = _load_target(options, stages)
    temperatures = (0.0,) if options.temperatures is None else options.temperatures
    return Origin("generated", temperatures, target, target.tokenizer, notices)


def _logged_origin(options: AnalyzeOptions, prompts: Sequence[Prompt], stages: Stages, *, model_free: bool) -> Origin:
    if not any(prompt.has_answer for prompt in prompts):
        raise SpecprobeError(f"none of {len(prompts)} prompts has a logged answer; use --responses generate")
    temperature, notices = _logged_temperature(options, prompts)
    if options.target is None and temperature > 0 and "sampled" in options.draft_samplings and not model_free:
        raise SpecprobeError(
            "--draft-sampling sampled: needs the target's probability of the logged tokens; name it with --target"
        )
    target = _load_target(options, stages) if options.target is not None else None
    tokenizer = target.tokenizer if target else None
    holds_text = any(p.token_ids is None or p.answer_token_ids is None for p in prompts if p.has_answer)
    # A draft model's vocabulary is held against the one named, also where rows hold ids.
    if tokenizer is None and (holds_text or (options.tokenizer is not None and not model_free)):
        from specprobe.tokens import load_tokenizer

        tokenizer = load_tokenizer(
            options.tokenizer,
            template_kwargs=options.template_kwargs,
            trust_remote_code=options.load.trust_remote_code,
        )
        if options.tokenizer is None:
            notices.append(
                Notice(
                    "tokenizer_not_named",
                    f"logged text was cut into tokens by {tokenizer.name}, which nobody named; another model's "
                    "tokens accept differently: name the one that wrote the log with --tokenizer or --target",
                )
            )
    return Origin("logged", (temperature,), target, tokenizer, tuple(notices))


def _logged(origin: Origin, options: AnalyzeOptions, workload: Workload, stages: Stages) -> Sources:
    """The log's own answers; a named target also judges whether it could have written them."""
    target, (temperature,) = origin.target, origin.temperatures
    found = logged_trajectories(
        workload.prompts, origin.tokenizer, temperature=temperature, max_model_len=context_limit(options, target)
    )
    if target is None or not found.trajectories:
        return Sources(origin, (found,), notices=origin.notices)
    _check_vocabulary((ids for t in found.trajectories for ids in (t.prompt_ids, t.output_ids)), target)
    from specprobe.mismatch import measure_mismatch

    stages.say(f"scoring {len(found.trajectories)} logged answers with {target.record.name}")
    scores = target.score(found.trajectories, temperature=temperature)
    scored = tuple(replace(t, log_probs=s.log_probs) for t, s in zip(found.trajectories, scores, strict=True))
    measured = measure_mismatch(scores, temperature)
    return Sources(
        origin,
        (replace(found, trajectories=scored),),
        asdict(measured) if measured else None,
        (*origin.notices, *(measured.notices() if measured else ())),
    )


def _generated(
    origin: Origin, options: AnalyzeOptions, workload: Workload, stages: Stages, store: TrajectoryStore | None
) -> Sources:
    """Responses that the target writes, one set for each temperature."""
    target = origin.target
    assert target is not None
    _check_vocabulary((token_ids(p.token_ids) for p in workload.prompts if p.token_ids is not None), target)
    sets = []
    for temperature in origin.temperatures:
        with stages.track(f"generating at temperature {temperature:g}", 1.0) as advance:
            found = generated_trajectories(
                workload.prompts,
                target,
                temperature=temperature,
                seed=options.seed,
                max_new_tokens=options.max_new_tokens,
                max_model_len=options.max_model_len,
                batch_size=options.batch_size,
                store=store,
                on_progress=_advancing(advance),
            )
        if found.reused:
            stages.say(f"{found.reused} responses at temperature {temperature:g} were there already")
        sets.append(found)
    return Sources(origin, tuple(sets), notices=origin.notices)


def _logged_temperature(options: AnalyzeOptions, prompts: Sequence[Prompt]) -> tuple[float, list[Notice]]:
    """The temperature of the log: what the user says, else what all rows say, else 0; and what does not fit it."""
    said = {prompt.settings["temperature"] for prompt in prompts if "temperature" in prompt.settings}
    all_say = all("temperature" in prompt.settings for prompt in prompts if prompt.has_answer)
    if options.temperatures is None and len(said) == 1 and all_say:
        return float(said.pop()), []
    temperature = options.temperatures[0] if options.temperatures else 0.0
    if not said - {temperature}:
        return temperature, []
    notice = Notice(
        "other_temperature",
        f"rows of the log say temperature {', '.join(f'{value:g}' for value in sorted(said))}, the result says "
        f"{temperature:g}: analyze each temperature by itself and name it with --temperature",
    )
    return temperature, [notice]


def _advancing(advance: Advance) -> Callable[[Progress], None]:
    """Tell a progress bar of the share of tokens that are written; the rest is an upper bound, so it jumps ahead."""

    def on_progress(progress: Progress) -> None:
        done = progress.tokens / max(progress.tokens_at_most, 1)
        advance(done, f"{progress.responses}/{progress.responses_wanted} responses")

    return on_progress


def _load_target(options: AnalyzeOptions, stages: Stages) -> Target:
    from specprobe.target import load_target

    stages.say(f"loading {inert(options.target or 'the embedded target', 200)}")
    return load_target(options.target, **asdict(options.load), template_kwargs=options.template_kwargs)


def context_limit(options: AnalyzeOptions, target: Target | None) -> int | None:
    """The smaller of what the user says and what the model has; None where neither is known."""
    limits = [options.max_model_len, target.record.max_position_embeddings if target else None]
    return min((limit for limit in limits if limit is not None), default=None)


def _check_vocabulary(token_ids: Iterable[TokenIds], target: Target) -> None:
    """Ids that the target does not have belong to another model's tokenizer."""
    largest = max((int(ids.max()) for ids in token_ids if ids.size), default=0)
    if largest >= target.record.vocab_size:
        raise SpecprobeError(
            f"token id {largest} is outside the vocabulary of {target.record.name} ({target.record.vocab_size} ids); "
            "these ids are another model's: name that one with --target"
        )
