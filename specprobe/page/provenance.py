"""Where the figures of a page come from: everything that somebody needs to make them again, or to doubt them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from specprobe import __version__
from specprobe.page.parts import Fact, FactGroup, shown
from specprobe.page.stored_advice import StoredAdvice
from specprobe.precision_report import precision_in_words
from specprobe.processors import Processors
from specprobe.run import Run
from specprobe.run_words import NOT_SAID, size_of, sources_of, temperature_of
from specprobe.units import format_count, format_percent, format_plural

# Files of a workload that are listed one by one.
MOST_FILES = 12
# A SHA-256 has 64 digits, and is told in full.
HASH_LENGTH = 64
LONG = 400


def run_facts(run: Run, run_sha256: str) -> tuple[FactGroup, ...]:
    """Of a run: log, target, template, engine rules, settings, seeds, versions and hashes."""
    versions = (
        Fact("specprobe", f"{shown(run.version)} (run), {__version__} (this page)"),
        Fact("run, SHA-256 of the file", run_sha256, is_code=True),
        Fact("run, digest of its counts", run.digest, is_code=True),
    )
    return (
        FactGroup("Log", tuple(_workload_facts(run))),
        FactGroup("Target", tuple(_target_facts(run))),
        FactGroup("Replay", (*_settings_facts(run), *versions)),
    )


def advice_facts(advice: StoredAdvice) -> FactGroup:
    """Of a recommendation: where the cost comes from, and on what it was timed or predicted."""
    facts = [Fact("source", shown(advice.cost_source))]
    told = {
        key: value
        for key, value in advice.conditions.items()
        if isinstance(value, str | int | float) and not isinstance(value, bool) and value != ""
    }
    facts += [Fact(shown(key.replace("_", " ")), shown(value, LONG)) for key, value in told.items()]
    if advice.log_deviation:
        facts.append(Fact("known error", f"{format_percent(advice.log_deviation)}, which the intervals hold"))
    facts.append(
        Fact("recommendation", f"{shown(advice.file, 200)}{f', kept {advice.kept_at}' if advice.kept_at else ''}")
    )
    facts.append(Fact("made from the run with the digest", shown(advice.run_digest), is_code=True))
    facts.append(Fact("recommendation, SHA-256 of the file", advice.sha256, is_code=True))
    return FactGroup("Cost of a round", tuple(facts))


def _workload_facts(run: Run) -> list[Fact]:
    workload = run.workload
    facts = [Fact("log", sources_of(run) or "unknown")]
    files = workload.get("files") or ()
    for file in files[:MOST_FILES]:
        name, sha256 = shown(file["name"], 200), shown(file["sha256"], HASH_LENGTH)
        facts.append(Fact(f"SHA-256 of {name}", sha256, is_code=True))
    if len(files) > MOST_FILES:
        facts.append(Fact("further files", format_count(len(files) - MOST_FILES)))
    skipped = workload.get("skipped") or {}
    rows = size_of(run)
    if not run.engine_numbers:
        rows += f" of {format_plural(workload.get('rows', 0), 'row')}"
    rows += f", format {shown(workload.get('format'))}"
    if skipped:
        rows += "; skipped: " + ", ".join(f"{shown(reason)} {count:,}" for reason, count in sorted(skipped.items()))
    facts.append(Fact("rows", rows))
    for responses in run.responses:
        tokens = format_count(int(responses.output_tokens.sum()))
        told = f"{format_plural(len(responses.ids), 'response')}, {tokens} tokens, {shown(responses.source)}"
        if responses.entropy is not None:
            told += f"; entropy {responses.entropy.mean:.2f} nats a token"
        facts.append(Fact(temperature_of(run, responses.temperature), told))
    return facts


def _target_facts(run: Run) -> list[Fact]:
    target = run.target
    tokenizer = run.settings.get("tokenizer") or (target or {}).get("tokenizer") or {}
    facts = []
    if target is None:
        how = "an engine counted" if run.engine_numbers else "logged answers were replayed as they are"
        facts.append(Fact("target", f"none was loaded: {how}"))
    else:
        facts.append(Fact("target", shown(target["name"], 200)))
        for key, name, is_code in (
            ("revision", "revision", True),
            ("fingerprint", "weights, fingerprint", True),
            ("architecture", "architecture", False),
            ("dtype", "computed in", False),
            ("device", "on", False),
        ):
            if target.get(key):
                facts.append(Fact(name, shown(target[key], 200), is_code))
    if tokenizer.get("name"):
        facts.append(Fact("tokenizer", shown(tokenizer["name"], 200)))
    if tokenizer.get("chat_template"):
        facts.append(Fact("chat template, SHA-256 begins", shown(tokenizer["chat_template"]), is_code=True))
    if tokenizer.get("chat_template_kwargs"):
        arguments = json.dumps(tokenizer["chat_template_kwargs"], ensure_ascii=True)
        facts.append(Fact("chat template arguments", shown(arguments, LONG), is_code=True))
    return facts


def _settings_facts(run: Run) -> list[Fact]:
    settings = run.settings
    facts = [Fact("engine rules", shown(run.engine_profile))]
    drafters = settings.get("drafters")
    if isinstance(drafters, Sequence) and not isinstance(drafters, str):
        facts.append(Fact("drafters as asked for", ", ".join(shown(drafter, 120) for drafter in drafters)))
    temperatures = ", ".join(f"{value:g}" for value in run.temperatures)
    facts.append(Fact("temperatures", temperatures if run.temperature_is_known else NOT_SAID))
    if changed := _processors(settings):
        facts.append(Fact("sampling settings", changed))
    for key, name in (
        ("seed", "seed"),
        ("samples", "responses to each prompt"),
        ("max_new_tokens", "longest response, tokens"),
        ("max_model_len", "context limit, tokens"),
        ("batch_size", "batch size of generation"),
    ):
        if settings.get(key) is not None:
            facts.append(Fact(name, shown(settings[key])))
    facts.append(Fact("requests in flight, replayed", str(run.in_flight)))
    if precision := run.precision:
        facts.append(Fact("precision", shown(precision_in_words(precision), LONG)))
    return facts


def _processors(settings: Mapping[str, Any]) -> str:
    try:
        changed = Processors(**settings.get("processors", {})).changed
    except TypeError:
        # Of another version: told as they are.
        return shown(json.dumps(settings["processors"], default=str), LONG)
    return ", ".join(f"{name.replace('_', '-')} {value:g}" for name, value in changed.items())
