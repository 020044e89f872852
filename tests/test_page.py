"""The page of `report --html`: what stands on it, that nothing of it can act, and that it depends on its input only."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from page_inputs import HOSTILE, grouped, make_recommendation, make_run, without, write, write_both, write_run

from specprobe.acceptance import Acceptance
from specprobe.cli import run_command
from specprobe.page.make import make_page
from specprobe.page.parts import method_names
from specprobe.page.stored_advice import load_advice
from specprobe.page.verdict_views import heat_maps, verdict_sentence
from specprobe.run_document import load_run
from specprobe.run_files import keep_recommendation, kept_at, last_recommendation

SECTIONS = ("verdict", "pays", "acceptance", "temperature", "latency", "gains", "methods", "provenance", "glossary")
VOID = {"meta", "link", "br", "img", "input", "hr"}


class Elements(HTMLParser):
    """All elements with their attributes, and the text by the element that it stands in."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self._open: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        self.texts.append((self._open[-1] if self._open else "", data))

    def text(self, tag: str) -> str:
        return "\n".join(text for where, text in self.texts if where == tag)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for found, attributes in self.found if found == tag]

    @property
    def ids(self) -> list[str]:
        return [attributes["id"] for _, attributes in self.found if attributes.get("id")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("pages")


@pytest.fixture(scope="module")
def both(folder):
    """A run and its recommendation."""
    return write_both(folder, "run", grouped(make_run()))


@pytest.fixture(scope="module")
def html(both):
    run, advice = both
    return make_page([run], [], [advice]).html


def test_the_page_has_its_sections_in_order_and_links_lead_to_them(html):
    page = Elements(html)
    assert [found for found in page.ids if found in SECTIONS] == list(SECTIONS)
    targets = [attributes["href"] for attributes in page.all("a")]
    assert targets
    assert all(target.startswith("#") and target[1:] in page.ids for target in targets)
    assert len(page.all("h1")) == 1
    assert dict(page.found[0][1]) == {"lang": "en"}


def test_the_verdict_comes_first_and_in_words(html, both):
    advice = load_advice(both[1])
    sentence = verdict_sentence(advice)
    assert re.match(r"Speculate with .+ at depth \d at concurrency 1", sentence)
    assert sentence in " ".join(Elements(html).text("p").split("\n"))
    assert "vllm serve MODEL" in html


def test_equal_answers_are_told_once(both):
    advice = load_advice(both[1])
    first = advice.verdicts[0]
    told = verdict_sentence(
        replace(advice, verdicts=(first, replace(first, concurrency=2), replace(first, concurrency=5)))
    )
    assert told.endswith("at concurrency 1, 2 and 5.")


def test_every_table_has_a_caption_and_heads_with_a_scope(html):
    page = Elements(html)
    assert len(page.all("caption")) == len(page.all("table")) > 10
    assert all(attributes.get("scope") in ("col", "row") for attributes in page.all("th"))


def test_every_figure_is_an_image_with_a_name_and_its_numbers_as_a_table(html):
    page = Elements(html)
    figures = [attributes for attributes in page.all("svg") if attributes.get("role") == "img"]
    assert len(figures) == len(page.all("figure")) == len(page.all("details")) == len(page.all("svg")) >= 9
    for figure in figures:
        assert all(name in page.ids for name in figure["aria-labelledby"].split())
    assert len(page.all("title")) == len(figures) + 1
    # Text in figures is text, and its colours are the style sheet's.
    assert "draft position" in page.text("text")
    assert not re.search(r"#0000[01][0-9]", html)


def test_no_two_elements_share_an_id_and_figures_refer_to_their_own(html):
    page = Elements(html)
    assert len(set(page.ids)) == len(page.ids)
    referred = [attributes["href"][1:] for attributes in page.all("use")]
    referred += re.findall(r"url\(#([^)]+)\)", html)
    assert referred
    assert set(referred) <= set(page.ids)


def test_the_page_loads_nothing_and_runs_nothing(html):
    page = Elements(html)
    assert not {"script", "link", "iframe", "object", "embed", "img", "image", "base", "form"} & {
        t for t, _ in page.found
    }
    assert not [name for _, attributes in page.found for name in attributes if name.startswith("on")]
    assert "http:" not in html
    assert "https:" not in html
    assert "@import" not in html
    (policy,) = [a["content"] for a in page.all("meta") if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy.startswith("default-src 'none'")
    for _, attributes in page.found:
        for name in ("src", "href", "xlink:href"):
            assert (attributes.get(name) or "#").startswith("#")


def test_the_same_input_gives_the_same_bytes(html, both):
    run, advice = both
    assert make_page([run], [], [advice]).html == html
    made = (
        f"from pathlib import Path; from specprobe.page.make import make_page; "
        f"print(make_page([Path({str(run)!r})], [], [Path({str(advice)!r})]).html, end='')"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "5", "TZ": "Asia/Tokyo", "PYTHONIOENCODING": "utf-8"}
    other = subprocess.run([sys.executable, "-c", made], capture_output=True, check=True, env=environment)
    assert other.stdout.decode("utf-8") == html


def test_what_comes_out_of_logs_and_names_is_text_wherever_it_stands(folder):
    run, advice = write_both(folder, "hostile", make_run(name=HOSTILE, engine_profile="vllm@0.33"))
    for paths, labels, advices in (([run], [], [advice]), ([run, run], [HOSTILE, HOSTILE], [advice])):
        page = Elements(make_page(paths, labels, advices).html)
        assert not page.all("script")
        assert not [name for _, attributes in page.found for name in attributes if name.startswith("on")]
        shown = "".join(text for _, text in page.texts)
        # In ids, file names, models, commands and figures, whole or cut.
        assert shown.count("<script>alert") >= 8
        assert "<script>alert" in page.text("text")
        assert "\u202e" not in shown
        assert "\x1b" not in shown


def test_a_label_that_begins_with_an_underscore_and_a_formula_are_drawn_as_they_are(folder):
    run = write_run(folder / "labels.json", make_run())
    drawn = Elements(make_page([run, run], ["_hidden", "$\\alpha$"], []).html).text("text")
    assert "_hidden" in drawn
    assert "$\\alpha$" in drawn


def test_without_a_recommendation_the_page_shows_acceptance_and_says_what_adds_the_verdict(folder, monkeypatch):
    monkeypatch.chdir(folder)
    run = write_run(folder / "alone.json", make_run(seed=11))
    page = Elements(make_page([run], [], []).html)
    missing = {"pays", "latency"}
    assert [found for found in page.ids if found in SECTIONS] == [s for s in SECTIONS if s not in missing]
    assert "specprobe recommend" in page.text("code")
    assert "Most tokens per round" in page.text("p")


def test_a_recommendation_of_an_older_version_leaves_sections_out(folder, both):
    run, advice = both
    document = json.loads(advice.read_text())
    older = write(folder / "older.json", without(document, "speedup_grids", "distributions"))
    page = Elements(make_page([run], [], [older]).html)
    assert "verdict" in page.ids
    assert not {"pays", "latency"} & set(page.ids)


def test_gains_turn_into_losses_at_heavy_lines(both):
    advice = load_advice(both[1])
    grid = replace(advice.grids[0], batches=(1, 8), speedup=np.array([[1.2, 1.5, 0.9], [0.8, 1.0, 0.7]]))
    (map_,) = heat_maps(replace(advice, grids=(grid,)))
    (_, asked, first), (_, _, second) = map_.rows
    assert asked
    assert [cell.text for cell in first] == ["1.20", "1.50", "0.90"]
    assert [cell.edges for cell in first] == [("below",), ("right", "below"), ()]
    # 1.00 is no gain.
    assert [cell.edges for cell in second] == [(), (), ()]
    assert [cell.is_best for cell in first] == [False, True, False]
    assert not any(cell.is_best for cell in second)
    assert [np.sign(cell.step) for cell in first] == [1, 1, -1]


def test_methods_with_the_same_label_are_told_apart_by_their_settings():
    names = method_names([("ngram", {"min": 2, "max": 4}), ("ngram", {"min": 5, "max": 4}), ("suffix", {"depth": 1})])
    assert names == ("ngram (min 2)", "ngram (min 5)", "suffix")


def test_runs_side_by_side_are_paired_by_prompt(folder):
    before, advice = write_both(folder, "before", make_run())
    after = write_run(folder / "after.json", make_run(better=1.5))
    page = Elements(make_page([before, after], ["old head", "new head"], [advice]).html)
    assert "eagle3:eagle3 at temperature 0 drafts better (+" in page.text("p")
    assert "new head against old head" in page.text("h3")
    assert {"answer", "verdicts", "paired", "acceptance", "provenance"} <= set(page.ids)
    assert len(set(page.ids)) == len(page.ids)
    assert {"old head", "new head"} <= set(page.text("text").split("\n"))
    assert "no recommendation" in page.text("p")


def test_runs_that_are_not_comparable_stand_side_by_side_with_the_reason(folder):
    one = write_run(folder / "one.json", make_run())
    other = write_run(folder / "other.json", make_run(engine_profile="vllm@0.30"))
    page = Elements(make_page([one, other], [], []).html)
    assert "Not comparable prompt by prompt" in page.text("p")
    assert "engine rules" in page.text("p")
    assert "other and one are not comparable" in page.text("p")
    assert page.all("figure")
    assert "Replay: engine rules" in page.text("th")


def test_equal_names_of_files_are_numbered(folder):
    (folder / "sub").mkdir()
    paths = [write_run(folder / "same.json", make_run()), write_run(folder / "sub" / "same.json", make_run(better=1))]
    text = Elements(make_page(paths, [], []).html).text("text")
    assert "same (1)" in text
    assert "same (2)" in text


@pytest.mark.parametrize("kind", ["no rounds", "one prompt", "depth 1", "nothing accepted"])
def test_runs_at_the_edges_have_a_page(folder, kind, monkeypatch):
    monkeypatch.chdir(folder)
    run = make_run()
    for_each = {
        "no rounds": lambda r: replace(
            r, rounds=0 * r.rounds, drafted_at=0 * r.drafted_at, at_risk_at=0 * r.at_risk_at,
            accepted_at=0 * r.accepted_at, output_tokens=np.ones_like(r.output_tokens),
        ),
        "one prompt": lambda r: one_prompt(r),
        "depth 1": lambda r: replace(
            r, rounds=r.rounds[:, :1], drafted_at=r.drafted_at[:, :1, :1], at_risk_at=r.at_risk_at[:, :1, :1],
            accepted_at=r.accepted_at[:, :1, :1],
        ),
        "nothing accepted": lambda r: replace(
            r, accepted_at=0 * r.accepted_at, at_risk_at=r.drafted_at * (np.arange(r.depth) == 0),
            rounds=np.repeat(r.emitted_tokens[:, None], r.depth, axis=1),
        ),
    }[kind]  # fmt: skip
    results = tuple(for_each(result) for result in run.results)
    first = results[0]
    responses = tuple(
        replace(
            record,
            ids=first.ids,
            prompt_tokens=record.prompt_tokens[: len(first.ids)],
            output_tokens=first.output_tokens,
            prompts=record.prompts[: len(first.ids)],
            samples=record.samples[: len(first.ids)],
        )
        for record in run.responses
    )
    path = write_run(folder / f"{kind.replace(' ', '-')}.json", replace(run, results=results, responses=responses))
    page = Elements(make_page([path], [], []).html)
    assert "glossary" in page.ids
    assert ("acceptance" in page.ids) == (kind != "no rounds")


def one_prompt(result: Acceptance) -> Acceptance:
    return replace(
        result,
        ids=result.ids[:1],
        output_tokens=result.output_tokens[:1],
        rounds=result.rounds[:1],
        drafted_at=result.drafted_at[:1],
        at_risk_at=result.at_risk_at[:1],
        accepted_at=result.accepted_at[:1],
        prompts=result.prompts[:1],
    )


def test_colours_can_be_read_in_light_and_dark():
    style = (files("specprobe.page") / "templates" / "style.css").read_text("utf-8")
    light, dark = (dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", block)) for block in palettes(style))
    assert light.keys() == dark.keys()
    for colors in (light, dark):
        for text, background in (
            *(("ink", b) for b in ("surface", "raised", "open-soft")),
            *(("muted", b) for b in ("surface", "raised")),
            *(("link", b) for b in ("surface", "raised")),
            *((tone, f"{tone}-soft") for tone in ("good", "bad", "open")),
            *(("on-soft", f"{kind}-{step}") for kind in ("gain", "loss") for step in (1, 2, 3)),
            *(("on-strong", f"{kind}-{step}") for kind in ("gain", "loss") for step in (4, 5)),
        ):
            assert contrast(colors[text], colors[background]) >= 4.5, (text, background)
        for number in range(1, 7):
            assert contrast(colors[f"series-{number}"], colors["surface"]) >= 3, number


def palettes(style: str) -> tuple[str, str]:
    first, _, rest = style.partition("@media screen and (prefers-color-scheme: dark)")
    return first, rest.partition("*, *::before")[0]


def contrast(one: str, other: str) -> float:
    """WCAG 2.2's ratio of relative luminances."""
    darker, lighter = sorted(luminance(color) for color in (one, other))
    return (lighter + 0.05) / (darker + 0.05)


def luminance(color: str) -> float:
    channels = np.array([int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    return float(linear @ (0.2126, 0.7152, 0.0722))


def run_report(capsys, *arguments: str) -> tuple[int, str, str]:
    status = run_command(["report", *arguments])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_report_finds_the_newest_recommendation_of_its_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run, advice = write_both(tmp_path, "run", make_run())
    document = json.loads(advice.read_text())
    kept = keep_recommendation(json.dumps(document))
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    newer = keep_recommendation(json.dumps({**document, "cost_source": "measured"}))
    keep_recommendation(json.dumps({**document, "run_digest": "0" * 16}))
    digest = load_run(run).digest
    assert last_recommendation(digest) == newer
    assert last_recommendation("f" * 16) is None
    status, out, _ = run_report(capsys, str(run), "--html", "page.html")
    assert status == 0
    assert out.startswith("page.html: ")
    assert "Cost of a round: measured" in (tmp_path / "page.html").read_text("utf-8")
    # Which of them it is, and when it was kept.
    told = f"{newer.name} (made from this run, kept {kept_at(newer)})"
    assert " ".join(out.split()).endswith(f"verdict of run: {told}")
    assert f"{newer.name}, kept {kept_at(newer)}" in (tmp_path / "page.html").read_text("utf-8")
    assert re.fullmatch(r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d UTC", kept_at(newer))
    assert kept_at(Path("advice.json")) is None
    status, out, _ = run_report(capsys, str(run), "--html", "page.html", "--json")
    told = json.loads(out)
    assert (status, told["schema"], told["runs"][0]["digest"]) == (0, "specprobe.page/1", digest)
    assert told["runs"][0]["recommendation"] == newer.name
    assert told["bytes"] == (tmp_path / "page.html").stat().st_size


def test_recommend_keeps_what_report_finds(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run = write_run(tmp_path / "run.json", make_run())
    points = [
        {"batch": b, "query_tokens": q, "context": c, "seconds": 0.01}
        for b in (1, 8)
        for q in (1, 5)
        for c in (1, 4096)
    ]
    Path("cost.json").write_text(json.dumps({"schema": "specprobe.cost/1", "source": "file", "points": points}))
    assert run_command(["recommend", "run.json", "--cost", "cost.json", "--concurrency", "1,8"]) == 0
    capsys.readouterr()
    assert last_recommendation(load_run(run).digest) is not None
    assert run_report(capsys, "run.json", "--html", "page.html")[0] == 0
    assert "Speculate with" in Path("page.html").read_text("utf-8")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run.json", "other.json"], "--html"),
        (["run.json", "--label", "a"], "--html"),
        (["run.json", "--html", "p.html", "--label", "a", "--label", "b"], "--label"),
        (["run.json", "--html", "p.html", "--recommendation", "other-advice.json"], "another run"),
        (["run.json", "--html", "p.html", "--recommendation", "run.json"], "recommendation"),
        (
            ["run.json", "--html", "p.html", "--recommendation", "same.json", "--recommendation", "same.json"],
            "from the same run",
        ),
        (["run.json", "--html", "."], "--html"),
        (["nothing.json", "--html", "p.html"], "nothing.json"),
        (["run.json", "--html", "p.html", "--recommendation", "damaged.json"], "damaged"),
    ],
)
def test_report_says_what_is_wrong(folder, both, monkeypatch, capsys, arguments, said):
    monkeypatch.chdir(folder)
    if not (folder / "other-advice.json").exists():
        write_both(folder, "other", make_run(seed=5))
    document = json.loads(both[1].read_text())
    document["by_concurrency"][0]["options"] = [{}]
    (folder / "damaged.json").write_text(json.dumps(document))
    (folder / "same.json").write_bytes(both[1].read_bytes())
    status, _, err = run_report(capsys, *arguments)
    assert status == 2
    assert said in err
    # Beside what is being done.
    assert [line.startswith("error: ") for line in err.splitlines() if not line.endswith("...")] == [True]


def test_report_without_a_page_is_the_report_of_analyze_again(folder, both, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    status, out, _ = run_report(capsys, "run.json", "--details")
    assert status == 0
    assert "engine rules" in out
    status, out, _ = run_report(capsys, "run.json", "--json")
    assert json.loads(out) == json.loads((folder / "run.json").read_text())


def test_other_commands_do_not_wait_for_matplotlib():
    modules = ", ".join(f"specprobe.{name}" for name in ("cli", "advise", "report", "recommend_report"))
    check = f"import sys, {modules}; print('matplotlib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_recommendation_says_how_requests_are_spread():
    document = make_recommendation(make_run())
    for verdict in document["by_concurrency"]:
        told, baseline = verdict["distributions"], verdict["baseline"]
        at = told["quantiles"].index(0.5)
        assert told["baseline"]["ttft_ms"][at] == pytest.approx(baseline["ttft_p50_ms"])
        assert told["baseline"]["itl_ms"][at] == pytest.approx(baseline["itl_p50_ms"])
        assert told["best"]["ttft_ms"][at] == pytest.approx(verdict["options"][0]["ttft_p50_ms"])
        for values in (*told["baseline"].values(), *told["best"].values(), told["request_speedup"]):
            assert values == sorted(values)
        # Where fewer than half lose, the median request does not.
        assert (told["request_speedup"][at] >= 1) == (verdict["losing_share"] <= 0.5)
