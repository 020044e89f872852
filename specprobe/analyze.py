"""`analyze`: from the user's prompts to a run. The stages, in the order in which data pass through them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from specprobe.acceptance import Acceptance
from specprobe.checks import check_acceptance, check_responses
from specprobe.drafters import DraftContext, Limits, OpenDrafter, Parsed, is_model_free, parse_drafter
from specprobe.drafting import open_all, replay_all
from specprobe.errors import SpecprobeError
from specprobe.notices import Notice
from specprobe.options import AnalyzeOptions, check_depth_fits
from specprobe.profiles import Profile, outside_known_versions, resolve_profile
from specprobe.progress import Stages
from specprobe.responses import Sources, context_limit, get_responses
from specprobe.run import ResponseLengths, Run
from specprobe.trajectories import TrajectorySet
from specprobe.workload import Workload, read_workload

if TYPE_CHECKING:
    from specprobe.store import TrajectoryStore
    from specprobe.target import Target
    from specprobe.tokens import Tokenizer

DEFAULT_DRAFTERS = ("ngram", "suffix")


def analyze(options: AnalyzeOptions, stages: Stages, store: TrajectoryStore | None = None) -> Run:
    """Read prompts, get responses, replay every drafter over them. Responses are kept in `store` as they finish."""
    profile = resolve_profile(options.engine)
    drafters = _drafters(options, profile)
    workload = read_workload(options.prompts, **asdict(options.read))
    opened: list[OpenDrafter] = []
    contexts: list[DraftContext] = []

    def open_drafters(target: Target | None, tokenizer: Tokenizer | None, temperatures: tuple[float, ...]) -> None:
        """Whatever does not fit is refused before hours go into responses."""
        sampled = "sampled" in options.draft_samplings
        contexts.append(DraftContext(target, tokenizer, options.load, profile, options.depth, sampled, temperatures))
        opened.extend(open_all(drafters, contexts[0]))

    model_free = all(is_model_free(drafter) for drafter in drafters)
    sources = get_responses(options, workload, stages, store, model_free=model_free, before=open_drafters)
    max_model_len = context_limit(options, sources.target)
    if max_model_len is not None:
        check_depth_fits(options.depth, max_model_len)
    limits = Limits(max_model_len, sources.tokenizer.eos_ids if sources.tokenizer else ())
    results, drafter_notices = replay_all(
        opened,
        [found.trajectories for found in sources.sets],
        contexts[0],
        options.draft_samplings,
        limits,
        stages,
    )
    return Run(
        workload=_workload_record(options, workload, sources),
        target=asdict(sources.target.record) if sources.target else None,
        engine_profile=profile.name,
        settings=_settings_record(options, sources, max_model_len),
        responses=tuple(
            _lengths(trajectories, temperature, sources.mode)
            for trajectories, temperature in zip(sources.sets, sources.temperatures, strict=True)
        ),
        results=tuple(sorted(results, key=lambda r: (sources.temperatures.index(r.temperature), r.adoption))),
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
        "draft_samplings": list(options.draft_samplings),
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
