"""`flambeau models`, `push` and `pull`, run as the shell runs them."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner, Result

from flambeau.commands.models import models_app
from flambeau.commands.transfer import pull, push
from flambeau.protocol.signature import Signature, TensorSpec
from model_store.golden import GoldenRows
from model_store.manifest import Golden, Verification
from model_store.signatures.key_folder import KeyFolder
from model_store.store import ModelStore
from tests.fixtures.signing import key_in, signer_in
from tests.fixtures.store_versions import artifact_in, draft_in, entry_in, publish_in

Run = Callable[..., Result]


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    return ModelStore(str(tmp_path / "store"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "draft"


@pytest.fixture
def run(store: ModelStore) -> Run:
    """Runs a command on the store."""
    app = typer.Typer()
    app.add_typer(models_app, name="models")
    app.command()(push)
    app.command()(pull)

    def run(*arguments: object) -> Result:
        return CliRunner().invoke(app, [*map(str, arguments), "--store", store.url])

    return run


def lines(result: Result) -> list[str]:
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    return result.stdout.splitlines()


def document(result: Result) -> Any:
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def error(result: Result) -> str:
    """Returns the one line on stderr of a command that failed."""
    assert result.exit_code == 1, result.output
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ")
    return line.removeprefix("error: ")


def flip_a_bit(store: ModelStore, path: str) -> None:
    file = Path(store.url, path)
    data = bytearray(file.read_bytes())
    data[0] ^= 1
    file.write_bytes(data)


def publish_two_kinds(store: ModelStore, folder: Path) -> None:
    """Publishes a version with a fast int8 artifact and a slow one in fp32."""
    int8 = artifact_in(
        folder,
        b"x" * 21_000,
        name="onnx-int8",
        precision="int8",
        latency_ms={1: 0.07, 32: 0.7},
        peak_memory_bytes=11_400_000,
        verification=Verification.model_validate(
            {
                "max_abs_difference": 0.031,
                "agreement": 0.997,
                "metrics": {"accuracy": 0.989, "loss": 0.05},
                "tolerance": {"max_abs_difference": 1.0, "min_agreement": 0.99},
            }
        ),
    )
    store.publish(draft_in(folder, artifacts=(artifact_in(folder), int8)), folder)


def test_list_shows_what_is_live(run: Run, store: ModelStore, folder: Path) -> None:
    publish_two_kinds(store, folder)
    publish_in(store, folder)
    store.promote("digits", 1)
    store.promote("digits", 2, alias="canary")
    publish_in(store, folder, model="letters")
    assert lines(run("models", "list")) == [
        "MODEL    production  canary  PUBLISHED   SEMVER  BEST ARTIFACT      ACCURACY",
        "digits   1           2       2 versions  1.0.0   onnx-int8 0.07 ms  98.9 %",
        "letters  -           -       1 version   1.0.0   onnx 0.12 ms       98.6 %",
    ]


def test_list_as_json(run: Run, store: ModelStore, folder: Path) -> None:
    publish_two_kinds(store, folder)
    publish_in(store, folder)
    store.promote("digits", 1)
    assert document(run("models", "list", "--json")) == [
        {
            "model": "digits",
            "versions": [1, 2],
            "aliases": {"production": 1},
            "version_shown": 1,
            "semver_shown": "1.0.0",
            "best_artifact": "onnx-int8",
            "batch_size": 1,
            "latency_ms": 0.07,
            "accuracy": 0.989,
            "metric": "accuracy",
            "metric_value": 0.989,
            "own_steps": [],
            "error": None,
        }
    ]


def test_list_of_a_model_without_latency_or_accuracy(
    run: Run, store: ModelStore, folder: Path
) -> None:
    artifact = artifact_in(folder, latency_ms={})
    bare = artifact.model_copy(
        update={"verification": artifact.verification.model_copy(update={"metrics": {"mse": 2.0}})}
    )
    store.publish(draft_in(folder, artifacts=(bare,)), folder)
    assert lines(run("models", "list"))[1].split() == [
        "digits", "-", "1", "version", "1.0.0", "onnx", "-", "-",
    ]  # fmt: skip
    assert "2" in lines(run("models", "show", "digits"))[8].split()


def test_a_store_of_another_layout_is_named_by_whatever_reads_it(
    run: Run, store: ModelStore
) -> None:
    place = Path(store.url, "digits", "1")
    place.mkdir(parents=True)
    (place / "model.onnx").touch()
    told = f"the store {store.url} looks like a Triton model repository"
    assert lines(run("models", "list"))[0].startswith(told)
    listed = run("models", "list", "--json")
    assert document(listed) == []
    assert listed.stderr.startswith(told)
    assert told in error(run("models", "show", "digits"))


def test_list_of_an_empty_store(run: Run, store: ModelStore) -> None:
    assert lines(run("models", "list")) == [f"the store {store.url} holds no model yet"]
    assert document(run("models", "list", "--json")) == []


def test_list_of_a_place_that_is_no_store_names_it(run: Run, store: ModelStore) -> None:
    store.storage.create("resnet/config.pbtxt", b"")
    (line,) = lines(run("models", "list"))
    assert "looks like a Triton model repository" in line


def test_list_shows_the_others_when_one_cannot_be_read(
    run: Run, store: ModelStore, folder: Path
) -> None:
    publish_in(store, folder, model="letters")
    store.storage.create("digits/1/manifest.json", b'{"schema_version": 2}')
    result = run("models", "list")
    assert "digits/1/manifest.json has schema_version 2" in error(result)
    assert [line.split()[0] for line in result.stdout.splitlines()] == [
        "MODEL",
        "digits",
        "letters",
    ]
    unreadable, readable = json.loads(run("models", "list", "--json").stdout)
    assert "schema_version 2" in unreadable["error"]
    assert readable["best_artifact"] == "onnx"


def test_show_tells_everything(run: Run, store: ModelStore, folder: Path) -> None:
    publish_two_kinds(store, folder)
    store.promote("digits", 1)
    store.promote("digits", 1, alias="canary")
    manifest = store.manifest("digits", 1)
    shas = {entry.file: entry.sha256 for entry in manifest.all_files()}
    assert lines(run("models", "show", "digits")) == [
        "digits 1 (1.0.0)  (canary, production)  published "
        + manifest.created_at.strftime("%Y-%m-%d %H:%M:%S UTC"),
        "",
        "signature, up to 64 rows a batch",
        "  input   image   FP32  [-1,1,8,8]",
        "  output  logits  FP32  [-1,10]",
        "",
        "artifacts, fastest first",
        "  NAME       KIND  PRECISION  SIZE      DIFFERENCE  ALLOWED  AGREEMENT  AT LEAST"
        "  ACCURACY  LOSS  BATCH 1  BATCH 32  MEMORY",
        "  onnx-int8  onnx  int8       21.0 KB   0.031       1        99.7 %     99.0 %  "
        "  98.9 %    0.05  0.07 ms  0.7 ms    11.4 MB",
        "  onnx       onnx  fp32       10 bytes  2.5e-07     0.0001   100.0 %    100.0 % "
        "  98.6 %    -     0.12 ms  2 ms      -",
        "",
        "lineage",
        f"  recipe      sha256 {'1' * 64}",
        f"  data        sha256 {'2' * 64}",
        f"  git commit  {'3' * 40}",
        "  libraries   torch 2.13.0",
        "  metrics     test/accuracy 0.986",
        "",
        "files",
        f"  model.onnx          10 bytes  sha256 {shas['model.onnx']}",
        f"  model.onnx-int8     21.0 KB   sha256 {shas['model.onnx-int8']}",
        f"  golden.safetensors  2.5 KB    sha256 {shas['golden.safetensors']}",
        f"  report.json         3 bytes   sha256 {shas['report.json']}",
    ]


def test_show_tells_sizes_and_names_of_classes(run: Run, store: ModelStore, folder: Path) -> None:
    signature = Signature(
        inputs=(TensorSpec(name="image", datatype="UINT8", shape=(-1, 1, -1, 8)),),
        outputs=(TensorSpec(name="logits", datatype="FP32", shape=(-1, 12)),),
        max_batch_size=4,
        dynamic={"image": {2: (8, 32)}},
        labels={"logits": tuple("abcdefghijkl")},
    )
    rows = GoldenRows(
        {"image": np.zeros((2, 1, 8, 8), np.uint8)}, {"logits": np.zeros((2, 12), np.float32)}
    )
    golden = Golden(file=entry_in(folder, "rows.safetensors", rows.to_bytes()), rows=2)
    store.publish(draft_in(folder, signature=signature, golden=golden), folder)
    assert lines(run("models", "show", "digits"))[3:5] == [
        "  input   image   UINT8  [-1,1,8..32,8]",
        "  output  logits  FP32   [-1,12]         a, b, c, d, e, f, g, h, i, j, and 2 more",
    ]


def test_show_as_json_is_the_manifest_and_its_aliases(
    run: Run, store: ModelStore, folder: Path
) -> None:
    publish_in(store, folder)
    store.promote("digits", 1)
    shown = document(run("models", "show", "digits", "--json"))
    assert shown.pop("aliases") == ["production"]
    assert shown == json.loads(store.manifest("digits", 1).to_json())


def test_without_a_version_production_else_the_newest_is_meant(
    run: Run, store: ModelStore, folder: Path
) -> None:
    for _ in range(3):
        publish_in(store, folder)
    assert document(run("models", "show", "digits", "--json"))["version"] == 3
    store.promote("digits", 1, alias="canary")
    assert document(run("models", "show", "digits", "--json"))["version"] == 3
    store.promote("digits", 2)
    assert document(run("models", "show", "digits", "--json"))["version"] == 2
    assert lines(run("models", "verify", "digits"))[0].startswith("digits 2  ")
    assert document(run("models", "show", "digits", "1", "--json"))["version"] == 1


def test_verify_has_a_line_for_every_file(run: Run, store: ModelStore, folder: Path) -> None:
    publish_in(store, folder)
    assert lines(run("models", "verify", "digits", 1)) == [
        "digits 1  artifact onnx  model.onnx          ok",
        "digits 1  file           golden.safetensors  ok",
        "digits 1  file           report.json         ok",
        "digits 1  signature      model.sig           none",
    ]


def test_verify_says_who_signed(run: Run, store: ModelStore, folder: Path, tmp_path: Path) -> None:
    def signature() -> str:
        return lines(run("models", "verify", "digits", 1, "--keys", keys))[-1]

    keys = tmp_path / "keys"
    ada = key_in(keys, "ada")
    manifest = store.publish(draft_in(folder), folder, sign=signer_in(keys))
    assert signature() == "digits 1  signature      model.sig           by ada"
    ada.file.unlink()
    assert f"is signed by the key {ada.fingerprint}, which is not trusted here" in signature()
    KeyFolder(keys).trust(keys / "public/ada.pem")
    changed = manifest.model_copy(update={"files": ()})
    Path(store.url, "digits/1/manifest.json").write_bytes(changed.to_json())
    result = run("models", "verify", "digits", 1, "--keys", keys)
    assert error(result).startswith("1 of 3 files of digits 1 differ from what was published")
    assert "manifest.json has sha256" in result.stdout.splitlines()[-1]


def test_verify_names_every_bad_file(run: Run, store: ModelStore, folder: Path) -> None:
    publish_in(store, folder)
    publish_in(store, folder)
    store.promote("digits", 1)
    flip_a_bit(store, "digits/2/model.onnx")
    Path(store.url, "digits/2/report.json").unlink()
    result = run("models", "verify", "digits", 2)
    assert error(result) == (
        "2 of 4 files of digits 2 differ from what was published and will be refused; "
        "production stays at 1"
    )
    model, golden, report, _ = result.stdout.splitlines()
    assert model.startswith("digits 2  artifact onnx  model.onnx          digits/2/model.onnx: ")
    assert "sha256 differs from the manifest (expected c1650a9961b2… and 10 bytes, found " in model
    assert golden.endswith("  ok")
    assert "'digits/2/report.json'" in report
    assert "not found" in report


@pytest.mark.parametrize(
    ("live", "advice"),
    [
        (None, "no version is in production"),
        (1, "it is in production: flambeau models rollback digits"),
    ],
)
def test_verify_says_what_people_get_meanwhile(
    run: Run, store: ModelStore, folder: Path, live: int | None, advice: str
) -> None:
    publish_in(store, folder)
    if live:
        store.promote("digits", live)
    flip_a_bit(store, "digits/1/report.json")
    assert error(run("models", "verify", "digits", 1)).endswith(f"; {advice}")


def test_promote_rollback_and_history(run: Run, store: ModelStore, folder: Path) -> None:
    publish_in(store, folder)
    publish_in(store, folder)
    assert lines(run("models", "history", "digits")) == [
        "no pointer of digits was ever moved; use: flambeau models promote digits 1"
    ]
    assert document(run("models", "history", "digits", "--json")) == []
    assert lines(run("models", "promote", "digits", 1)) == ["digits production → 1 (generation 1)"]
    assert lines(run("models", "promote", "digits", 2, "--why", "better on ones")) == [
        "digits production → 2 (generation 2)"
    ]
    created = run("models", "promote", "digits", 2, "--alias", "canary")
    assert created.stdout == "digits canary → 2 (generation 3)\n"
    assert created.stderr == "note: created the alias 'canary' of digits\n"
    assert lines(run("models", "rollback", "digits", "--why", "worse on sevens")) == [
        "digits production → 1 (generation 4)"
    ]
    header, *moves = lines(run("models", "history", "digits"))
    assert header.split() == ["GENERATION", "WHEN", "ALIAS", "FROM", "TO", "WHO", "WHY"]
    who = store.history("digits")[0].who
    cells = [re.split(r"  +", move) for move in moves]
    assert all(cell[1].endswith(" UTC") for cell in cells)
    assert [[cell[0], *cell[2:]] for cell in cells] == [
        ["4", "production", "2", "1", who, "worse on sevens"],
        ["3", "canary", "-", "2", who],
        ["2", "production", "1", "2", who, "better on ones"],
        ["1", "production", "-", "1", who],
    ]
    assert lines(run("models", "history", "digits", "--limit", 2)) == [header, *moves[:2]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["models", "show", "letters"], "model 'letters' is not in the store"),
        (["models", "show", "digits", 7], "model 'digits' has no version 7; published: 1"),
        (["models", "promote", "digits", 2], "model 'digits' has no version 2; published: 1"),
        (["models", "rollback", "digits"], "nothing to roll back to"),
        (["models", "history", "letters"], "model 'letters' is not in the store"),
        (["push", "digits/2", "--to", "unused"], "model 'digits' has no version 2; published: 1"),
        (["models", "show", "digits@canary"], "'digits' has no alias 'canary'"),
        (["models", "promote", "digits@7"], "model 'digits' has no version 7; published: 1"),
        (["push", "digits@canary", "--to", "unused"], "'digits' has no alias 'canary'"),
        (["push", "digits/1", "--to", "gopher://x"], "cannot open the store 'gopher://x'"),
    ],
)
def test_every_failure_is_one_line(
    run: Run,
    store: ModelStore,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[object],
    message: str,
) -> None:
    monkeypatch.chdir(store.url)
    publish_in(store, folder)
    result = run(*arguments)
    assert message in error(result)
    assert result.stdout == ""
    assert store.pointers("digits") is None
    assert not Path("unused").exists()


@pytest.mark.parametrize("name", ["digits", "digits/", "digits/one", "/1/x", "1"])
def test_a_version_that_is_not_written_as_one(run: Run, name: str) -> None:
    result = run("push", name, "--to", "unused")
    assert result.exit_code == 2
    assert "Give MODEL/VERSION" in result.stderr or "is not a version number" in result.stderr


def test_a_version_is_named_by_one_word_or_by_two(
    run: Run, store: ModelStore, folder: Path, tmp_path: Path
) -> None:
    publish_in(store, folder)
    for verb in (["models", "show"], ["models", "verify"]):
        assert lines(run(*verb, "digits/1")) == lines(run(*verb, "digits", 1))
        assert lines(run(*verb, "digits@^1")) == lines(run(*verb, "digits@1"))
    assert lines(run("models", "promote", "digits/1")) == ["digits production → 1 (generation 1)"]
    moved = run("models", "promote", "digits@production", "--alias", "canary")
    assert moved.stdout == "digits canary → 1 (generation 2)\n"
    for number, named in enumerate((["digits/1"], ["digits", "1"], ["digits@canary"])):
        assert run("push", *named, "--to", tmp_path / f"other{number}").exit_code == 0


def test_push_and_pull(run: Run, store: ModelStore, folder: Path, tmp_path: Path) -> None:
    publish_in(store, folder)
    shared, other = str(tmp_path / "shared"), str(tmp_path / "other")
    result = run("push", "digits/1", "--to", shared)
    assert result.exit_code == 0
    assert result.stdout == (f"digits 1 is in {shared}: 3 files copied (2.5 KB), 0 there already\n")
    assert result.stderr.splitlines() == [
        "digits 1: model.onnx (10 bytes) done",
        "digits 1: golden.safetensors (2.5 KB) done",
        "digits 1: report.json (3 bytes) done",
    ]
    assert ModelStore(shared).manifest("digits", 1) == store.manifest("digits", 1)
    assert lines(run("push", "digits/1", "--to", shared)) == [
        f"digits 1 is in {shared}: 0 files copied (0 bytes), 3 there already"
    ]
    ModelStore(shared).publish(draft_in(folder, model="letters"), folder)
    assert run("pull", "letters/1", "--from", shared).exit_code == 0
    assert store.models() == ["digits", "letters"]
    Path(other).mkdir()
    assert "is not in the store" in error(run("pull", "letters/1", "--from", other))


def test_push_of_a_corrupt_version(
    run: Run, store: ModelStore, folder: Path, tmp_path: Path
) -> None:
    publish_in(store, folder)
    flip_a_bit(store, "digits/1/model.onnx")
    target = tmp_path / "target"
    assert "sha256 differs" in error(run("push", "digits/1", "--to", target))
    assert ModelStore(str(target)).models() == []


def test_push_shows_a_bar_on_a_terminal(
    run: Run, store: ModelStore, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    big = entry_in(folder, "big.bin", bytes(3_000_000))
    store.publish(draft_in(folder, files=(big,)), folder)
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes standard error for a terminal then
    monkeypatch.setenv("TERM", "xterm")
    result = run("push", "digits/1", "--to", tmp_path / "target")
    assert result.exit_code == 0
    assert "3.0/3.0 MB" in result.stderr
    assert "done" not in result.stderr
    assert "3 files copied (3.0 MB)" in result.stdout


def test_help_loads_no_storage_and_no_numpy() -> None:
    script = (
        "import sys, flambeau.commands.models, flambeau.commands.transfer\n"
        "print([m for m in ('obstore', 'pydantic', 'numpy', 'rich') if m in sys.modules])"
    )
    found = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert found.stdout == "[]\n"


def test_a_manifest_without_end_hides_no_other_model(
    run: Run, store: ModelStore, folder: Path
) -> None:
    publish_in(store, folder, "digits")
    publish_in(store, folder, "letters")
    store.storage.replace("digits/1/manifest.json", b"[" * 200_000)
    found = run("models", "list")
    assert found.exit_code == 1
    assert "letters" in found.stdout
    assert "digits/1/manifest.json" in found.stderr
