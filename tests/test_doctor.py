"""`doctor`: what it says of machines that have things and of machines that lack them, and what it never says."""

from __future__ import annotations

import http.server
import json
import platform
import subprocess
import sys
import threading
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console

from specprobe import doctor, embedded
from specprobe.cli import run_command
from specprobe.doctor import Checkup, examine
from specprobe.doctor_report import render_checkup
from specprobe.progress import Silent


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    (tmp_path / "someones-project").mkdir()
    monkeypatch.chdir(tmp_path / "someones-project")
    monkeypatch.setenv("SPECPROBE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(doctor, "free_bytes", lambda: 8 * 10**9)
    monkeypatch.setattr(doctor, "total_bytes", lambda: 16 * 10**9)
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: SimpleNamespace(free=10**11))


def check(checkup: Checkup, name: str) -> doctor.Check:
    (found,) = (one for one in checkup.checks if one.name == name)
    return found


def test_a_machine_that_has_everything_is_ready(capsys):
    assert run_command(["doctor", "--json"]) == 0
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert document["ready"]
    checks = {one["name"]: one for one in document["checks"]}
    for package in ("torch", "transformers", "datasets", "numba"):
        assert checks[package]["values"] == {"version": metadata.version(package)}
    assert checks["memory"]["values"] == {"free_bytes": 8 * 10**9, "total_bytes": 16 * 10**9}
    assert checks["cpu"]["values"]["threads"] == torch.get_num_threads()
    assert "pytest" not in checks
    assert "hub" not in checks
    assert "takes a second" in captured.err
    assert run_command(["doctor"]) == 0
    assert capsys.readouterr().out.endswith("Ready: specprobe analyze PROMPTS\n")


@pytest.mark.parametrize(
    ("variable", "shown"),
    [
        ("SPECPROBE_CACHE", "$SPECPROBE_CACHE:"),
        ("XDG_CACHE_HOME", "$XDG_CACHE_HOME/specprobe:"),
        ("HOME", "~/.cache/specprobe:"),
    ],
)
def test_no_host_user_or_path_is_named(tmp_path, monkeypatch, capsys, variable, shown):
    monkeypatch.delenv("SPECPROBE_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    (tmp_path / "somebody").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "somebody"))
    monkeypatch.setenv(variable, str(tmp_path / "somebody"))
    monkeypatch.setattr(platform, "node", lambda: "host-of-somebody")
    for arguments in (["doctor"], ["doctor", "--json"]):
        assert run_command(arguments) == 0
        said = "".join(capsys.readouterr())
        for secret in (str(tmp_path), "somebody", "someones-project"):
            assert secret not in said
    assert shown in said


def test_a_package_that_is_missing_or_too_old_makes_it_not_ready(monkeypatch, capsys):
    needs = ["torch>=2.6", "numba>=99", "no-such-package>=1", 'pytest>=99; extra == "dev"']
    monkeypatch.setattr(doctor.metadata, "requires", lambda _: needs)
    assert run_command(["doctor"]) == 2
    out = " ".join(capsys.readouterr().out.split())
    assert "missing no-such-package not installed; no-such-package>=1 is needed" in out
    assert "numba: pip install 'numba>=99'" in out
    assert "Not ready: 2 things missing" in out
    assert "pytest" not in out
    assert run_command(["doctor", "--json"]) == 2
    assert not json.loads(capsys.readouterr().out)["ready"]


def test_without_an_installed_package_bounds_are_not_known(monkeypatch):
    def nothing(_: str) -> list[str]:
        raise metadata.PackageNotFoundError

    monkeypatch.setattr(doctor.metadata, "requires", nothing)
    checkup = examine(Silent())
    assert check(checkup, "packages").standing == "note"
    assert checkup.is_ready


def test_folders_are_told_with_size_and_permissions(tmp_path, monkeypatch):
    state = Path(".specprobe")
    (state / "runs").mkdir(parents=True, mode=0o700)
    state.chmod(0o700)
    (state / "runs" / "run.json").write_bytes(b"x" * 3_000_000)
    (state / "loop").symlink_to(state.absolute())
    found = check(examine(Silent()), "state")
    assert (found.standing, found.values["exists"]) == ("ok", True)
    assert 3_000_000 <= found.values["bytes"] < 3_001_000
    assert "holds 3 MB" in found.found
    state.chmod(0o755)
    found = check(examine(Silent()), "state")
    assert found.standing == "note"
    assert "chmod" in found.remedy
    assert check(examine(Silent()), "cache").found == "$SPECPROBE_CACHE: not made yet, 100.0 GB of disk free"
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: SimpleNamespace(free=10**9))
    assert check(examine(Silent()), "cache").standing == "note"


def test_a_folder_that_cannot_be_written_to_makes_it_not_ready(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SPECPROBE_CACHE", str(tmp_path / "file" / "cache"))
    checkup = examine(Silent())
    assert check(checkup, "cache").standing == "missing"
    assert "SPECPROBE_CACHE" in check(checkup, "cache").remedy
    assert not checkup.is_ready


@pytest.mark.parametrize(("free", "standing"), [(10**9, "note"), (None, "ok"), (8 * 10**9, "ok")])
def test_little_memory_is_a_note(monkeypatch, free, standing):
    monkeypatch.setattr(doctor, "free_bytes", lambda: free)
    assert check(examine(Silent()), "memory").standing == standing


def test_gpus_are_named_with_their_memory(monkeypatch):
    gpu = SimpleNamespace(name="NVIDIA H200", total_memory=150 * 10**9)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: gpu)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    checkup = examine(Silent())
    assert check(checkup, "cuda:1").found == "NVIDIA H200, 150.0 GB"
    assert check(checkup, "cuda:0").values == {"name": "NVIDIA H200", "total_bytes": 150 * 10**9}
    assert check(checkup, "mps").standing == "ok"


def test_a_torch_that_does_not_load_makes_it_not_ready(monkeypatch):
    def broken() -> int:
        raise OSError("/home/someone/lib/libtorch.so: cannot open shared object file")

    monkeypatch.setattr(torch.cuda, "device_count", broken)
    found = check(examine(Silent()), "device")
    assert (found.standing, found.found) == ("missing", "PyTorch does not load (OSError)")


@pytest.mark.parametrize(
    ("place", "standing", "words"),
    [("cache", "ok", "in the cache"), ("wheel", "ok", "converted at first use"), (None, "note", "pip install")],
)
def test_the_embedded_target_or_how_to_get_it(tmp_path, monkeypatch, place, standing, words):
    monkeypatch.setattr(embedded, "_wheel_file", lambda: Path("x.gguf") if place == "wheel" else None)
    if place == "cache":
        (tmp_path / "cache" / "targets" / embedded._COPY_NAME).mkdir(parents=True)
    checkup = examine(Silent())
    found = check(checkup, "embedded target")
    assert found.standing == standing
    assert words in f"{found.found} {found.remedy}"
    assert checkup.is_ready


@pytest.fixture
def server():
    class Refusing(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_response(405)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Refusing) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()


def test_the_hub_is_asked_only_when_told(monkeypatch, server):
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setenv("HF_ENDPOINT", server)
    found = check(examine(Silent(), network=True), "hub")
    assert (found.standing, found.found) == ("ok", "$HF_ENDPOINT answers")
    monkeypatch.setattr(doctor.urllib.request, "urlopen", lambda *_, **__: pytest.fail("asked"))
    examine(Silent())
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert check(examine(Silent(), network=True), "hub").standing == "note"


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:9", "no address"])
def test_a_hub_that_does_not_answer_is_a_note(monkeypatch, endpoint):
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    checkup = examine(Silent(), network=True)
    assert check(checkup, "hub").standing == "note"
    assert endpoint not in check(checkup, "hub").found
    assert checkup.is_ready


@pytest.mark.parametrize("width", [40, 80])
def test_every_finding_is_shown_however_narrow(width, monkeypatch):
    monkeypatch.setattr(doctor.metadata, "requires", lambda _: ["no-such-package>=1"])
    checkup = examine(Silent())
    console = Console(width=width, highlight=False, markup=False)
    with console.capture() as capture:
        console.print(render_checkup(checkup))
    lines = capture.get().splitlines()
    assert max(map(len, lines)) <= width
    shown = "".join("".join(lines).split())
    for one in checkup.checks:
        assert one.standing in shown
        assert one.name.replace(" ", "") in shown or width < 80


def test_nothing_but_torch_is_imported():
    code = (
        "import sys; from specprobe.cli import run_command; status = run_command(['doctor', '--json']);"
        "sys.exit(status or ('transformers' in sys.modules) + ('datasets' in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
