"""What was chosen of a run, in the form that an engine, a simulator or another tool takes: `export --engine`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from specprobe.acceptance import Acceptance, DepthTotals
from specprobe.documents import read_own_document
from specprobe.drafters import MODEL_FREE
from specprobe.errors import SpecprobeError
from specprobe.export import (
    WRITERS,
    EngineRefusesError,
    Schedule,
    Settings,
    Speculation,
    command_line,
    engine_family,
    engine_settings,
)
from specprobe.notices import Notice, inert
from specprobe.profiles import Profile, is_known_engine, known_engines, outside_known_versions, resolve_profile
from specprobe.recommendation_document import SCHEMA as RECOMMENDATION_SCHEMA
from specprobe.result_choice import Choice, choose_result
from specprobe.run import Run

SCHEMA = "specprobe.configuration/1"
SYNTHETIC = "vllm-synthetic"
# What NVIDIA's Model-Optimizer calls the first version of speculation_profile.json (its pull request 2247).
PROFILE_SCHEMA_VERSION = "1.0"
# aiconfigurator knows depths of MTP up to here.
DEEPEST_NEXTN = 5
RATE_DIGITS = 6


@dataclass(frozen=True, slots=True, eq=False)
class Exported:
    """One result at one depth, for one consumer.

    `kind`: what was asked for, without its version; `engine_profile`: whose settings these are, None for consumers that
    are no engine. `settings`: as data; `text`: what to type, or what a file is to hold.
    """

    kind: str
    engine_profile: str | None
    acceptance: Acceptance
    depth: int
    run: Run
    settings: Mapping[str, Any]
    text: str
    notices: tuple[Notice, ...]

    def to_json(self) -> dict[str, Any]:
        """The `specprobe.configuration/1` document."""
        return {
            "schema": SCHEMA,
            "kind": self.kind,
            "engine_profile": self.engine_profile,
            "run_digest": self.run.digest,
            "replayed_profile": self.run.engine_profile,
            "drafter": self.acceptance.drafter,
            "config": dict(self.acceptance.config),
            "draft_sampling": self.acceptance.draft_sampling,
            "temperature": self.acceptance.temperature,
            "depth": self.depth,
            "settings": dict(self.settings),
            "text": self.text,
            "warnings": [{"code": notice.code, "message": notice.message} for notice in self.notices],
        }


@dataclass(frozen=True, slots=True, eq=False)
class _Chosen:
    acceptance: Acceptance
    depth: int
    schedule: Schedule
    notices: tuple[Notice, ...]


def export_configuration(run: Run, kind: str, choice: Choice, recommendation: Path | None = None) -> Exported:
    """The chosen result as `kind` takes it: an engine, `vllm-synthetic`, with or without @VERSION, or another consumer.

    A recommendation chooses by itself, with the depth by batch; else `choice` does, as for `gate`. Raises
    SpecprobeError where the kind is not known or nothing is chosen, EngineRefusesError for what is not taken.
    """
    name, _, version = kind.partition("@")
    other = _OTHER_KINDS.get(name)
    if other and version:
        raise SpecprobeError(f"--engine {inert(kind)}: {name} has no versions; leave out @{inert(version)}")
    # Resolved before a result is chosen, so that a misspelt name is what is complained about.
    if other is None and name != SYNTHETIC and not is_known_engine(name):
        raise SpecprobeError(
            f"--engine {inert(kind)!r}: not known; there are {', '.join((*known_engines(), SYNTHETIC))}, each with or "
            f"without @VERSION, and {', '.join(_OTHER_KINDS)}"
        )
    profile = None if other else resolve_profile(_engine(run, name, version))
    chosen = _by_recommendation(run, recommendation) if recommendation else _by_choice(run, choice)
    if other:
        settings, text, notices = other(run, chosen)
        return Exported(name, None, chosen.acceptance, chosen.depth, run, settings, text, (*chosen.notices, *notices))
    assert profile is not None
    acceptance = chosen.acceptance
    try:
        settings = _settings(run, profile, chosen, name, version)
    except EngineRefusesError as error:
        is_open = recommendation is None and choice.drafter is None
        further = _taken_instead(run, profile, acceptance) if is_open else ""
        raise EngineRefusesError(f"{error}{further}") from None
    notices = (
        *chosen.notices,
        *_other_rules(run, profile.name),
        *_version_notices(kind),
        *(_synthetic_notices(acceptance) if name == SYNTHETIC else ()),
    )
    return Exported(
        name,
        profile.name,
        acceptance,
        chosen.depth,
        run,
        settings,
        command_line(engine_family(profile.engine), settings),
        notices,
    )


def _settings(run: Run, profile: Profile, chosen: _Chosen, name: str, version: str) -> Settings:
    """What the engine takes. Raises EngineRefusesError."""
    acceptance = chosen.acceptance
    if acceptance.drafter == "ngram" in profile.drafters and _looks_up_otherwise(run, profile):
        raise EngineRefusesError(
            f"{profile.name} looks n-grams up by other rules than {run.engine_profile}, whose were replayed, so it "
            f"accepts otherwise; analyze with --engine {profile.name} --drafter {_ngram_of(profile, acceptance)}"
        )
    drafts_greedily = acceptance.draft_sampling == "greedy" and acceptance.drafter not in MODEL_FREE
    if acceptance.temperature and drafts_greedily and not profile.greedy_drafts:
        raise EngineRefusesError(f"{profile.name} samples its drafts; choose the result with sampled drafts")
    return engine_settings(
        profile,
        Speculation(acceptance.drafter, acceptance.config, chosen.depth, chosen.schedule, acceptance.draft_sampling),
        version=version or None,
        synthetic_rates=partial(synthetic_rates, acceptance) if name == SYNTHETIC else None,
    )


def _looks_up_otherwise(run: Run, profile: Profile) -> bool:
    return engine_family(profile.engine) != engine_family(resolve_profile(run.engine_profile).engine)


def _ngram_of(profile: Profile, acceptance: Acceptance) -> str:
    """The n-gram drafter as `analyze` takes it for this engine: not all let users set the shortest lookup."""
    shortest, longest = (acceptance.config.get(key) for key in ("min", "max"))
    has_range = profile.has_ngram_min and profile.ngram is not None and profile.ngram.copy_limit is None
    if has_range and shortest and longest:
        return f"ngram:min={shortest},max={longest}"
    return f"ngram:max={longest}" if longest else "ngram"


def _taken_instead(run: Run, profile: Profile, refused: Acceptance) -> str:
    """Which other drafters of the run this engine takes, or what to do where there is none."""
    engine = engine_family(profile.engine)
    taken = [
        result.label
        for result in run.results
        if result.temperature == refused.temperature
        and result.drafter != refused.drafter
        and result.drafter in profile.drafters
        and (engine, result.drafter) in WRITERS
        and not (result.drafter == "ngram" and _looks_up_otherwise(run, profile))
    ]
    if taken:
        named = ", ".join(inert(label, 60) for label in dict.fromkeys(taken))
        return f"; of this run it takes {named}: name one with --drafter"
    return "" if refused.drafter == "ngram" else f"; analyze with --engine {profile.name} and a drafter that it offers"


def synthetic_rates(acceptance: Acceptance, depth: int) -> tuple[float, ...]:
    """P(positions 1..i accepted) [depth], products of conditional acceptance, for vLLM's synthetic rejection sampling.

    Rounds that the end of a text cuts short are left out of them: a server counts what those accepted. Raises
    EngineRefusesError where rounds have drafts of their own length, which vLLM's rates cannot say.
    """
    if not acceptance.fixed_length:
        raise EngineRefusesError(
            f"{inert(acceptance.label, 60)} chooses its own draft length, which depends on the text; synthetic "
            "acceptance writes another text, so no rates stand for it; choose a drafter that always fills its depth"
        )
    rates: list[float] = []
    for share in acceptance.totals(depth).conditional:
        rates.append(round((rates[-1] if rates else 1.0) * (share or 0.0), RATE_DIGITS))
    return tuple(rates)


def _engine(run: Run, name: str, version: str) -> str:
    """With a version; where none is named and the run's rules are this engine's, the run's."""
    name = "vllm" if name == SYNTHETIC else name
    if version:
        return f"{name}@{version}"
    return run.engine_profile if engine_family(run.engine_profile.partition("@")[0]) == name else name


def _by_choice(run: Run, choice: Choice) -> _Chosen:
    found = choose_result(run, choice)
    notices = []
    several = sum(result.temperature == found.acceptance.temperature for result in run.results) > 1
    if choice.depth is None or (choice.drafter is None and several):
        notices.append(
            Notice(
                "chosen_by_tokens_per_round",
                f"{inert(found.name, 80)} at depth {found.depth} writes the most tokens per round; what a round costs "
                "is not in that: name what `recommend --json` wrote with --recommendation, or --drafter and --depth",
            )
        )
    return _Chosen(found.acceptance, found.depth, (), tuple(notices))


def _by_recommendation(run: Run, path: Path) -> _Chosen:
    """The first verdict to speculate, which is the one that `recommend` writes settings for."""
    document = read_own_document(path, RECOMMENDATION_SCHEMA, "name what `recommend --json` wrote", "recommend again")
    if document.get("run_digest") != run.digest:
        raise SpecprobeError("--recommendation: was made from another run; recommend from this one")
    try:
        verdict = next((v for v in document["by_concurrency"] if v["verdict"] == "speculate"), None)
        if verdict is None:
            raise SpecprobeError(
                f"--recommendation {path}: says for no concurrency to speculate; choose with --drafter and --depth "
                "to export all the same"
            )
        best = verdict["options"][0]
        wanted = (best["drafter"], best["config"], best["draft_sampling"], document["temperature"])
        found = next((a for a in run.results if _identity(a) == wanted), None)
        depth = int(best["depth"])
        schedule = tuple((int(first), int(last), int(k)) for first, last, k in document["schedule"])
        if found is None or not 1 <= depth <= max(depth, *(row[2] for row in schedule)) <= found.depth:
            raise ValueError("its best option is not in the run")
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise SpecprobeError(
            f"{path}: damaged recommendation ({type(error).__name__}: {inert(str(error), 80)}); recommend again"
        ) from None
    return _Chosen(found, depth, schedule, ())


def _identity(acceptance: Acceptance) -> tuple[Any, ...]:
    return acceptance.drafter, dict(acceptance.config), acceptance.draft_sampling, acceptance.temperature


def _other_rules(run: Run, profile: str) -> list[Notice]:
    if run.engine_profile == profile:
        return []
    said = f"acceptance was measured by the rules of {run.engine_profile}, these settings are for {profile}"
    return [Notice("other_engine_rules", f"{said}; analyze with --engine {profile} for what it would accept")]


def _version_notices(kind: str) -> list[Notice]:
    side = outside_known_versions(kind.replace(SYNTHETIC, "vllm"))
    if side is None:
        return []
    return [Notice("unknown_engine_version", f"{inert(kind)} is {side} than the versions that specprobe knows")]


def _synthetic_notices(acceptance: Acceptance) -> list[Notice]:
    said = "vLLM accepts drafts by these rates and writes text that means nothing: measure its speed, then remove them"
    if acceptance.drafter not in MODEL_FREE:
        said += "; any weights of the drafter's shape will do, since what it drafts is not looked at"
    return [Notice("synthetic_acceptance", said)]


_Other = tuple[Mapping[str, Any], str, tuple[Notice, ...]]


def _speculation_profile(run: Run, chosen: _Chosen) -> _Other:
    """NVIDIA Model-Optimizer's speculation_profile.json: what the counters of drafted rounds say, both ways.

    `marginal_accept_rates` (vLLM's per-position rates) sum to mean_accept_length - 1, and
    `conditional_accept_rates` are their ratios. Lengths of the histogram count the bonus token.
    """
    acceptance, depth = chosen.acceptance, chosen.depth
    totals = acceptance.totals(depth)
    marginal = totals.survival
    if marginal is None:
        raise SpecprobeError(f"export: {inert(acceptance.label, 60)} drafted nothing, so there are no rates")
    conditional = [now / before if before else 0.0 for before, now in zip((1.0, *marginal), marginal, strict=False)]
    profile = {
        "schema_version": PROFILE_SCHEMA_VERSION,
        "measured": True,
        "producer": "specprobe",
        "method": acceptance.drafter,
        "num_speculative_tokens": depth,
        "conditional_accept_rates": [round(rate, RATE_DIGITS) for rate in conditional],
        "marginal_accept_rates": [round(rate, RATE_DIGITS) for rate in marginal],
        "mean_accept_length": round(totals.mean_acceptance_length or 1.0, RATE_DIGITS),
        "mean_accept_length_per_request": _mean_length_per_request(acceptance, depth),
        "acceptance_length_histogram": _length_histogram(totals),
        "measurement_conditions": {
            "dataset": list(map(str, run.workload.get("sources", []))),
            "num_samples": len(acceptance.ids),
            "output_tokens": int(acceptance.output_tokens.sum()),
            "temperature": acceptance.temperature if run.temperature_is_known else None,
            "draft_sampling": acceptance.draft_sampling,
            "engine_rules": run.engine_profile,
            "coverage": None if totals.coverage is None else round(totals.coverage, RATE_DIGITS),
            "validation": "replay of the target's own text",
        },
    }
    return profile, json.dumps(profile, indent=2), ()


def _mean_length_per_request(acceptance: Acceptance, depth: int) -> float | None:
    rounds = acceptance.drafted_rounds[:, depth - 1]
    drafted = rounds > 0
    if not drafted.any():
        return None
    lengths = 1 + acceptance.accepted_tokens[drafted, depth - 1] / rounds[drafted]
    return round(float(lengths.mean()), RATE_DIGITS)


def _length_histogram(totals: DepthTotals) -> dict[str, int | float]:
    """Drafted rounds by their length, 1 + accepted: expectations for sampled drafts."""
    reached = [totals.drafted_rounds, *totals.accepted_at, 0]
    return {str(n): reached[n - 1] - reached[n] for n in range(1, len(reached))}


def _aiconfigurator(_: Run, chosen: _Chosen) -> _Other:
    """aiconfigurator's `--nextn` and `--nextn-accepted`: draft tokens accepted in a decode step, on average."""
    acceptance, depth = chosen.acceptance, chosen.depth
    if depth > DEEPEST_NEXTN:
        raise EngineRefusesError(f"aiconfigurator takes depths up to {DEEPEST_NEXTN}, not {depth}; use --depth")
    totals = acceptance.totals(depth)
    settings = {"--nextn": depth, "--nextn-accepted": round(totals.accepted_tokens / totals.rounds, 4)}
    notices: tuple[Notice, ...] = ()
    if acceptance.drafter != "mtp":
        said = f"aiconfigurator prices drafts as those of MTP modules, and {inert(acceptance.drafter, 60)} is none"
        notices = (Notice("priced_as_mtp", f"{said}: its cost of drafting is not in the estimate"),)
    return settings, " ".join(f"{flag} {value}" for flag, value in settings.items()), notices


_OTHER_KINDS: Mapping[str, Callable[[Run, _Chosen], _Other]] = {
    "profile": _speculation_profile,
    "aiconfigurator": _aiconfigurator,
}
