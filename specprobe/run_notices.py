"""What a user should know of a run beside its figures: of the log, the engine's rules, the options and the results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from specprobe.acceptance import Acceptance
from specprobe.checks import check_acceptance, check_responses
from specprobe.drafters import DEFAULT_DRAFTERS
from specprobe.notices import Notice
from specprobe.options import AnalyzeOptions
from specprobe.profiles import Profile, other_ngram_runner, outside_known_versions
from specprobe.responses import Sources
from specprobe.workload import Workload


def run_notices(
    options: AnalyzeOptions, profile: Profile, workload: Workload, sources: Sources, results: Sequence[Acceptance]
) -> tuple[Notice, ...]:
    """Each once, in the order in which things were done."""
    notices = (
        *workload.all_notices,
        *sources.notices,
        *_of_engine(options, profile, results),
        *_of_shared_trees(options, sources, results),
        *_of_options(options, sources),
        *_of_sampling(options, profile, sources),
        *_of_results(sources, results),
    )
    return tuple(dict.fromkeys(notices))


def _of_engine(options: AnalyzeOptions, profile: Profile, results: Sequence[Acceptance]) -> Iterator[Notice]:
    """What the engine does not offer, and where its rules may not be those that were replayed."""
    for name in sorted({result.drafter for result in results} - {*profile.drafters, "python"}):
        yield Notice(
            "drafter_not_offered",
            f"{profile.name} does not offer {name}: it was replayed all the same, by the rules of a plain chain",
        )
    missing = [name for name in DEFAULT_DRAFTERS if name not in profile.drafters]
    if missing and not options.drafters:
        yield Notice("drafter_not_offered", f"{profile.name} has no {', '.join(missing)}: left out")
    outside = outside_known_versions(options.engine)
    if outside is not None:
        yield Notice(
            "unknown_engine_version",
            f"{options.engine} is {outside} than the versions whose rules are known; those of {profile.name} were "
            "replayed and may differ: compare with that engine's own counters",
        )
    other_runner = other_ngram_runner(options.engine)
    if other_runner is not None and any(result.drafter == "ngram" for result in results):
        yield Notice(
            "two_ngram_runners",
            f"ngram: the rules of model runner V1 were replayed, as {options.engine} runs on a CPU; on a GPU it takes "
            f"runner V2, which copies the latest match and pads its drafts: --engine {other_runner}",
        )


def _of_shared_trees(options: AnalyzeOptions, sources: Sources, results: Sequence[Acceptance]) -> Iterator[Notice]:
    """Where suffix decoding's tree is not filled as a server would fill it."""
    if options.asks_log and len(sources.sets) > 1 and any(result.drafter == "suffix" for result in results):
        yield Notice(
            "suffix_tree_by_temperature",
            "suffix: each temperature begins with an empty shared tree, where a server has one for all of its "
            "requests; on it they would accept somewhat more",
        )
    hybrids = {result.drafter for result in results if result.drafter.startswith("hybrid:suffix+")}
    if options.in_flight > 1 and hybrids:
        yield Notice(
            "hybrid_in_flight",
            f"{', '.join(sorted(hybrids))}: replayed one request at a time, since --in-flight is for suffix alone",
        )


def _of_options(options: AnalyzeOptions, sources: Sources) -> Iterator[Notice]:
    """Options that change nothing here."""
    if options.read.group_by is not None and not any(t.group for found in sources.sets for t in found.trajectories):
        yield Notice("no_groups", "--group-by: the column is there, but holds no text or number that could be a label")
    if options.include_text and sources.origin.tokenizer is None:
        yield Notice(
            "text_not_known",
            "--include-text: rows of token ids have no text without a tokenizer; name it with --tokenizer",
        )
    if options.samples > 1 and not any(sources.origin.temperatures):
        yield Notice("samples_without_temperature", "--samples: at temperature 0 every response is the same")


def _of_sampling(options: AnalyzeOptions, profile: Profile, sources: Sources) -> Iterator[Notice]:
    """What is special above temperature 0."""
    if not any(sources.origin.temperatures):
        return
    for caveat in profile.caveats:
        yield Notice("engine_caveat", f"{profile.name}: {caveat}")
    if profile.own_truncation and not options.processors.truncates:
        yield Notice(
            "engine_truncates",
            f"{profile.name} cuts to {profile.own_truncation} where a request does not say; here nothing was cut, so "
            "give these settings if you serve with them",
        )
    if sources.origin.elsewhere is not None:
        yield Notice(
            "target_distribution_unknown",
            "another engine wrote the responses, so the target's probabilities above temperature 0 are not known: "
            "drafts are greedy, and there are no estimates of lower variance",
        )


def _of_results(sources: Sources, results: Sequence[Acceptance]) -> Iterator[Notice]:
    """Oddities of the responses, then of what was accepted."""
    temperatures = sources.origin.temperatures
    for temperature, found in zip(temperatures, sources.sets, strict=True):
        where = f"temperature {temperature:g}: " if len(temperatures) > 1 else ""
        yield from found.notices
        yield from check_responses(found.trajectories, where)
    for result in results:
        yield from check_acceptance(result, temperature_is_known=sources.origin.temperature_is_known)
