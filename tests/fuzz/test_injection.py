"""Strings that others control are data: in a terminal, in markup, in HTML, in XML, in JSON, in a line of a report.

A server, a log, a checkpoint, an engine's metrics and a document of specprobe are taken as they are when all is well;
then each string in them, one after the other, is a hostile one, and everything that is printed or written is searched.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import fake_target
import pytest
import tiny_heads
import toy_target as toy
from fake_target import Handler, serving_target
from odd import places
from page_inputs import make_recommendation, make_run
from samples import COST, ENGINE_JSON, ENGINE_TEXT, ROWS
from simulated_runs import document_of

from specprobe.cli import run_command
from specprobe.errors import SpecprobeError
from specprobe.page.stored_advice import load_advice
from specprobe.run_document import load_run

HOSTILE = (
    "\x1b[31m\x9b2J\x07<script>alert(1)</script>\" onload='x'[bold red]x[/bold red]\u202e\r\nverdict: all is well\x00"
)
# What must be nowhere on a screen; line ends are looked for by what they would begin.
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069\ufeff]")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPECPROBE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("SPECPROBE_TRACEBACK", raising=False)
    toy.go_offline(monkeypatch)


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    return str(toy.write_checkpoint(tmp_path_factory.mktemp("toy"), max_position_embeddings=512))


class Scripts(HTMLParser):
    """Counts what a page would run, and the attributes that would."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("script", "img", "iframe", "object", "embed", "base", "meta") and tag != "meta":
            self.found.append(tag)
        self.found += [name for name, value in attrs if name.startswith("on") or "javascript:" in (value or "")]


def check_screen(text: str, where: Any) -> None:
    assert not CONTROLS.search(text), (where, text)
    assert not any(line.strip().startswith("verdict: all is well") for line in text.splitlines()), (where, text)
    # Markup was not taken for such: its tags are shown.
    assert "onload='x'x" not in text, (where, text)


def check_file(path: Path) -> None:
    content = path.read_bytes()
    match path.suffix:
        case ".html":
            text = content.decode()
            assert not CONTROLS.search(text), path
            scripts = Scripts()
            scripts.feed(text)
            assert not scripts.found
        case ".xml":
            ElementTree.fromstring(content)
            assert not CONTROLS.search(content.decode()), path
        case ".md":
            assert b"<script>" not in content
            assert not CONTROLS.search(content.decode()), path
        case ".json":
            json.loads(content)
            assert content.isascii()


def run(capfd: Any, where: Any, *arguments: str) -> int:
    status = run_command(arguments)
    out, err = capfd.readouterr()
    check_screen(err, where)
    if "--json" in arguments:
        assert out.isascii()
        assert status or json.loads(out)
    else:
        check_screen(out, where)
    assert "unexpected" not in err, (where, err)
    assert status in (0, 1, 2)
    return status


def read_all(capfd: Any, where: Any, path: str) -> None:
    """The readers of a run, and every file that they write."""
    for arguments in (
        ("report", path, "--details"),
        ("report", path, "--plain"),
        ("report", path, "--html", "page.html"),
        ("compare", path, path, "--force"),
        ("gate", path, "--min-tokens-per-round", "9", "--junit", "gate.xml", "--summary", "gate.md"),
        *(("export", path, "--engine", engine) for engine in ("vllm", "sglang", "hf")),
    ):
        run(capfd, (where, arguments), *arguments)
    for name in ("page.html", "gate.xml", "gate.md"):
        if Path(name).exists():
            check_file(Path(name))
            Path(name).unlink()


def all_hostile(value: Any, read: Callable[[Path], Any]) -> tuple[Any, int]:
    """A document in which every string is hostile that `read` lets pass so, and how many kinds of them."""
    number = 0
    for paths in strings(value).values():
        bent = value
        # Where a word stands for the same thing in several places, in all of them.
        for path in paths:
            bent = with_hostile(bent, path)
        Path("bent.json").write_text(json.dumps(bent))
        try:
            read(Path("bent.json"))
        except SpecprobeError as error:
            check_screen(str(error).replace("\\x", ""), paths[0])
            continue
        value, number = bent, number + 1
    return value, number


def strings(value: Any) -> dict[tuple[Any, ...], list[tuple[Any, ...]]]:
    """The paths of all strings, by the path without positions in lists, so that rows of a kind count once."""
    found: dict[tuple[Any, ...], list[tuple[Any, ...]]] = {}
    for path in places(value):
        inside = value
        for step in path:
            inside = inside[step]
        if isinstance(inside, str):
            found.setdefault(tuple("*" if isinstance(step, int) else step for step in path), []).append(path)
    return found


def with_hostile(value: Any, path: tuple[Any, ...], text: str = HOSTILE) -> Any:
    value = copy.deepcopy(value)
    *above, key = path
    inside = value
    for step in above:
        inside = inside[step]
    inside[key] = text
    return value


# --- what a server controls ---

LOG = [{"id": f"r{n}", "messages": [{"role": "user", "content": f"word {n}"}]} for n in range(3)]


def write_log(name: str = "log.jsonl", rows: list[Any] = LOG) -> str:
    Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return name


class Answers:
    """Takes the place of what a server sends: notes the strings in it, or makes one of them hostile."""

    def __init__(self) -> None:
        self.seen: set[tuple[str, tuple[Any, ...]]] = set()
        self.bent: tuple[str, tuple[Any, ...]] | None = None

    def through(self, path: str, value: Any) -> Any:
        for kind, paths in strings(value).items():
            self.seen.add((path, kind))
            if (path, kind) == self.bent:
                for place in paths:
                    value = with_hostile(value, place)
        return value


@pytest.fixture
def answers(monkeypatch) -> Answers:
    found = Answers()
    answer, chunks = Handler.answer, Handler.chunks

    def answered(self: Any, status: int, document: Any, *arguments: Any, **options: Any) -> None:
        if not isinstance(document, bytes):
            document = found.through(self.path, document)
        answer(self, status, document, *arguments, **options)

    def chunked(self: Any, *arguments: Any) -> Iterator[bytes]:
        for chunk in chunks(self, *arguments):
            value = found.through(self.path, json.loads(chunk.removeprefix(b"data: ")))
            yield b"data: " + json.dumps(value).encode()

    monkeypatch.setattr(Handler, "answer", answered)
    monkeypatch.setattr(Handler, "chunks", chunked)
    return found


@pytest.mark.parametrize(
    "kind", [kind if kind == "vllm" else pytest.param(kind, marks=pytest.mark.slow) for kind in fake_target.OWNERS]
)
def test_every_string_of_a_server(capfd, answers, monkeypatch, model, kind):
    # Of what may pass, one attempt is enough.
    monkeypatch.setattr("specprobe.server.Patience.ask", lambda _self, ask, _stopped: ask())
    write_log()
    Path("cost.json").write_text(json.dumps(COST))

    def analyze(where: Any, *faults: str) -> None:
        with serving_target(kind, faults=faults) as server:
            arguments = ("analyze", "log.jsonl", "--target", server.url, "--max-new-tokens", "9",
                         "--max-model-len", "500",
                         "--depth", "2", "--out", "run.json", "--tokenizer", model)  # fmt: skip
            status = run(capfd, where, *arguments, "--details")
        if status == 0:
            read_all(capfd, where, "run.json")

    analyze("as it is")
    for fault in ("400", "404", "301"):
        analyze(fault, fault)
    seen = sorted(answers.seen, key=str)
    assert len(seen) >= 3
    for bent in seen:
        answers.bent = bent
        analyze(bent, *(("400",) if "error" in bent[1] else ()))


@pytest.mark.parametrize("fault", ["400", "404", "301", "401", "500"])
def test_a_servers_errors(capfd, monkeypatch, model, fault):
    """Status lines, headers and bodies."""
    monkeypatch.setattr("specprobe.server.Patience.ask", lambda _self, ask, _stopped: ask())
    bodies = ({"error": {"message": HOSTILE}}, {"detail": HOSTILE}, {"message": [HOSTILE]}, HOSTILE, {HOSTILE: HOSTILE})
    answer = Handler.answer
    write_log()
    for body in bodies:

        def answered(
            self: Any, status: int, document: Any, headers: Any = None, cut: Any = None, body: Any = body
        ) -> None:
            if self.command == "POST" and "complet" in self.path:
                self.send_response(int(fault), "odd\x1b[31m")
                self.send_header("Content-Type", "a\x1b[31m/b")
                self.send_header("Location", "http://x/\x1b[31m")
                self.end_headers()
                self.wfile.write(body.encode() if isinstance(body, str) else json.dumps(body).encode())
            else:
                answer(self, status, document, headers, cut)

        with pytest.MonkeyPatch.context() as patch, serving_target("vllm") as server:
            patch.setattr(Handler, "answer", answered)
            patch.setattr(Handler, "respond", lambda self, _body, _fault: self.answer(200, {}))
            status = run(capfd, body, "analyze", "log.jsonl", "--target", server.url, "--max-new-tokens", "9")
        assert status == 2


# --- what a log controls ---


def test_every_string_of_a_log(capfd, model):
    """Every string and every key of a row of each form, all in one log, in a file and a folder of such names."""
    rows = []
    for number, row in enumerate(one for one in ROWS if isinstance(one, dict)):
        named = {"id": f"r{number}", **row}
        for paths in strings(named).values():
            rows.append(with_hostile(named, paths[0]))
        for key in list(named):
            bent = copy.deepcopy(named)
            bent[HOSTILE[:40]] = bent.pop(key)
            rows.append(bent)
    Path("cost.json").write_text(json.dumps(COST))
    folder = Path("od\x1b[31md <b>[red]")
    folder.mkdir()
    log = write_log(str(folder / "lo\x9bg<script>[bold]\u202e.jsonl"), rows)
    for arguments in (
        ("inspect", log),
        ("inspect", str(folder)),
        ("inspect", log, "--plain"),
        ("inspect", log, "--json"),
    ):
        assert run(capfd, arguments, *arguments) == 0
    more = ("--tokenizer", model, "--responses", "logged", "--depth", "2", "--max-prompts", "60", "--temperature", "0")
    for column in ("id", "model", HOSTILE[:40], "user"):
        status = run(capfd, column, "analyze", log, *more, "--group-by", column, "--out", "run.json", "--details")
        if status == 0:
            read_all(capfd, column, "run.json")


def test_labels_ids_and_models_of_a_log(capfd, model):
    rows = [
        {
            "id": f"{n}{HOSTILE}"[:100],
            "team": f"{HOSTILE}{n % 2}"[-60:],
            "model": HOSTILE,
            "prompt": f"word {n}",
            "response": f"word {n}",
            "finish_reason": HOSTILE,
            "metadata": {HOSTILE[:30]: HOSTILE},
        }
        for n in range(6)
    ]
    log = write_log("log.jsonl", rows)
    Path("cost.json").write_text(json.dumps(COST))
    arguments = ("analyze", log, "--tokenizer", model, "--group-by", "team", "--out", "run.json", "--depth", "2")
    for more in ((), ("--details",), ("--plain", "--details"), ("--json",)):
        assert run(capfd, more, *arguments, *more) == 0
    read_all(capfd, "labels", "run.json")


# --- what a checkpoint controls ---


def test_every_string_of_a_checkpoint(capfd, model, tmp_path):
    write_log()
    Path("cost.json").write_text(json.dumps(COST))
    import shutil

    def analyze(where: Any, folder: Path, *more: str) -> None:
        arguments = ("analyze", "log.jsonl", "--target", str(folder), "--max-new-tokens", "6", "--depth", "2", *more)
        if run(capfd, where, *arguments, "--out", "run.json", "--device", "cpu") == 0:
            read_all(capfd, where, "run.json")

    for number, name in enumerate(("config.json", "tokenizer_config.json", "generation_config.json")):
        whole = json.loads((Path(model) / name).read_text())
        for kind, (path, *_) in strings(whole).items():
            folder = tmp_path / f"m{number}"
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(model, folder)
            (folder / name).write_text(json.dumps(with_hostile(whole, path)))
            analyze((name, kind), folder)
    folder = tmp_path / "m\x1b[31m<script>[bold]\u202e"
    shutil.copytree(model, folder)
    analyze("the folder's name", folder)
    for template in ("{{ raise_exception(" + json.dumps(HOSTILE) + ") }}", "{% " + HOSTILE.replace("\x00", "")):
        (folder / "chat_template.jinja").write_text(template)
        analyze("its template", folder)


def test_every_string_of_a_drafter(capfd, model, tmp_path):
    from specprobe.target import load_target

    write_log()
    Path("cost.json").write_text(json.dumps(COST))
    config = load_target(model, device="cpu").model.config
    head = tiny_heads.write_eagle(tmp_path / "h\x1b[31m<b>[red]\u202e", config)
    whole = json.loads((head / "config.json").read_text())
    arguments = ("analyze", "log.jsonl", "--target", model, "--max-new-tokens", "6", "--depth", "2", "--device", "cpu")
    for kind, (path, *_) in [*strings(whole).items(), (None, ((HOSTILE,),))]:
        (head / "config.json").write_text(json.dumps(with_hostile(whole, path)))
        if run(capfd, kind, *arguments, "--drafter", f"eagle:{head}", "--out", "run.json") == 0:
            read_all(capfd, kind, "run.json")
    from safetensors.torch import load_file, save_file

    tensors = load_file(head / "model.safetensors")
    for name in tensors:
        save_file(
            {HOSTILE[:60] if other == name else other: value for other, value in tensors.items()},
            head / "model.safetensors",
        )
        run(capfd, name, *arguments, "--drafter", f"eagle:{head}")
    for spec in (f"eagle:{HOSTILE}", f"draft:{HOSTILE}", HOSTILE, f"ngram:{HOSTILE}=2", f"eagle:{head},{HOSTILE}=1"):
        assert run(capfd, spec, *arguments, "--drafter", spec.replace("\x00", "")) == 2


# --- what an engine's files and specprobe's own control ---


def test_every_string_of_an_engines_files(capfd):
    texts = [text.replace('"smol"', json.dumps(HOSTILE.replace("\n", " "))[1:-1].join('""')) for text in ENGINE_TEXT]
    texts += [re.sub(r'"[^"]*"', f'"{HOSTILE[:40]}"', text) for text in ENGINE_TEXT]
    texts += [text.replace("spec_", f"spec_{HOSTILE[:8]}", 1) for text in ENGINE_TEXT]
    for row in ENGINE_JSON:
        texts += [json.dumps(with_hostile(row, path)) for paths in strings(row).values() for path in paths[:1]]
    Path("cost.json").write_text(json.dumps(COST))
    for number, text in enumerate(texts):
        path = f"m\x1b[31m{number}.txt"
        Path(path).write_bytes(text.encode("utf-8", "surrogatepass"))
        for arguments in (("fit", "--metrics", path), ("fit", "--metrics", path, "--depth", "3", "--plain")):
            run(capfd, (number, text), *arguments)
        if run(capfd, number, "import", path, "--drafter", "draft:m", "--temperature", "0", "--out", "run.json") == 0:
            read_all(capfd, number, "run.json")


def test_every_string_of_a_run(capfd):
    Path("cost.json").write_text(json.dumps(COST))
    bent, kinds = all_hostile(document_of(make_run()), load_run)
    assert kinds > 15
    Path("run.json").write_text(json.dumps(bent))
    read_all(capfd, "run", "run.json")
    for more in (("--details",), ("--json",)):
        run(capfd, "recommend", "recommend", "run.json", "--cost", "cost.json", *more)
    run(capfd, "two", "report", "run.json", "run.json", "--html", "two.html")
    check_file(Path("two.html"))


def test_every_string_of_a_recommendation(capfd):
    Path("run.json").write_text(json.dumps(document_of(make_run())))
    advice = make_recommendation(make_run())
    for read in (load_advice, load_of_this_run(advice["run_digest"])):
        bent, kinds = all_hostile(advice, read)
        assert kinds > 8
        Path("advice.json").write_text(json.dumps(bent))
        for arguments in (
            ("report", "run.json", "--recommendation", "advice.json", "--html", "page.html"),
            ("export", "run.json", "--recommendation", "advice.json", "--engine", "vllm"),
            ("gate", "run.json", "--recommendation", "advice.json", "--min-speedup", "9", "--junit", "gate.xml"),
        ):
            run(capfd, arguments, *arguments)
        for name in ("page.html", "gate.xml"):
            if Path(name).exists():
                check_file(Path(name))
                Path(name).unlink()


def load_of_this_run(digest: str) -> Callable[[Path], Any]:
    """Lets pass only what still belongs to the run, so that its page shows the rest."""

    def read(path: Path) -> None:
        if load_advice(path).run_digest != digest:
            raise SpecprobeError("of another run")

    return read


SETTINGS: list[Callable[[str], str]] = [
    lambda text: f"[analyze]\nengine = {text}\n",
    lambda text: f"[analyze]\ndrafter = [{text}]\n",
    lambda text: f"[analyze]\n{text} = 1\n",
    lambda text: f"[{text}]\na = 1\n",
    lambda text: f"[gate]\ndrafter = {text}\nmin-tokens-per-round = 1\n",
    lambda text: f"[gate]\n{text} = 1\n",
    lambda text: f"[recommend]\ngpu = {text}\n",
    lambda text: f"[analyze]\nengine = {text[1:]}\n",
]


@pytest.mark.parametrize("settings", SETTINGS, ids=range(len(SETTINGS)))
def test_every_string_of_settings(capfd, settings):
    Path("specprobe.toml").write_text(settings(json.dumps(HOSTILE)))
    Path("run.json").write_text(json.dumps(document_of(make_run())))
    Path("cost.json").write_text(json.dumps(COST))
    write_log("log.jsonl", [{"prompt_token_ids": [1, 2], "output_token_ids": [2, 1, 2]}])
    for arguments in (
        ("doctor",),
        ("doctor", "--json"),
        ("analyze", "log.jsonl"),
        ("recommend", "run.json"),
        ("gate", "run.json"),
        ("inspect", "log.jsonl"),
    ):
        run(capfd, arguments, *arguments)
