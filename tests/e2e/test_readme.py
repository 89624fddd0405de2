"""The README as a new user follows it: `make demo`, `make up`, every code block, Ctrl-C.

It runs in a folder that looks like a fresh clone: everything linked, but `var/` its own, so the
first verb finds an empty store and trains. Only the ports are changed, to free ones.
"""

import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from bench.peers.running_server import free_addresses
from flambeau.server_process import server_process
from tests.fixtures.fresh_clone import link_clone

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```", re.MULTILINE | re.DOTALL)
START_S = 240
FREE_PORTS = "--set http_port=0 --set grpc_port=0 --set metrics_port=0"


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return link_clone(tmp_path_factory.mktemp("clone"))


@dataclass(frozen=True)
class Terminal:
    """A program in a terminal of its own, as a person runs it."""

    process: "subprocess.Popen[bytes]"
    fd: int

    def read_until(self, pattern: str) -> str:
        text, deadline = "", time.monotonic() + START_S
        while not re.search(pattern, text):
            ready, _, _ = select.select([self.fd], [], [], max(deadline - time.monotonic(), 0))
            assert ready, f"nothing like {pattern!r} came; so far:\n{text}"
            try:
                text += os.read(self.fd, 65_536).decode(errors="replace")
            except OSError:  # the terminal closes when the program ends
                raise AssertionError(f"ended before {pattern!r} came:\n{text}") from None
        return text

    def interrupt(self) -> int:
        os.write(self.fd, b"\x03")
        with_rest = subprocess.Popen(["cat"], stdin=self.fd, stdout=subprocess.DEVNULL)
        code = self.process.wait(60)
        with_rest.kill()
        with_rest.wait()
        return code


@pytest.fixture(scope="module")
def demo(clone: Path) -> str:
    """Returns the output of `make demo` on an empty store."""
    done = subprocess.run(["make", "demo", "ARGS="], cwd=clone, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def up(clone: Path, demo: str) -> Iterator[tuple[Terminal, str]]:
    """Runs `make up` in a terminal, with its output until it was ready."""
    primary, secondary = pty.openpty()
    process = subprocess.Popen(
        ["make", "up", f"ARGS={FREE_PORTS}"],
        cwd=clone,
        stdin=secondary,
        stdout=secondary,
        stderr=secondary,
        start_new_session=True,
        preexec_fn=lambda: os.close(os.open(os.ttyname(0), os.O_RDWR)),  # becomes its terminal
    )
    os.close(secondary)
    terminal = Terminal(process, primary)
    try:
        yield terminal, terminal.read_until(r"\nEND\r?\n")
    finally:
        if process.poll() is None:
            terminal.interrupt()
        os.close(primary)


def test_make_demo_says_that_everything_agrees(demo: str) -> None:
    last = demo.strip().splitlines()[-1]
    found = re.fullmatch(
        r"demo ok: model=digits version=1 rest_accuracy=(0\.\d+|1\.0+) grpc_accuracy=(\S+) "
        r"mean_batch=(\S+)",
        last,
    )
    assert found, last
    assert found[1] == found[2]
    assert float(found[1]) >= 0.97
    assert float(found[3]) > 1
    assert len(re.findall(r"^ +\d  +\d  +\d  +\d$", demo, re.MULTILINE)) == 10


def test_the_demo_fails_when_an_accuracy_differs(clone: Path, demo: str, tmp_path: Path) -> None:
    """The report is made to promise what no server can keep: one image more, or one less."""
    store = tmp_path / "store"
    shutil.copytree(clone / "var" / "model_store", store)
    manifest = store / "digits" / "1" / "manifest.json"
    document = json.loads(manifest.read_text())
    for artifact in document["artifacts"]:
        artifact["verification"]["metrics"]["accuracy"] -= 1 / 360
    manifest.write_text(json.dumps(document))
    command = [sys.executable, "-m", "flambeau", "demo", "--store", str(store)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert "training reported" in done.stderr
    assert "demo ok" not in done.stdout


@pytest.mark.parametrize("artifact", ["torchscript", "onnx", "onnx-int8"])
def test_every_artifact_serves_the_example(clone: Path, demo: str, artifact: str) -> None:
    store = clone / "var" / "model_store"
    body = (ROOT / "docs" / "examples" / "seven.json").read_bytes()
    with server_process(["--store", str(store), "--artifact", artifact]) as server:
        model = f"http://{server.http}/v2/models/digits"
        with urllib.request.urlopen(model) as reply:
            assert json.load(reply)["properties"]["artifact"] == artifact
        with urllib.request.urlopen(f"{model}/infer", body) as reply:
            logits = json.load(reply)["outputs"][0]["data"]
    assert logits.index(max(logits)) == 7


def test_what_make_up_prints_can_be_pasted(clone: Path, up: tuple[Terminal, str]) -> None:
    text = up[1].replace("\r\n", "\n")
    pasted = text.partition("try it:\n")[2].partition("\nEND\n")[0] + "\nEND\n"
    output = run_block(clone, "sh", pasted)
    assert '"model_name":"digits"' in output
    assert re.search(r"\[\[.*\]\]", output, re.DOTALL)


def test_the_sample_of_the_readme_is_what_is_printed(demo: str, up: tuple[Terminal, str]) -> None:
    behind = (ROOT / "README.md").read_text().partition("```sh\nmake up\n```\n")[2]
    sample = behind.partition("```text\n")[2].partition("\n```\n")[0]
    assert sample.startswith("note: torch has deprecated TorchScript")
    for line in sample.splitlines():
        if line.startswith(("note: ", "artifact ", "published ")):
            assert line.split() in [printed.split() for printed in demo.splitlines()], line
    lines = [line.split()[:1] for line in sample.partition("\n\n")[2].splitlines()]
    printed = up[1].partition("\nserving ")[2].splitlines()
    words = [line.split()[:1] for line in printed if line]
    words[0], python = ["serving"], lines.index([".venv/bin/python"])
    assert lines[:python] == words[:python]
    assert lines[python + 1 :] == words[python + 1 :]


TUTORIALS = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs/tutorials").glob("*.md"))
TORCHSERVE_PORTS = ("8080", "8081", "8082", "7070", "7071")
LONG_PAGES = [
    "docs/guides/pipelines.md",
    "docs/guides/replay.md",
    "docs/guides/rollouts.md",
    *TUTORIALS,
]


@pytest.mark.parametrize(
    "document",
    [
        "README.md",
        "docs/guides/client.md",
        *(pytest.param(page, marks=pytest.mark.long) for page in LONG_PAGES),
    ],
)
def test_every_code_block_runs(
    clone: Path, up: tuple[Terminal, str], document: str, request: pytest.FixtureRequest
) -> None:
    ports = dict(re.findall(r"(REST|gRPC|metrics) +(?:http://)?127\.0\.0\.1:(\d+)", up[1]))
    free = [address.partition(":")[2] for address in free_addresses(len(TORCHSERVE_PORTS))]
    blocks = BLOCK.findall((ROOT / document).read_text())
    assert len(blocks) >= 2
    request.addfinalizer(partial(end_server_in_background, clone))
    for language, text in blocks:
        if text.strip() in ("make up", "make demo", "make test"):
            continue  # these are the fixtures, and the command that runs this very test
        for default, name in (("8000", "REST"), ("8001", "gRPC"), ("8002", "metrics")):
            text = text.replace(f"127.0.0.1:{default}", f"127.0.0.1:{ports[name]}")
        text = text.replace(
            "flambeau infer ", f"flambeau infer --server 127.0.0.1:{ports['gRPC']} "
        )
        for default, port in zip(TORCHSERVE_PORTS, free, strict=True):
            text = re.sub(rf"(127\.0\.0\.1:|_port=){default}", rf"\g<1>{port}", text)
        run_block(clone, language, text)


def test_ctrl_c_drains_and_exits_0(up: tuple[Terminal, str]) -> None:
    assert up[0].interrupt() == 0


def end_server_in_background(clone: Path) -> None:
    """Ends the server that a page has started, and has not ended because it failed."""
    note = clone / "var/torchserve/server.pid"
    if note.exists():
        os.kill(int(note.read_text()), signal.SIGTERM)


def run_block(clone: Path, language: str, text: str) -> str:
    command = ["bash", "-euo", "pipefail", "-c", text]
    if language == "python":
        torchs_own = "ignore:`isinstance(treespec:FutureWarning"
        (clone / "block.py").write_text(text)  # a user's file, of which code is published
        command = [sys.executable, "-W", "error", "-W", torchs_own, "block.py"]
    path = f"{sys.prefix}/bin:{os.environ['PATH']}"
    done = subprocess.run(
        command, cwd=clone, env={**os.environ, "PATH": path}, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
    return done.stdout
