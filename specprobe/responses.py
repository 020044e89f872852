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
class Sources:
    """Trajectories by temperature, and who they come from."""

    temperatures: tuple[float, ...]
    sets: tuple[TrajectorySet, ...]
    mode: Literal["generated", "logged"]
    target: Target | None
    tokenizer: Tokenizer | None
    mismatch: Mapping[str, Any] | None = None
    notices: tuple[Notice, ...] = ()


Before = Callable[["Target | None", "Tokenizer | None", tuple[float, ...]], None]
"""Called with target, tokenizer and temperatures when they are known and there are no responses yet."""


def get_responses(
    options: AnalyzeOptions,
    workload: Workload,
    stages: Stages,
    store: TrajectoryStore | None,
    *,
    model_free: bool,
    before: Before,
) -> Sources:
    """The responses to replay; raises SpecprobeError where there is none.

    `model_free`: whether all drafters draft from the text alone; then an answered log needs no target.
    """
    mode = options.responses
    answers_unused = False
    if mode == "auto":
        answers_unused = not model_free and all(prompt.has_answer for prompt in workload.prompts)
        all_logged = model_free and all(prompt.has_answer for prompt in workload.prompts)
        mode = "logged" if all_logged else "generate"
        if mode == "generate" and options.tokenizer is not None:
            raise SpecprobeError(
                "--tokenizer: is for logged text, and here responses are generated; use --responses logged"
            )
        if all_logged and len(options.temperatures or ()) > 1:
            raise SpecprobeError(ONE_TEMPERATURE)
    sources = (
        _logged(options, workload.prompts, stages, before, model_free=model_free)
        if mode == "logged"
        else _generated(options, workload, stages, store, before)
    )
    if answers_unused:
        notice = Notice(
            "answers_not_used",
            "every prompt has a logged answer, but a drafter with a model was named, so the target's own responses "
            "were generated and replayed; --responses logged replays the answers",
        )
        sources = replace(sources, notices=(*sources.notices, notice))
    for trajectories in sources.sets:
        if not trajectories.trajectories:
            reasons = ", ".join(f"{reason} {n}" for reason, n in sorted(trajectories.skipped.items())) or "none given"
            remedy = "use --responses generate" if mode == "logged" else "check the prompts against the model's context"
            raise SpecprobeError(f"no response to replay (skipped: {reasons}); {remedy}")
    return sources


def _logged(
    options: AnalyzeOptions, prompts: Sequence[Prompt], stages: Stages, before: Before, *, model_free: bool
) -> Sources:
    """The log's own answers; a named target also judges whether it could have written them."""
    if not any(prompt.has_answer for prompt in prompts):
        raise SpecprobeError(f"none of {len(prompts)} prompts has a logged answer; use --responses generate")
    temperature, notices = _logged_temperature(options, prompts)
    target = _load_target(options, stages) if options.target is not None else None
    tokenizer = target.tokenizer if target else None
    holds_text = any(p.token_ids is None or p.answer_token_ids is None for p in prompts if p.has_answer)
    if holds_text or (options.tokenizer is not None and not model_free):
        if options.tokenizer is not None or tokenizer is None:
            from specprobe.tokens import load_tokenizer

            tokenizer = load_tokenizer(
                options.tokenizer,
                template_kwargs=options.template_kwargs,
                trust_remote_code=options.load.trust_remote_code,
            )
        if options.tokenizer is None and target is None:
            notices.append(
                Notice(
                    "tokenizer_not_named",
                    f"logged text was cut into tokens by {tokenizer.name}, which nobody named; another model's "
                    "tokens accept differently: name the one that wrote the log with --tokenizer or --target",
                )
            )
    if target is None and temperature > 0 and "sampled" in options.draft_samplings and not model_free:
        raise SpecprobeError(
            "--draft-sampling sampled: needs the target's probability of the logged tokens; name it with --target"
        )
    before(target, tokenizer, (temperature,))
    found = logged_trajectories(
        prompts, tokenizer, temperature=temperature, max_model_len=context_limit(options, target)
    )
    mismatch = None
    if target is not None and found.trajectories:
        _check_vocabulary((ids for t in found.trajectories for ids in (t.prompt_ids, t.output_ids)), target)
        from specprobe.mismatch import measure_mismatch

        stages.say(f"scoring {len(found.trajectories)} logged answers with {target.record.name}")
        scores = target.score(found.trajectories, temperature=temperature)
        scored = tuple(replace(t, log_probs=s.log_probs) for t, s in zip(found.trajectories, scores, strict=True))
        found = replace(found, trajectories=scored)
        measured = measure_mismatch(scores, temperature)
        if measured is not None:
            mismatch = asdict(measured)
            notices += measured.notices()
    return Sources((temperature,), (found,), "logged", target, tokenizer, mismatch, tuple(notices))


def _generated(
    options: AnalyzeOptions, workload: Workload, stages: Stages, store: TrajectoryStore | None, before: Before
) -> Sources:
    """Responses that the target writes, one set for each temperature."""
    target = _load_target(options, stages)
    temperatures = (0.0,) if options.temperatures is None else options.temperatures
    before(target, target.tokenizer, temperatures)
    _check_vocabulary((token_ids(p.token_ids) for p in workload.prompts if p.token_ids is not None), target)
    sets = []
    for temperature in temperatures:
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
    return Sources(temperatures, tuple(sets), "generated", target, target.tokenizer)


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
