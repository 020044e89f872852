"""What `gate` says: to a person, on stderr, as a step summary in Markdown, and as JUnit XML."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

from rich.text import Text

from specprobe.blocks import Block, Section, Sentence
from specprobe.gate import Gate, GateResult
from specprobe.interval import MIN_PROMPTS
from specprobe.notices import inert
from specprobe.run_words import size_of, temperature_of
from specprobe.units import ABSENT, format_interval, format_number, format_percent, format_plural

STYLES = {"passed": "bold green", "failed": "bold red", "undecided": "bold yellow"}
LONGEST = 500


def render_gate(result: GateResult) -> Block:
    """For people: the result that was held against the gates, and one line for each gate."""
    parts: list[Block] = [Sentence("subject", _subject(result))]
    for difference in result.differences:
        parts.append(
            Sentence(
                f"not comparable, {difference.what}",
                f"{inert(difference.a, 120)} in the baseline, {inert(difference.b, 120)} now",
                lead=Text.assemble(("not comparable: ", "yellow"), f"{difference.what}: "),
            )
        )
    for gate in result.gates:
        word = "passed" if gate.passed else "failed"
        parts.append(Sentence(word, describe_gate(gate), lead=Text.assemble((word, STYLES[gate.verdict]), ": ")))
    return Section(parts)


def failure_lines(result: GateResult) -> list[str]:
    """One line for each failed gate."""
    return [f"gate failed: {describe_gate(gate)}" for gate in result.gates if not gate.passed]


def describe_gate(gate: Gate) -> str:
    """One line: the figure, its interval, the threshold, and what an undecided gate lacks."""
    measured = gate.measured
    name = gate.name.replace("_", " ") + (f" at {gate.at}" if gate.at else "")
    name += f" of {inert(gate.of, 80)}" if gate.of else ""
    wanted = f"{'at most' if gate.is_maximum else 'at least'} {_figure(gate, gate.threshold)}"
    if measured.point is None:
        return f"{name}: nothing was drafted, so there is no figure; wanted {wanted}"
    line = f"{name}: {_figure(gate, measured.point)} {_interval(gate)}, wanted {wanted}"
    if gate.verdict != "undecided":
        return line
    return f"{line}; undecided: {_why_undecided(gate)}"


def step_summary(result: GateResult) -> str:
    """Markdown for the page of a CI run."""
    lines = [
        f"### specprobe gate: {'passed' if result.passed else 'failed'}",
        "",
        _markdown(_subject(result)),
        "",
        "| gate | threshold | measured | 90 % interval | verdict |",
        "| --- | ---: | ---: | ---: | --- |",
    ]
    for gate in result.gates:
        cells = (
            gate.name + (f" at {gate.at}" if gate.at else "") + (f" of {gate.of}" if gate.of else ""),
            _figure(gate, gate.threshold),
            ABSENT if gate.measured.point is None else _figure(gate, gate.measured.point),
            _interval(gate),
            _word(gate) + (f": {_why_undecided(gate)}" if gate.verdict == "undecided" else ""),
        )
        lines.append(f"| {' | '.join(map(_markdown, cells))} |")
    lines += [
        f"\n{_markdown(f'Not comparable: {one.what}: {one.a} in the baseline, {one.b} now.')}"
        for one in result.differences
    ]
    return "\n".join(lines) + "\n\n"


def junit_xml(result: GateResult) -> bytes:
    """A JUnit report with one test case for each gate."""
    failed = sum(not gate.passed for gate in result.gates)
    counts = {"tests": str(len(result.gates)), "failures": str(failed), "errors": "0"}
    suites = ElementTree.Element("testsuites", counts)
    suite = ElementTree.SubElement(suites, "testsuite", {"name": "specprobe gate", **counts, "skipped": "0"})
    for gate in result.gates:
        name = gate.name + (f" at {gate.at}" if gate.at else "")
        case = ElementTree.SubElement(
            suite,
            "testcase",
            {"classname": inert(f"specprobe.gate {result.chosen.name}", 200), "name": inert(name, 200)},
        )
        if not gate.passed:
            told = {"message": inert(describe_gate(gate), LONGEST), "type": gate.verdict}
            ElementTree.SubElement(case, "failure", told)
        ElementTree.SubElement(case, "system-out").text = inert(describe_gate(gate), LONGEST)
    return ElementTree.tostring(suites, encoding="utf-8", xml_declaration=True) + b"\n"


def _subject(result: GateResult) -> str:
    acceptance = result.chosen.acceptance
    return (
        f"{inert(result.chosen.name, 100)} at depth {result.chosen.depth}, "
        f"{temperature_of(result.run, acceptance.temperature)}, "
        f"{size_of(result.run) if result.run.is_of_sums else format_plural(acceptance.num_prompts, 'prompt')}, "
        f"rules of {inert(result.run.engine_profile)}"
    )


def _word(gate: Gate) -> str:
    if gate.verdict == "undecided":
        return "undecided, allowed" if gate.passed else "undecided, so failed"
    return gate.verdict


def _why_undecided(gate: Gate) -> str:
    if gate.blocked:
        return gate.blocked
    needed = gate.prompts_needed
    have = format_plural(gate.measured.prompts, "prompt")
    few = f"{have}, fewer than {MIN_PROMPTS}" if gate.measured.prompts < MIN_PROMPTS else have
    if needed is None:
        return f"{few}, and no number of them is known to decide"
    return f"{few}; about {needed:,} would decide"


def _figure(gate: Gate, value: float) -> str:
    """A share where the gate is one, else a number."""
    return format_percent(value) if gate.is_maximum else format_number(value)


def _interval(gate: Gate) -> str:
    low, high = gate.measured.low, gate.measured.high
    if gate.is_maximum and low is not None and high is not None:
        return f"[{format_percent(low)}, {format_percent(high)}]"
    return format_interval(low, high)


def _markdown(text: str) -> str:
    """Text that Markdown and the HTML in it leave as it is."""
    return re.sub(r"([\\`*_{}\[\]<>()#+!|&~$@])", r"\\\1", inert(text, LONGEST))
