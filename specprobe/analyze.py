"""`analyze`: from the user's prompts to a run. The stages, in the order in which data pass through them."""

from __future__ import annotations

import sys
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from specprobe.acceptance import Acceptance
from specprobe.checks import is_degenerate_loop
from specprobe.drafters import (
    DEFAULT_DRAFTERS,
    DraftContext,
    Limits,
    Parsed,
    is_model_free,
    parse_drafter,
    reads_states,
)
from specprobe.drafters.suffix import SuffixDrafter
from specprobe.drafting import open_all, replay_all
from specprobe.entropy import summarize_entropy
from specprobe.errors import SpecprobeError
from specprobe.notices import Notice
from specprobe.options import AnalyzeOptions, check_depth_fits
from specprobe.precision import Looks, Precision, plan_looks, precision_notices
from specprobe.precision_report import look_in_words
from specprobe.profiles import DraftSampling, Profile, resolve_profile
from specprobe.progress import Stages
from specprobe.prompt import Prompt
from specprobe.responses import Origin, Sources, check_complete, context_limit, get_responses, open_origin
from specprobe.run import ResponseRecord, Run
from specprobe.run_notices import run_notices
from specprobe.sources import file_hashes
from specprobe.trajectories import TrajectorySet
from specprobe.trajectory import prompt_numbers
from specprobe.workload import Workload, read_workload
from specprobe.writing import WINDOW_BATCHES

if TYPE_CHECKING:
    from specprobe.store import TrajectoryStore
    from specprobe.target_distribution import TargetDistribution


def analyze(options: AnalyzeOptions, stages: Stages, store: TrajectoryStore | None = None) -> Run:
    """Read prompts, get responses, replay every drafter over them. Responses are kept in `store` as they finish."""
    profile = resolve_profile(options.engine)
    drafters = planned_drafters(options, profile)
    workload = read_workload(options.prompts, **asdict(options.read), stages=stages)
    # Now, since a log may have grown when the last response is written.
    files = file_hashes(options.prompts)
    model_free = all(is_model_free(drafter) for drafter in drafters)
    with closing(open_origin(options, profile, workload.prompts, stages, model_free=model_free)) as origin:
        max_model_len = context_limit(options, origin)
        if max_model_len is not None:
            check_depth_fits(options.depth, max_model_len)
        samplings = _draft_samplings(options, profile, origin, model_free=model_free)
        setup = _Setup(options, profile, tuple(drafters), samplings, max_model_len, stages, store)
        looks = planned_looks(options, drawn_from(options, workload.prompts, origin), logged=origin.mode == "logged")
        look, precision = _stopping_look(looks, origin, setup)
        sources, results = look.sources, look.results
        at_temperature = {result.temperature: result for result in results}
        return Run(
            workload=_workload_record(options, workload, files, sources),
            target=origin.record,
            engine_profile=profile.name,
            settings=_settings_record(setup, sources, precision),
            responses=tuple(
                _responses_record(found, at_temperature[temperature], origin, include_text=options.include_text)
                for found, temperature in zip(sources.sets, origin.temperatures, strict=True)
            ),
            results=tuple(sorted(results, key=lambda r: (origin.temperatures.index(r.temperature), r.adoption))),
            notices=(
                *run_notices(options, profile, workload, sources, results),
                *look.notices,
                *(precision_notices(precision) if precision else ()),
            ),
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Setup:
    """What is the same at every look."""

    options: AnalyzeOptions
    profile: Profile
    drafters: tuple[Parsed, ...]
    samplings: tuple[DraftSampling, ...]
    max_model_len: int | None
    stages: Stages
    store: TrajectoryStore | None


@dataclass(frozen=True, slots=True, eq=False)
class _Look:
    """The responses to some prompts, and what every drafter did on them."""

    sources: Sources
    results: tuple[Acceptance, ...]
    notices: tuple[Notice, ...]


def drawn_from(options: AnalyzeOptions, prompts: Sequence[Prompt], origin: Origin) -> Sequence[Prompt]:
    """What looks are made of: all prompts, or, where a precision is asked for, those that have a request."""
    # Only then are prompts held in memory, where a request tells them by which object they are.
    return prompts if options.precision is None else origin.requests.prompts


def planned_looks(options: AnalyzeOptions, prompts: Sequence[Prompt], *, logged: bool) -> Looks:
    """One look at everything, or, where a precision is asked for, looks at more and more of the prompts.

    What is generated goes through the target in windows of batches, which later looks leave as they are.
    """
    step = 1 if logged else WINDOW_BATCHES * options.batch_size
    return plan_looks(prompts, options.precision, logged=logged, step=step, seed=options.seed)


def _stopping_look(looks: Looks, origin: Origin, setup: _Setup) -> tuple[_Look, Precision | None]:
    """The first look at which everything is known well enough, or the last one."""
    for size in looks.sizes[:-1]:
        look = _look(looks, size, origin, setup)
        precision = looks.precision(look.results, size) if look else None
        if look and precision:
            setup.stages.say(look_in_words(precision))
            if precision.is_reached:
                return look, precision
    size = looks.sizes[-1]
    look = _look(looks, size, origin, setup)
    assert look is not None, "what is missing at the last look is refused"
    return look, looks.precision(look.results, size)


def _look(looks: Looks, size: int, origin: Origin, setup: _Setup) -> _Look | None:
    """Responses to `size` prompts, replayed with every drafter; None where a temperature has no response among them.

    What is missing at the last look is refused.
    """
    options, is_last = setup.options, size == looks.sizes[-1]
    if looks.asked is not None:
        origin = replace(origin, requests=origin.requests.of(looks.prompts_at(size)))
    context = DraftContext(
        target=origin.target,
        tokenizer=origin.tokenizer,
        options=options.load,
        profile=setup.profile,
        depth=options.depth,
        sampled="sampled" in setup.samplings,
        greedy="greedy" in setup.samplings,
        temperatures=origin.temperatures,
        distribution=_distribution(origin),
        elsewhere=origin.elsewhere is not None,
        states=origin.states,
    )
    # What does not fit is refused before hours go into responses.
    opened = open_all(setup.drafters, context)
    if origin.states is not None:
        origin.states.check([tap for drafter in opened for tap in drafter.taps])
    sources = get_responses(origin, options, setup.stages, setup.store)
    if not is_last and not sources.is_complete:
        return None
    check_complete(sources)
    if context.distribution is not None and not sources.is_of_target:
        context.distribution.disown()
    results, notices = replay_all(
        opened,
        [found.trajectories for found in sources.sets],
        context,
        setup.samplings,
        Limits(
            setup.max_model_len,
            _end_ids(sources),
            _response_limit(options, origin) if setup.profile.drafts_within_request else None,
        ),
        setup.stages,
        keeps_target=not is_last,
    )
    return _Look(sources, tuple(replace(one, interval_level=looks.interval_level) for one in results), notices)


def _end_ids(sources: Sources) -> tuple[int, ...]:
    """The tokens that end a response: the tokenizer's, else those that ended one."""
    if sources.origin.tokenizer is not None:
        return sources.origin.tokenizer.eos_ids
    works = (trajectory for found in sources.sets for trajectory in found.trajectories)
    return tuple(sorted({int(t.output_ids[-1]) for t in works if t.finish_reason == "stop"}))


def _draft_samplings(
    options: AnalyzeOptions, profile: Profile, origin: Origin, *, model_free: bool
) -> tuple[DraftSampling, ...]:
    """How models draft above temperature 0: as asked, else every way that the engine offers and the text allows."""
    if origin.elsewhere is not None and any(origin.temperatures) and not model_free:
        return _greedy_only(options, profile)
    if options.draft_samplings is not None:
        return options.draft_samplings
    # Sampled drafts are held against the target's probability of the text, which only a target knows.
    if origin.target is not None or not any(origin.temperatures):
        return profile.draft_samplings
    if not profile.greedy_drafts and not model_free:
        raise SpecprobeError(
            f"--engine {options.engine}: draws its drafts whenever the target samples, which takes the target's "
            "probability of the logged tokens; name it with --target"
        )
    return ("greedy",)


def _response_limit(options: AnalyzeOptions, origin: Origin) -> int | None:
    """Where responses were cut; None where a log does not say."""
    return options.max_new_tokens if origin.mode == "generated" else options.logged_cut_at


def _greedy_only(options: AnalyzeOptions, profile: Profile) -> tuple[DraftSampling, ...]:
    """Greedy drafts are held against the text alone; sampled ones against p of all tokens, which no server gives."""
    if "sampled" in (options.draft_samplings or ()) or not profile.greedy_drafts:
        asked = "--draft-sampling sampled" if options.draft_samplings else f"--engine {options.engine}"
        raise SpecprobeError(
            f"{asked}: drafts drawn from a distribution are held against the target's probability of every token, as "
            "it is after temperature and cuts, which is known only where the target runs here; use --draft-sampling "
            "greedy with an engine that has it, or a --target that is a model"
        )
    return ("greedy",)


def _distribution(origin: Origin) -> TargetDistribution | None:
    """p of the target, for when its text is there; None where it will not be known, or says nothing (temperature 0)."""
    if origin.target is None or not any(origin.temperatures) or not origin.target.shows_states:
        return None
    from specprobe.target_distribution import TargetDistribution

    return TargetDistribution(origin.target, origin.profile.processing)


def planned_drafters(options: AnalyzeOptions, profile: Profile) -> list[Parsed]:
    """The drafters to replay, as named or by default. Raises SpecprobeError for what the engine does not offer."""
    drafters = [parse_drafter(spec, profile) for spec in _drafter_specs(options, profile)]
    if not drafters:
        raise SpecprobeError(
            f"--drafter: name one; {profile.name} offers {', '.join(profile.drafters)}, "
            f"and none of them drafts without a model ({profile.not_replayed.get('ngram', 'no prompt lookup')})"
        )
    for sampling in options.draft_samplings or ():
        # At temperature 0 drafts are greedy everywhere.
        is_warm = options.asks_log or any(options.temperatures or ())
        if sampling not in profile.draft_samplings and (sampling == "sampled" or is_warm):
            other = "greedily only" if sampling == "sampled" else "from its distribution whenever the target samples"
            raise SpecprobeError(
                f"--draft-sampling: {profile.name} drafts {other}; leave it out, or name another --engine"
            )
    if options.draft_samplings == ("sampled",) and all(is_model_free(drafter) for drafter in drafters):
        raise SpecprobeError(
            "--draft-sampling sampled: n-gram and suffix propose tokens, not distributions; use greedy"
        )
    readers = [drafter for drafter in drafters if reads_states(drafter)]
    if readers and options.is_served and options.hidden_states is None:
        raise SpecprobeError(
            f"--drafter {readers[0].name}: drafts from the target's hidden states; vLLM writes them (method "
            "extract_hidden_states): add --hidden-states FOLDER and --target-checkpoint CHECKPOINT, and you are told "
            "how to start it; or name the checkpoint itself with --target where it fits, or another drafter"
        )
    if not readers and options.hidden_states is not None:
        raise SpecprobeError("--hidden-states: no drafter reads them; name a head with --drafter, or leave it out")
    for number, drafter in enumerate(drafters):
        if drafter in drafters[:number]:
            raise SpecprobeError(f"--drafter: {drafter.name} is named twice with the same settings")
    return [replace(d, in_flight=options.in_flight) if isinstance(d, SuffixDrafter) else d for d in drafters]


def _drafter_specs(options: AnalyzeOptions, profile: Profile) -> tuple[str, ...]:
    return options.drafters or tuple(name for name in DEFAULT_DRAFTERS if name in profile.drafters)


def _responses_record(
    found: TrajectorySet, result: Acceptance, origin: Origin, *, include_text: bool
) -> ResponseRecord:
    """`result`: of any drafter, over these responses."""
    works = found.trajectories
    lengths, samples, groups, entropies, looping = array("i"), array("i"), [], [], 0
    for trajectory in works:
        lengths.append(trajectory.prompt_ids.size)
        samples.append(trajectory.sample)
        groups.append(trajectory.group and sys.intern(trajectory.group))
        looping += is_degenerate_loop(trajectory.output_ids)
        if trajectory.entropy is not None:
            entropies.append(trajectory.entropy)
    return ResponseRecord(
        temperature=result.temperature,
        source=origin.mode,
        ids=result.ids,
        prompt_tokens=np.array(lengths, dtype=np.int32),
        output_tokens=result.output_tokens.astype(np.int32),
        prompts=prompt_numbers(works) if result.prompts is None else result.prompts,
        samples=np.array(samples, dtype=np.int32),
        groups=tuple(groups) if any(groups) else None,
        entropy=summarize_entropy(entropies),
        looping=looping,
        texts=tuple((origin.tokenizer.decode(t.prompt_ids), origin.tokenizer.decode(t.output_ids)) for t in works)
        if include_text and origin.tokenizer is not None
        else None,
        temperature_is_known=origin.temperature_is_known,
    )


def _workload_record(
    options: AnalyzeOptions, workload: Workload, files: Sequence[Mapping[str, str]], sources: Sources
) -> dict[str, Any]:
    """What was read, and what became of it: of every temperature's requests where the log says them."""
    sets = sources.sets if options.asks_log else sources.sets[:1]
    skipped = Counter(workload.skipped)
    for found in sets:
        skipped.update(found.skipped)
    if sources.origin.requests.refused:
        skipped["engine_refuses"] += sources.origin.requests.refused
    if sources.origin.of_other_models:
        skipped["other_model"] += sources.origin.of_other_models
    return {
        "sources": list(options.prompts),
        "files": list(files),
        "format": workload.format,
        "columns": workload.columns,
        "rows": workload.rows,
        "prompts": sum(trajectory.sample == 0 for found in sets for trajectory in found.trajectories),
        "skipped": dict(skipped),
        "duplicates": workload.duplicates,
        "distinct": workload.distinct,
        "inexact_answers": sum(found.inexact for found in sets),
        "structured_outputs": workload.structured_outputs,
        "special_token_prompts": sum(found.special_token_prompts for found in sets),
        "log_fit": list(sources.mismatches),
        "temperatures": [
            {"temperature": temperature, "prompts": count} for temperature, count in workload.temperature_counts.items()
        ],
        "grouped_by": options.read.group_by,
    }


def _settings_record(setup: _Setup, sources: Sources, precision: Precision | None) -> dict[str, Any]:
    """What has to be the same for two runs to be comparable, beside workload, target and engine rules."""
    options, profile = setup.options, setup.profile
    generation = {}
    if sources.origin.mode == "generated":
        generation = {
            "max_new_tokens": options.max_new_tokens,
            "batch_size": options.batch_size,
            "seed": options.seed,
            "samples": options.samples,
        }
    return {
        "responses": sources.origin.mode,
        "depth": options.depth,
        "drafters": list(_drafter_specs(options, profile)),
        "temperatures": list(sources.origin.temperatures),
        "temperatures_from_log": options.asks_log,
        "processors": asdict(options.processors),
        "processing_order": list(profile.processing.order),
        "engine": options.engine,
        "draft_samplings": list(setup.samplings),
        "draft_rules": {
            "one_hot": "p(draft)",
            "sampled": profile.sampled_drafts,
            "lossy_not_replayed": list(profile.lossy),
        },
        "max_model_len": setup.max_model_len,
        "tokenizer": asdict(sources.origin.tokenizer.record) if sources.origin.tokenizer else None,
        "first_turn": options.read.first_turn,
        "dedupe": options.read.dedupe,
        "max_prompts": options.read.max_prompts,
        **({"in_flight": options.in_flight} if options.in_flight > 1 else {}),
        **generation,
        **({"precision": precision.to_json()} if precision else {}),
    }
