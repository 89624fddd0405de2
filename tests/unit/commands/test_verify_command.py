"""`flambeau verify`, run as the shell runs it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner, Result

from flambeau.commands.models import models_app
from flambeau.commands.verify import verify
from model_store.certificates.certificates import certificates
from model_store.storage.storage import Storage
from model_store.store import ModelStore
from services.inference.backends.artifact_fit import UnfitArtifactError
from services.inference.loading import artifact_files
from tests.fixtures.onnx_models import linear, publish, slow_lookup


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    return ModelStore(str(tmp_path / "store"))


def run(store: ModelStore, *arguments: object) -> Result:
    app = typer.Typer()
    app.command()(verify)
    app.add_typer(models_app, name="models")
    return CliRunner().invoke(app, [*map(str, arguments), "--store", store.url])


def test_a_version_that_holds_is_recorded_and_listed(store: ModelStore) -> None:
    manifest = publish(store.url, "m", linear(2))
    found = run(store, "verify", "m", 1)
    assert found.exit_code == 0, found.output
    assert found.stdout.splitlines()[0].startswith("m 1 on ")
    assert found.stdout.splitlines()[-1].endswith("passed")
    (certificate,) = certificates(store, manifest)
    name = certificate.environment.digest()
    assert found.stderr.splitlines() == [
        "onnx (1 of 1)",
        f"recorded as m/certificates/1/{name}.json",
    ]
    listed = run(store, "verify", "m", "--list")
    assert name in listed.stdout
    assert "1 of 1 passed" in listed.stdout
    assert json.loads(run(store, "verify", "m", "--list", "--json").stdout) == [
        certificate.model_dump(mode="json")
    ]
    assert f"  {name}" in run(store, "models", "show", "m").stdout


def test_one_artifact_that_fails_is_enough(store: ModelStore) -> None:
    manifest = publish(store.url, "m", linear(5), linear(2))
    found = run(store, "verify", "m", "--json")
    assert found.exit_code == 1
    assert found.stderr.splitlines()[-1] == "error: failed here: onnx"
    document: Any = json.loads(found.stdout)
    assert [one["outcome"] for one in document["artifacts"]] == ["failed", "passed"]
    (recorded,) = certificates(store, manifest)
    assert not recorded.holds, "a failure is recorded as well"
    assert "failed: onnx" in run(store, "verify", "m", "--list").stdout


def unfit(*_: object) -> None:
    raise UnfitArtifactError("it lacks a processor")


def test_a_machine_that_can_run_nothing_proves_nothing(
    store: ModelStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(store.url, "m", linear(2))
    monkeypatch.setattr(artifact_files, "check_fit", unfit)
    found = run(store, "verify", "m")
    assert found.exit_code == 1
    assert "not run here: it lacks a processor" in found.stdout
    assert found.stderr.endswith("error: no artifact could be run here\n")


def test_a_store_that_cannot_be_written_to_fails_after_the_table(
    store: ModelStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(store.url, "m", linear(2))
    monkeypatch.setattr(artifact_files, "check_fit", unfit)

    def refuse(self: Storage, path: str, data: bytes) -> None:
        with self._failures(f"write '{path}'"):
            raise PermissionError("read-only")

    monkeypatch.setattr(Storage, "replace", refuse)
    found = run(store, "verify", "m")
    assert found.exit_code == 1
    assert "not run here" in found.stdout
    assert "cannot write 'm/certificates/1/" in found.stderr


def test_a_version_is_run_with_the_settings_of_a_worker(store: ModelStore) -> None:
    manifest = publish(store.url, "m", linear(2))
    own = "model_settings={m: {threads: 2, preferred_batch_sizes: [4]}, n: {threads: 3}}"
    found = run(store, "verify", "m", "--set", own)
    assert found.exit_code == 0, found.output
    (certificate,) = certificates(store, manifest)
    assert certificate.environment.threads == 2
    found = run(store, "verify", "m", "--set", "signature_needed_for=everything")
    assert found.exit_code == 1
    assert "not run here: " in found.stdout
    assert "signed" in found.stdout


def test_an_artifact_has_limits_of_time_and_memory(store: ModelStore) -> None:
    rows = np.zeros(2, np.int64)
    publish(store.url, "slow", slow_lookup(), golden={"work": rows + 30_000, "index": rows})
    found = run(store, "verify", "slow", "--time-limit-s", "0.1")
    assert found.exit_code == 1
    assert "it took longer than 0.1 s" in found.stdout
    publish(store.url, "large", linear(2, layers=1, width=6000))
    found = run(store, "verify", "large", "--memory-gib", "0.1")
    assert found.exit_code == 1
    assert "it needed more than 0.1 GiB of memory" in found.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("verify", "m"), 1, "model 'm' is not in the store"),
        (("verify", "n", "--data"), 1, "has no recipe.resolved.yaml"),
        (("verify", "n", "--device", "tpu"), 2, "device 'tpu' is unknown"),
        (("verify", "n", "--list"), 0, "n 1 has no certificate yet; use: flambeau verify n 1"),
        (("verify", "n", "--on", "localhost:8001"), 2, "No such option: --on"),
        (("verify", "n", "--set", "onx_providers=[cuda]"), 2, "did you mean 'onnx_providers'?"),
        (("verify", "n", "--set", "threads"), 2, "'threads' is not NAME=VALUE"),
        (("verify", "n", "--time-limit-s", "0"), 2, "Invalid value for '--time-limit-s'"),
        (("verify", "n", "--memory-gib", "inf"), 2, "Invalid value for '--memory-gib'"),
    ],
)
def test_what_cannot_be_verified_says_why(
    store: ModelStore, arguments: tuple[str, ...], code: int, text: str
) -> None:
    publish(store.url, "n", linear(2))
    found = run(store, *arguments)
    assert found.exit_code == code
    assert text in found.output
