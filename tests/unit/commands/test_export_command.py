"""`flambeau models export`, run as the shell runs it."""

import json
import os
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from flambeau.cli import app
from model_store.store import ModelStore
from tests.fixtures import python_models
from tests.fixtures.onnx_models import linear, publish


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    return ModelStore(str(tmp_path / "store"))


def run(store: ModelStore, *arguments: object) -> Result:
    command = ["models", "export", *map(str, arguments), "--store", store.url]
    return CliRunner().invoke(app, command)


def test_an_archive_in_the_working_directory(
    store: ModelStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(store.url, "digits", linear(2))
    monkeypatch.chdir(tmp_path)
    found = run(store, "digits/1", "--format", "mar")
    assert found.exit_code == 0, found.output
    assert found.stdout.startswith("wrote digits.mar (")
    assert found.stdout.endswith(
        "): onnx of digits 1 (1.0.0); its 8 golden rows differ by at most 0\n"
    )
    assert zipfile.is_zipfile("digits.mar")
    again = run(store, "digits@1", "--format", "mar")
    assert again.exit_code == 1
    assert again.stderr == "error: digits.mar exists; remove it, or add --force\n"
    forced = run(store, "digits", 1, "--format", "mar", "--force", "--json")
    assert forced.exit_code == 0, forced.output
    document = json.loads(forced.stdout)
    assert (document["path"], document["artifact"], document["rows"]) == ("digits.mar", "onnx", 8)


@pytest.mark.parametrize(
    ("arguments", "code", "word"),
    [
        (["digits/1"], 2, "the option --format is missing; give one of mar (TorchServe archive), "),
        (["--format", "mar"], 2, "give MODEL/VERSION"),
        (["digits/1", "--format", "triton", "--all"], 2, "give one of them"),
        (["--format", "mlflow", "--all"], 2, "--all needs --format triton"),
        (["digits/1", "--format", "triton", "--output", "none"], 1, "there is no folder none"),
        (["digits/1", "--format", "zip"], 2, "'zip' is none of mar (TorchServe archive)"),
        (["digits", "--format", "mar"], 2, "which version of 'digits'?"),
        (["digits/7", "--format", "mar"], 1, "7"),
        (["nobody/1", "--format", "mar"], 1, "nobody"),
        (["../digits/1", "--format", "mar"], 2, "digits"),
        (
            ["digits/1", "--format", "mar", "--max-batch-delay", "0"],
            2,
            "greater than or equal to 1",
        ),
        (["digits/1", "--format", "mar", "--artifact", "onnxx"], 1, "no artifact 'onnxx'"),
        (["digits/1", "--format", "mar", "--output", "none/x.mar"], 1, "there is no folder none"),
        (["digits/1", "--format", "mar", "--output", "."], 1, "no regular file"),
        (["digits/1", "--format", "mar", "--output", "/dev/null", "--force"], 1, "no regular"),
    ],
)
def test_wrong_calls(
    store: ModelStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    code: int,
    word: str,
) -> None:
    publish(store.url, "digits", linear(2))
    monkeypatch.chdir(tmp_path)
    found = run(store, *arguments)
    assert found.exit_code == code, found.output
    assert word in " ".join(found.stderr.replace("│", " ").split())
    assert os.listdir(tmp_path) == ["store"]


def test_a_repository_of_all_production_versions(
    store: ModelStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second run keeps what is up to date; a folder of others is not replaced."""
    for name in ("digits", "fresh", "other"):
        publish(store.url, name, linear(2))
    python_models.publish(store.url, "bad", "import flambeau\n" + python_models.DOUBLING)
    for name in ("digits", "other", "bad"):
        store.promote(name, 1)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "repository" / "other").mkdir(parents=True)
    (tmp_path / "repository" / "other" / "config.pbtxt").write_text("max_batch_size: 7\n")
    command = ["--format", "triton", "--all", "--output", "repository"]
    found = run(store, *command)
    assert found.exit_code == 1
    written, skipped = found.stdout.splitlines()
    assert written.startswith("wrote repository/digits (")
    assert written.endswith("): onnx of digits 1 (1.0.0)")
    assert skipped == "skipped fresh: it has no production version"
    assert "No module named 'flambeau' where Triton runs" in found.stderr
    assert "repository/other exists; remove it, or add --force" in found.stderr
    assert sorted(os.listdir(tmp_path / "repository")) == ["digits", "other"]
    publish(store.url, "fresh", linear(3))
    store.promote("fresh", 2)
    store.promote("bad", publish(store.url, "bad", linear(4)).version)
    again = run(store, *command, "--force", "--json")
    assert again.exit_code == 0, again.output
    assert [(one["model"], one["exported"] is None) for one in json.loads(again.stdout)] == [
        ("bad", False), ("digits", True), ("fresh", False), ("other", False),
    ]  # fmt: skip
    publish(store.url, "digits", linear(5))
    store.promote("digits", 2)
    kept = "kept repository/{0}: {0} {1}"
    lines = run(store, *command).stdout.splitlines()
    assert lines[0] == kept.format("bad", "2 (1.1.0)")
    assert lines[1].startswith("wrote repository/digits (")
    assert sorted(os.listdir(tmp_path / "repository" / "digits")) == ["2", "config.pbtxt"]
    assert lines[2:] == [kept.format("fresh", "2 (1.1.0)"), kept.format("other", "1 (1.0.0)")]


def test_a_handler_that_differs_leaves_no_file(store: ModelStore, tmp_path: Path) -> None:
    python_models.publish(store.url, "m", "import flambeau\n" + python_models.DOUBLING)
    found = run(store, "m/1", "--format", "mar", "--output", tmp_path / "m.mar")
    assert found.exit_code == 1
    assert "No module named 'flambeau' where TorchServe runs" in found.stderr
    assert os.listdir(tmp_path) == ["store"]


def test_a_disk_that_is_full_leaves_no_file(store: ModelStore, tmp_path: Path) -> None:
    publish(store.url, "m", linear(2, layers=1, width=256))
    command = [sys.executable, "-m", "flambeau", "models", "export", "m/1", "--format", "mar"]
    found = subprocess.run(
        ["sh", "-c", 'ulimit -f 8; exec "$@"', "sh", *command, "--store", store.url],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 1, found.stderr
    assert "m.mar cannot be written: File too large; free some space" in found.stderr
    assert os.listdir(tmp_path) == ["store"]


def test_sigterm_leaves_no_file_and_no_process(store: ModelStore, tmp_path: Path) -> None:
    told = tmp_path / "told"
    source = f"""
        import os, pathlib, time

        class Model:
            def infer(self, inputs):
                pathlib.Path({str(told)!r}).write_text(str(os.getpid()))
                time.sleep(600)
        """
    os.mkfifo(told)
    python_models.publish(store.url, "m", source)
    process = subprocess.Popen(
        [sys.executable, "-m", "flambeau", "models", "export", "m/1", "--format", "mar",
         "--store", store.url],
        cwd=tmp_path,
    )  # fmt: skip
    worker = int(told.read_text())
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 128 + signal.SIGTERM
    assert sorted(os.listdir(tmp_path)) == ["store", "told"]
    assert not Path(f"/proc/{worker}").exists()
