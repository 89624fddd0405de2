"""Publishing from Python, and importing files, to the registry of a real server, with keys."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner, Result

import flambeau
from flambeau.cli import app
from flambeau.publishing.errors import NotPromotedError, RefusedError
from model_store.records.deletion import delete_version
from model_store.store import ModelStore
from services.access.api_keys import ApiKey, add_key, digest_of, new_key
from tests.e2e.rest_calls import call
from tests.fixtures.servers import ServerProcess, running_server
from tests.unit.training.importing.foreign_models import write_steps

GRANTS = {
    "ci": ("infer", "read", "push", "promote"),
    "pusher": ("read", "push"),
    "reader": ("read",),
    "stranger": ("infer:other",),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with the files of keys, and the file of the server."""
    folder = tmp_path_factory.mktemp("keys")
    for name, grants in GRANTS.items():
        key = new_key()
        document = {"name": name, "sha256": digest_of(key).hex(), "grants": grants}
        add_key(folder / "keys.yaml", ApiKey.model_validate(document))
        (folder / name).write_text(key + "\n")
    (folder / "wrong").write_text(new_key())
    return folder


@pytest.fixture(scope="module")
def server(place: Path) -> Iterator[ServerProcess]:
    """Runs a server that asks for keys, where `guarded` needs two persons."""
    settings: dict[str, object] = {
        "api_keys_file": str(place / "keys.yaml"),
        "registry_two_person": ["guarded@production"],
    }
    with running_server(place / "store", **settings) as server:
        yield server


def publish(
    server: ServerProcess, key: Path, name: str = "mine", width: int = 4, **options: object
) -> tuple[flambeau.PublishedVersion, nn.Module]:
    net = nn.Linear(width, 3).eval()
    version = flambeau.publish(
        net, {"input": torch.randn(40, width)}, name=name, to=f"http://{server.http}",
        token_file=key, artifacts=["onnx"], progress=False, **options,  # type: ignore[arg-type]
    )  # fmt: skip
    return version, net


def answer(server: ServerProcess, key: Path, rows: np.ndarray) -> np.ndarray:
    body = {"inputs": [{"name": "input", "datatype": "FP32", "shape": [*rows.shape],
                        "data": rows.ravel().tolist()}]}  # fmt: skip
    headers = {"content-type": "application/json", "x-api-key": key.read_text().strip()}
    data = json.dumps(body).encode()
    reply = call(server, "POST", "/v2/models/mine/infer", data, headers).json()
    found = reply["outputs"][0]
    return np.array(found["data"], np.float32).reshape(found["shape"])


@pytest.mark.long
def test_versions_arrive_under_the_numbers_of_the_server(
    server: ServerProcess, place: Path
) -> None:
    url = f"http://{server.http}"
    first, net = publish(server, place / "ci")
    assert (first.version, first.semver, first.store) == (1, "1.0.0", url)
    assert first.alias == "production"
    server.wait_for_log(message="version ready", model="mine", version=1)
    rows = torch.randn(3, 4)
    expected = net(rows).detach().numpy()
    np.testing.assert_allclose(answer(server, place / "ci", rows.numpy()), expected, atol=1e-5)
    second, _ = publish(server, place / "ci", alias=None)
    assert (second.version, second.semver, second.alias) == (2, "1.1.0", None)
    store = ModelStore(str(place / "store"))
    delete_version(store, "mine", 2, "ops", "wrong data")
    third, _ = publish(server, place / "ci", alias="canary")
    assert (third.version, third.semver, third.alias) == (3, "1.2.0", "canary")
    with pytest.raises(NotPromotedError, match="breaks callers of 1") as caught:
        publish(server, place / "ci", width=5)
    left = caught.value.version
    assert (left.version, left.semver, left.alias) == (4, "2.0.0", None)
    assert "takes --allow-breaking" in left.notes[-1]
    pointers = store.pointers("mine")
    assert pointers is not None
    assert pointers.aliases == {"production": 1, "canary": 3}
    assert store.versions("mine") == [1, 3, 4]
    store.claim("mine", 5, "a publisher that failed")
    (Path(store.url) / "mine/4/manifest.json").write_text("damaged")
    last, _ = publish(server, place / "ci", alias=None)
    assert (last.version, last.semver) == (6, "1.3.0")


def test_a_version_waits_for_the_second_person_or_for_the_scope(
    server: ServerProcess, place: Path
) -> None:
    waiting, _ = publish(server, place / "ci", "guarded")
    assert (waiting.version, waiting.alias) == (1, None)
    assert waiting.notes[-1] == "production moves once a second person approves request 1"
    said = "is at http.* and production was not moved to it: .*does not have the scope 'promote'"
    with pytest.raises(NotPromotedError, match=said):
        publish(server, place / "pusher", "guarded")


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("reader", "does not have the scope 'push'"),
        ("stranger", "model 'mine' is not in the registry"),
        ("wrong", "give the file of a key with token_file"),
        ("missing", "No such file"),
    ],
)
def test_a_caller_who_may_not_push_is_told_before_the_model_is_exported(
    server: ServerProcess, place: Path, key: str, said: str
) -> None:
    steps: list[str] = []
    with pytest.raises(RefusedError, match="nothing was published") as caught:
        flambeau.publish(
            nn.Linear(4, 3).eval(), torch.randn(40, 4), name="mine", to=f"http://{server.http}",
            token_file=place / key, progress=steps.append,
        )  # fmt: skip
    assert said in str(caught.value)
    assert steps == [f"asking http://{server.http}"]


def test_servers_that_do_not_answer_and_options_that_do_not_fit(place: Path) -> None:
    net, rows = nn.Linear(4, 3).eval(), torch.randn(40, 4)
    with pytest.raises(RefusedError, match=r"no answer from http://127\.0\.0\.1:1"):
        flambeau.publish(net, rows, name="mine", to="http://127.0.0.1:1", progress=False)
    with pytest.raises(flambeau.PublishError, match="token_file and ca_file are for a server"):
        flambeau.publish(net, rows, name="mine", to=str(place / "s"), token_file=place / "ci")
    pipeline = flambeau.Pipeline.__new__(flambeau.Pipeline)
    with pytest.raises(flambeau.PublishError, match="flambeau push"):
        flambeau.publish(pipeline, rows, name="mine", to="https://127.0.0.1:1")


def import_steps(folder: Path, *options: object) -> Result:
    """Imports a file with the options; made by the command in this process."""
    file = write_steps(folder / "steps.onnx")
    words = ["import", file, "--artifacts=onnx", "--batch-axis=x=1", *options]
    return CliRunner().invoke(app, [*map(str, words)])


def test_files_are_imported_under_the_numbers_of_the_server(
    server: ServerProcess, place: Path, tmp_path: Path
) -> None:
    url, store = f"http://{server.http}", ModelStore(str(place / "store"))
    to = ("--to", url, "--token-file")
    first = import_steps(tmp_path, *to, place / "ci")
    assert first.exit_code == 0, first.output
    assert f"published steps 1 (1.0.0) → production, at {url}" in first.stdout
    server.wait_for_log(message="version ready", model="steps", version=1)
    store.claim("steps", 2, "a publisher that failed")
    second = import_steps(tmp_path, *to, place / "ci", "--name=steps", "--alias=", "--json")
    (found,) = json.loads(second.stdout)
    assert (found["version"], found["store"], found["alias"]) == (3, url, None)
    assert store.pointers("steps").aliases == {"production": 1}  # type: ignore[union-attr]
    refused = import_steps(tmp_path, *to, place / "reader")
    assert (refused.exit_code, "scope 'push'" in refused.output) == (1, True)
    unmoved = import_steps(tmp_path, *to, place / "pusher")
    assert (unmoved.exit_code, "steps 4 is at" in unmoved.output) == (1, True)
    assert "production was not moved to it" in unmoved.output


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--to=s3://bucket/store"], "name a store by --store"),
        (["--to=http://127.0.0.1:1", "--store=/elsewhere"], "give --to URL or --store URL"),
        (["--token-file={ci}"], "it is for --to URL"),
    ],
)
def test_options_of_an_import_that_do_not_fit(
    place: Path, tmp_path: Path, options: list[str], said: str
) -> None:
    given = [one.format(ci=place / "ci") for one in options]
    ended = import_steps(tmp_path, *given)
    assert (ended.exit_code, said in " ".join(ended.output.split())) == (2, True)
