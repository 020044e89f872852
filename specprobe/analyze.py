"""`analyze`: from the user's prompts to a run. The stages, in the order in which data pass through them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from specprobe.acceptance import Acceptance
from specprobe.checks import check_acceptance, check_responses
from specprobe.drafters import Drafter, Limits, parse_drafter
from specprobe.errors import SpecprobeError
from specprobe.notices import Notice
from specprobe.options import AnalyzeOptions, check_depth_fits
from specprobe.profiles import Profile, outside_known_versions, resolve_profile
from specprobe.progress import Advance, Stages
from specprobe.replay import replay
from specprobe.responses import Sources, context_limit, get_responses
from specprobe.run import ResponseLengths, Run
from specprobe.trajectories import TrajectorySet
from specprobe.workload import Workload, read_workload

if TYPE_CHECKING:
    from specprobe.store import TrajectoryStore

DEFAULT_DRAFTERS = ("ngram", "suffix")


def analyze(options: AnalyzeOptions, stages: Stages, store: TrajectoryStore | None = None) -> Run:
    """Read prompts, get responses, replay every drafter over them. Responses are kept in `store` as they finish."""
    profile = resolve_profile(options.engine)
    drafters = _drafters(options, profile)
    workload = read_workload(options.prompts, **asdict(options.read))
    sources = get_responses(options, workload, stages, store)
    max_model_len = context_limit(options, sources.target)
    if max_model_len is not None:
        check_depth_fits(options.depth, max_model_len)
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


def _replays(
    drafters: Sequence[Drafter], sources: Sources, options: AnalyzeOptions, limits: Limits, stages: Stages
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


def _workload_record(options: AnalyzeOptions, workload: Workload, sources: Sources) -> dict[str, Any]:
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


def _settings_record(options: AnalyzeOptions, sources: Sources, max_model_len: int | None) -> dict[str, Any]:
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
    sources: Sources,
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
