"""The page at /docs: its files, the requests that it makes, and, with Chromium, itself.

Node runs the page's own module of requests where it is installed; Chromium runs the whole page.
"""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flambeau.commands.access import access_app
from tests.e2e.rest_calls import call
from tests.fixtures.browser import CHROMIUM, Page, running_page
from tests.fixtures.servers import ROOT, ServerProcess, running_server

NODE = shutil.which("node")
MODULE = ROOT / "services/gateway/edges/documentation/request.mjs"
PROGRAM = ROOT / "tests/fixtures/page_client.mjs"
with_node = pytest.mark.skipif(NODE is None, reason="node is not installed (Debian: nodejs)")
with_browser = pytest.mark.skipif(
    CHROMIUM is None, reason="chromium is not installed (Debian: chromium)"
)


@pytest.fixture
def locked(store: Path, tmp_path: Path) -> Iterator[tuple[ServerProcess, str]]:
    """Runs a server that asks for keys; returns one that may use `linear`, too."""
    file = tmp_path / "keys.yaml"
    asked = ["add", "page", "--grant", "infer:linear", "--file", str(file)]
    found = CliRunner().invoke(access_app, asked)
    assert found.exit_code == 0, found.output
    settings = {"api_keys_file": str(file), "readiness": "any_model"}
    with running_server(store, **settings) as server:
        server.wait_until_read_through()
        yield server, found.stdout.strip()


def test_the_page_needs_no_other_host_and_no_inline_code(server: ServerProcess) -> None:
    page = call(server, "GET", "/docs")
    assert page.status == 200
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    text = page.body.decode()
    assert not re.findall(r"https?:|[\"'(]//", text)
    assert not re.findall(r"<style|\sstyle=|\son\w+=|<script(?![^>]* src=)", text)
    loaded = re.findall(r'(?:src|href)="([^"]+)"', text)
    assert {"docs/page.css", "docs/page.mjs", "openapi.json"} == set(loaded)
    for path in {*loaded, "docs/request.mjs"}:
        found = call(server, "GET", f"/{path}")
        assert found.status == 200, path
        assert not re.findall(rb"https?:|[\"'(]//", found.body.replace(b"https://", b"")[:200])


def sent_by_page(server: ServerProcess, key: str = "") -> dict[str, dict[str, object]]:
    """Returns what the page's requests of each model gave."""
    assert NODE is not None
    done = subprocess.run(
        [NODE, str(PROGRAM), f"http://{server.http}", key],
        env={**os.environ, "REQUEST_MODULE": str(MODULE)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return {one["name"]: one for one in json.loads(done.stdout)}


@with_node
def test_every_prefilled_form_is_answered_and_curl_gets_the_same(server: ServerProcess) -> None:
    found = sent_by_page(server)
    assert {"linear", "pair", "echo-int64"} <= set(found)
    assert {name: one["status"] for name, one in found.items() if one["status"] != 200} == {}
    said = subprocess.run(
        ["sh", "-c", str(found["echo-int64"]["curl"])], capture_output=True, timeout=60
    )
    assert said.stdout.decode() == found["echo-int64"]["answer"]


@with_node
def test_a_key_is_sent_and_stays_out_of_the_command(locked: tuple[ServerProcess, str]) -> None:
    server, key = locked
    assert sent_by_page(server) == {}
    found = sent_by_page(server, key)
    assert {name: one["status"] for name, one in found.items()} == {"linear": 200}
    command = str(found["linear"]["curl"])
    assert key not in command
    environment = {**os.environ, "KEY": key}
    said = subprocess.run(["sh", "-c", command], env=environment, capture_output=True, timeout=60)
    assert said.stdout.decode() == found["linear"]["answer"]


@with_node
def test_the_form_keeps_large_integers_and_names_what_is_wrong() -> None:
    program = f"""
    import {{ bodyOf, curlOf }} from "{MODULE}";
    const x = more => [{{ name: "x", datatype: "INT64", shape: "1", data: "[1]", ...more }}];
    const fault = more => {{
      try {{ bodyOf(x(more)); return ""; }} catch (error) {{ return error.message; }}
    }};
    console.log(JSON.stringify([
      bodyOf(x({{ data: "[9007199254740993]" }})),
      bodyOf(x({{ shape: "2, 2", data: "zeros" }})),
      fault({{ shape: "one" }}), fault({{ data: "{{}}" }}),
      fault({{ shape: "9999999999", data: "zeros" }}),
      fault({{ data: "random" }}),
      curlOf("http://h/it's", "'$(id)'", false),
    ]));
    """
    assert NODE is not None
    done = subprocess.run(
        [NODE, "--input-type=module", "-e", program], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    large, zeros, *faults, command = json.loads(done.stdout)
    assert large.endswith('"data":[9007199254740993]}]}')
    assert zeros.endswith('"shape":[2,2],"datatype":"INT64","data":[0,0,0,0]}]}')
    assert all(fault.startswith(("input x: ", "random values")) for fault in faults), faults
    shown = subprocess.run(
        ["sh", "-c", command.replace("curl", "printf '%s|'", 1)], capture_output=True, text=True
    )
    assert "http://h/it's" in shown.stdout
    assert "'$(id)'" in shown.stdout


def fill_and_send(page: Page, model: str) -> str:
    """Chooses a model, sends its prefilled form, and returns the answer that the page shows."""
    page.wait_for("!document.getElementById('request').hidden")
    page.value(
        "(() => { const m = document.getElementById('model');"
        f" m.selectedIndex = [...m.options].findIndex(o => o.text.startsWith('{model} '));"
        " m.dispatchEvent(new Event('change'));"
        " document.getElementById('send').click(); })()"
    )
    return str(page.wait_for("document.getElementById('answer').textContent"))


@with_browser
@pytest.mark.parametrize("dark", [False, True])
def test_the_page_in_a_browser(server: ServerProcess, tmp_path: Path, dark: bool) -> None:
    with running_page(tmp_path) as page:
        page.open(f"http://{server.http}/docs", dark=dark)
        assert '"model_name":"linear"' in fill_and_send(page, "linear")
        status = page.value("document.getElementById('status').textContent")
        assert status.startswith("200 OK")
        curl = page.value("document.getElementById('curl').textContent")
        said = subprocess.run(["sh", "-c", curl], capture_output=True, text=True, timeout=60)
        assert said.stdout == page.value("document.getElementById('answer').textContent")
        background = page.value("getComputedStyle(document.body).backgroundColor")
        assert (background == "rgb(255, 255, 255)") is not dark
        assert all(url.startswith(f"http://{server.http}/") for url in page.requested)
        assert not [fault for fault in page.faults if "favicon" not in fault]


@with_browser
def test_the_page_of_a_locked_server(locked: tuple[ServerProcess, str], tmp_path: Path) -> None:
    server, key = locked
    with running_page(tmp_path) as page:
        page.open(f"http://{server.http}/docs")
        page.wait_for("document.getElementById('operations').children.length > 0")
        assert page.value("document.getElementById('none').hidden") is False
        page.value(f"document.getElementById('key').value = '{key}'")
        page.value("document.querySelector('#access button').click()")
        assert '"model_name":"linear"' in fill_and_send(page, "linear")
        assert key not in page.value("document.getElementById('curl').textContent")
