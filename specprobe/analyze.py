"""`analyze`: from the user's prompts to a run. The stages, in the order in which data pass through them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from specprobe import defaults
from specprobe.acceptance import Acceptance
from specprobe.checks import check_acceptance, check_responses
from specprobe.drafters import Drafter, Limits, parse_drafter
from specprobe.errors import SpecprobeError
from specprobe.notices import Notice, inert
from specprobe.profiles import Profile, outside_known_versions, resolve_profile
from specprobe.progress import Advance, Stages
from specprobe.prompt import Prompt
from specprobe.replay import replay
from specprobe.run import ResponseLengths, Run
from specprobe.scan import ReadOptions
from specprobe.trajectories import TrajectorySet, generated_trajectories, logged_trajectories
from specprobe.trajectory import TokenIds, token_ids
from specprobe.workload import Workload, read_workload

if TYPE_CHECKING:
    from specprobe.generate import Progress
    from specprobe.store import TrajectoryStore
    from specprobe.target import Target
    from specprobe.tokens import Tokenizer

MAX_DEPTH = 64
_ONE_TEMPERATURE = (
    "--temperature: logged answers were sampled at one temperature; give that one, or --responses generate"
)
DEFAULT_DRAFTERS = ("ngram", "suffix")
Responses = Literal["auto", "generate", "logged"]


@dataclass(frozen=True, slots=True)
class AnalyzeOptions:
    """Everything that decides what `analyze` does; refused where it makes no sense, before any work is done.

    `target`: a Hub id or folder, None for the embedded one. `temperatures`: None for 0 where responses are
    generated, and for what the log says where they are logged. `tokenizer`: for logged text, None for the target's.
    """

    prompts: tuple[str, ...]
    target: str | None = None
    tokenizer: str | None = None
    drafters: tuple[str, ...] = ()
    depth: int = defaults.DEPTH
    temperatures: tuple[float, ...] | None = None
    responses: Responses = "auto"
    engine: str = defaults.ENGINE
    draft_sampling: Literal["greedy", "sampled", "both"] = "greedy"
    dtype: str | None = None
    device: str | None = None
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    max_new_tokens: int = defaults.MAX_NEW_TOKENS
    max_model_len: int | None = None
    batch_size: int = defaults.BATCH_SIZE
    seed: int = 0
    read: ReadOptions = field(default_factory=ReadOptions)

    def __post_init__(self) -> None:
        if not 1 <= self.depth <= MAX_DEPTH:
            raise SpecprobeError(f"--depth {self.depth}: must be from 1 to {MAX_DEPTH}")
        self._check_temperatures()
        for name, value in (("max-new-tokens", self.max_new_tokens), ("batch-size", self.batch_size)):
            if value < 1:
                raise SpecprobeError(f"--{name} {value}: must be at least 1")
        if self.seed < 0:
            raise SpecprobeError(f"--seed {self.seed}: must not be negative")
        if self.max_model_len is not None and self.max_model_len > 2**31:
            raise SpecprobeError(f"--max-model-len {self.max_model_len}: must be at most {2**31}")
        for name, text in (("target", self.target), ("tokenizer", self.tokenizer)):
            if text == "":
                raise SpecprobeError(f"--{name}: is empty; give a folder or a Hub id, or leave it out")
        if self.tokenizer is not None and self.responses == "generate":
            raise SpecprobeError("--tokenizer: is for logged text; what is generated is cut by the target's own")
        if self.max_model_len is not None:
            _check_depth_fits(self.depth, self.max_model_len)
        if self.target is not None and self.tokenizer is not None:
            raise SpecprobeError("--tokenizer: the target brings its own; leave --tokenizer or --target out")
        if self.draft_sampling == "sampled":
            raise SpecprobeError(
                "--draft-sampling sampled: n-gram and suffix propose tokens, not distributions; use greedy"
            )

    def _check_temperatures(self) -> None:
        if self.temperatures is None:
            return
        if not self.temperatures:
            raise SpecprobeError("--temperature: name at least one")
        for temperature in self.temperatures:
            # vLLM raises anything between to 0.01.
            if temperature != 0 and not 0.01 <= temperature <= 10:
                raise SpecprobeError(f"--temperature {temperature:g}: must be 0, or from 0.01 to 10")
        if len(set(self.temperatures)) < len(self.temperatures):
            raise SpecprobeError("--temperature: a value occurs twice")
        if self.responses == "logged" and len(self.temperatures) > 1:
            raise SpecprobeError(_ONE_TEMPERATURE)


@dataclass(frozen=True, slots=True)
class _Sources:
    """Trajectories by temperature, and who they come from."""

    temperatures: tuple[float, ...]
    sets: tuple[TrajectorySet, ...]
    mode: Literal["generated", "logged"]
    target: Target | None
    tokenizer: Tokenizer | None
    mismatch: Mapping[str, Any] | None = None
    notices: tuple[Notice, ...] = ()


def analyze(options: AnalyzeOptions, stages: Stages, store: TrajectoryStore | None = None) -> Run:
    """Read prompts, get responses, replay every drafter over them. Responses are kept in `store` as they finish."""
    profile = resolve_profile(options.engine)
    drafters = _drafters(options, profile)
    workload = read_workload(options.prompts, **asdict(options.read))
    sources = _responses(options, workload, stages, store)
    max_model_len = _context_limit(options, sources.target)
    if max_model_len is not None:
        _check_depth_fits(options.depth, max_model_len)
    limits = Limits(max_model_len, sources.tokenizer.eos_ids if sources.tokenizer else ())
    results = _replays(drafters, sources, options, limits, stages)
    return Run(
        workload=_workload_record(options, workload, sources),
        target=asdict(sources.target.record) if sources.target else None,
        engine_profile=profile.name,
        settings=_settings_record(options, sources, max_model_len),
        responses=tuple(
            _lengths(trajectories, temperature, sources.mode)
            for trajectories, temperature in zip(sources.sets, sources.temperatures, strict=True)
        ),
        results=results,
        notices=_all_notices(options, profile, workload, sources, results),
    )


def _check_depth_fits(depth: int, max_model_len: int) -> None:
    # A round needs a prompt token, the sampled one, the drafts and the bonus token.
    if depth + 3 > max_model_len:
        raise SpecprobeError(
            f"--depth {depth}: does not fit a context of {max_model_len} tokens; lower it or raise --max-model-len"
        )


def _context_limit(options: AnalyzeOptions, target: Target | None) -> int | None:
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


def _drafters(options: AnalyzeOptions, profile: Profile) -> list[Drafter]:
    drafters = [parse_drafter(spec, profile) for spec in _drafter_specs(options, profile)]
    seen: list[tuple[str, Mapping[str, Any]]] = []
    for drafter in drafters:
        if (drafter.name, drafter.config) in seen:
            raise SpecprobeError(f"--drafter: {drafter.name} is named twice with the same settings")
        seen.append((drafter.name, drafter.config))
    return drafters


def _drafter_specs(options: AnalyzeOptions, profile: Profile) -> tuple[str, ...]:
    return options.drafters or tuple(name for name in DEFAULT_DRAFTERS if name in profile.drafters)


def _responses(options: AnalyzeOptions, workload: Workload, stages: Stages, store: TrajectoryStore | None) -> _Sources:
    mode = options.responses
    if mode == "auto":
        all_logged = all(prompt.has_answer for prompt in workload.prompts)
        mode = "logged" if all_logged else "generate"
        if all_logged and len(options.temperatures or ()) > 1:
            raise SpecprobeError(_ONE_TEMPERATURE)
    sources = (
        _logged(options, workload.prompts, stages) if mode == "logged" else _generated(options, workload, stages, store)
    )
    for trajectories in sources.sets:
        if not trajectories.trajectories:
            reasons = ", ".join(f"{reason} {n}" for reason, n in sorted(trajectories.skipped.items())) or "none given"
            remedy = "use --responses generate" if mode == "logged" else "check the prompts against the model's context"
            raise SpecprobeError(f"no response to replay (skipped: {reasons}); {remedy}")
    return sources


def _logged(options: AnalyzeOptions, prompts: Sequence[Prompt], stages: Stages) -> _Sources:
    """The log's own answers; a named target also judges whether it could have written them."""
    if not any(prompt.has_answer for prompt in prompts):
        raise SpecprobeError(f"none of {len(prompts)} prompts has a logged answer; use --responses generate")
    temperature, notices = _logged_temperature(options, prompts)
    target = _load_target(options, stages) if options.target is not None else None
    tokenizer = target.tokenizer if target else None
    if any(prompt.token_ids is None or prompt.answer_token_ids is None for prompt in prompts if prompt.has_answer):
        if options.tokenizer is not None or tokenizer is None:
            from specprobe.tokens import load_tokenizer

            tokenizer = load_tokenizer(options.tokenizer, template_kwargs=options.template_kwargs)
        if options.tokenizer is None and target is None:
            notices.append(
                Notice(
                    "tokenizer_not_named",
                    f"logged text was cut into tokens by {tokenizer.name}, which nobody named; another model's "
                    "tokens accept differently: name the one that wrote the log with --tokenizer or --target",
                )
            )
    found = logged_trajectories(
        prompts, tokenizer, temperature=temperature, max_model_len=_context_limit(options, target)
    )
    mismatch = None
    if target is not None and found.trajectories:
        _check_vocabulary((ids for t in found.trajectories for ids in (t.prompt_ids, t.output_ids)), target)
        from specprobe.mismatch import measure_mismatch

        stages.say(f"scoring {len(found.trajectories)} logged answers with {target.record.name}")
        measured = measure_mismatch(target.score(found.trajectories, temperature=temperature), temperature)
        if measured is not None:
            mismatch = asdict(measured)
            notices += measured.notices()
    return _Sources((temperature,), (found,), "logged", target, tokenizer, mismatch, tuple(notices))


def _generated(options: AnalyzeOptions, workload: Workload, stages: Stages, store: TrajectoryStore | None) -> _Sources:
    """Responses that the target writes, one set for each temperature."""
    target = _load_target(options, stages)
    _check_vocabulary((token_ids(p.token_ids) for p in workload.prompts if p.token_ids is not None), target)
    sets = []
    temperatures = (0.0,) if options.temperatures is None else options.temperatures
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
    return _Sources(temperatures, tuple(sets), "generated", target, target.tokenizer)


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
    return load_target(
        options.target, device=options.device, dtype=options.dtype, template_kwargs=options.template_kwargs
    )


def _replays(
    drafters: Sequence[Drafter], sources: _Sources, options: AnalyzeOptions, limits: Limits, stages: Stages
) -> tuple[Acceptance, ...]:
    results = []
    for found in sources.sets:
        for drafter in drafters:
            with stages.track(f"replaying {drafter.name}", len(found.trajectories)) as advance:
                on_response = _counting(advance)
                results.append(
                    replay(drafter, found.trajectories, options.depth, limits=limits, on_response=on_response)
                )
    return tuple(results)


def _counting(advance: Advance) -> Callable[[int], None]:
    return lambda done: advance(done, "")


def _lengths(found: TrajectorySet, temperature: float, source: str) -> ResponseLengths:
    return ResponseLengths(
        temperature=temperature,
        source=source,
        ids=tuple(trajectory.id for trajectory in found.trajectories),
        prompt_tokens=np.array([trajectory.prompt_ids.size for trajectory in found.trajectories], dtype=np.int32),
        output_tokens=np.array([trajectory.output_ids.size for trajectory in found.trajectories], dtype=np.int32),
    )


def _workload_record(options: AnalyzeOptions, workload: Workload, sources: _Sources) -> dict[str, Any]:
    skipped = dict(workload.skipped)
    for reason, count in sources.sets[0].skipped.items():
        skipped[reason] = skipped.get(reason, 0) + count
    return {
        "sources": list(options.prompts),
        "format": workload.format,
        "columns": workload.columns,
        "rows": workload.rows,
        "prompts": len(sources.sets[0].trajectories),
        "skipped": skipped,
        "duplicates": workload.duplicates,
        "distinct": workload.distinct,
        "inexact_answers": sources.sets[0].inexact,
        "structured_outputs": workload.structured_outputs,
        "special_token_prompts": sources.sets[0].special_token_prompts,
        "log_fit": sources.mismatch,
    }


def _settings_record(options: AnalyzeOptions, sources: _Sources, max_model_len: int | None) -> dict[str, Any]:
    """What has to be the same for two runs to be comparable, beside workload, target and engine rules."""
    generation = {}
    if sources.mode == "generated":
        generation = {
            "max_new_tokens": options.max_new_tokens,
            "batch_size": options.batch_size,
            "seed": options.seed,
        }
    return {
        "responses": sources.mode,
        "depth": options.depth,
        "drafters": list(_drafter_specs(options, resolve_profile(options.engine))),
        "temperatures": list(sources.temperatures),
        "engine": options.engine,
        "max_model_len": max_model_len,
        "tokenizer": asdict(sources.tokenizer.record) if sources.tokenizer else None,
        "first_turn": options.read.first_turn,
        "dedupe": options.read.dedupe,
        "max_prompts": options.read.max_prompts,
        **generation,
    }


def _all_notices(
    options: AnalyzeOptions,
    profile: Profile,
    workload: Workload,
    sources: _Sources,
    results: Sequence[Acceptance],
) -> tuple[Notice, ...]:
    notices = [*workload.all_notices, *sources.notices]
    missing = [name for name in DEFAULT_DRAFTERS if name not in profile.drafters]
    if missing and not options.drafters:
        notices.append(Notice("drafter_not_offered", f"{profile.name} has no {', '.join(missing)}: left out"))
    outside = outside_known_versions(options.engine)
    if outside is not None:
        notices.append(
            Notice(
                "unknown_engine_version",
                f"{options.engine} is {outside} than the versions whose rules are known; those of {profile.name} were "
                "replayed and may differ: compare with that engine's own counters",
            )
        )
    for found in sources.sets:
        notices += [*found.notices, *check_responses(found.trajectories)]
    for result in results:
        notices += check_acceptance(result)
    return tuple(dict.fromkeys(notices))
