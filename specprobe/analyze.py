"""`analyze`: from the user's prompts to a run. The stages, in the order in which data pass through them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from specprobe.acceptance import Acceptance
from specprobe.checks import check_acceptance, check_responses
from specprobe.drafters import DraftContext, Limits, Parsed, is_model_free, parse_drafter
from specprobe.drafting import open_all, replay_all
from specprobe.errors import SpecprobeError
from specprobe.notices import Notice
from specprobe.options import AnalyzeOptions, check_depth_fits
from specprobe.profiles import Profile, outside_known_versions, resolve_profile
from specprobe.progress import Stages
from specprobe.responses import Sources, context_limit, get_responses, open_origin
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
    model_free = all(is_model_free(drafter) for drafter in drafters)
    origin = open_origin(options, workload.prompts, stages, model_free=model_free)
    max_model_len = context_limit(options, origin.target)
    if max_model_len is not None:
        check_depth_fits(options.depth, max_model_len)
    context = DraftContext(
        target=origin.target,
        tokenizer=origin.tokenizer,
        options=options.load,
        profile=profile,
        depth=options.depth,
        sampled="sampled" in options.draft_samplings,
        temperatures=origin.temperatures,
    )
    # What does not fit is refused before hours go into responses.
    opened = open_all(drafters, context)
    sources = get_responses(origin, options, workload, stages, store)
    results, drafter_notices = replay_all(
        opened,
        [found.trajectories for found in sources.sets],
        context,
        options.draft_samplings,
        Limits(max_model_len, origin.tokenizer.eos_ids if origin.tokenizer else ()),
        stages,
    )
    return Run(
        workload=_workload_record(options, workload, sources),
        target=asdict(origin.target.record) if origin.target else None,
        engine_profile=profile.name,
        settings=_settings_record(options, sources, max_model_len),
        responses=tuple(
            _lengths(trajectories, temperature, origin.mode)
            for trajectories, temperature in zip(sources.sets, origin.temperatures, strict=True)
        ),
        results=tuple(sorted(results, key=lambda r: (origin.temperatures.index(r.temperature), r.adoption))),
        notices=(*_all_notices(options, profile, workload, sources, results), *drafter_notices),
    )


def _drafters(options: AnalyzeOptions, profile: Profile) -> list[Parsed]:
    drafters = [parse_drafter(spec, profile) for spec in _drafter_specs(options, profile)]
    if "sampled" in options.draft_samplings:
        if not profile.samples_drafts:
            raise SpecprobeError(
                f"--draft-sampling: {profile.name} drafts greedily only; use greedy, or name another --engine"
            )
        if all(is_model_free(drafter) for drafter in drafters) and "greedy" not in options.draft_samplings:
            raise SpecprobeError(
                "--draft-sampling sampled: n-gram and suffix propose tokens, not distributions; use greedy"
            )
    for number, drafter in enumerate(drafters):
        if drafter in drafters[:number]:
            raise SpecprobeError(f"--drafter: {drafter.name} is named twice with the same settings")
    return drafters


def _drafter_specs(options: AnalyzeOptions, profile: Profile) -> tuple[str, ...]:
    return options.drafters or tuple(name for name in DEFAULT_DRAFTERS if name in profile.drafters)


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
    if sources.origin.mode == "generated":
        generation = {
            "max_new_tokens": options.max_new_tokens,
            "batch_size": options.batch_size,
            "seed": options.seed,
        }
    return {
        "responses": sources.origin.mode,
        "depth": options.depth,
        "drafters": list(_drafter_specs(options, resolve_profile(options.engine))),
        "temperatures": list(sources.origin.temperatures),
        "engine": options.engine,
        "draft_samplings": list(options.draft_samplings),
        "max_model_len": max_model_len,
        "tokenizer": asdict(sources.origin.tokenizer.record) if sources.origin.tokenizer else None,
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
    engineless = {result.drafter for result in results} - {*profile.drafters, "python"}
    for name in sorted(engineless):
        notices.append(
            Notice(
                "drafter_not_offered",
                f"{profile.name} does not offer {name}: it was replayed all the same, by the rules of a plain chain",
            )
        )
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
