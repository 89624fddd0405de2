"""The command line as a whole: imports, JSON output, error messages."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from flambeau.cli import app
from flambeau.commands.options.registry import SERVER_HELP
from flambeau.commands.text.failures import failing_with
from flambeau.errors import ClientError, ServerError, from_status
from model_store.store import ModelStore
from tests.fixtures.store_versions import publish_in

ROOT = Path(__file__).parents[3]
DIGITS = "training/recipes/digits_cnn.yaml"
PROCESSES = ("gateway", "inference", "registry", "trainer")
"""Verbs whose help is of their settings."""
SHOW_NOTHING = {
    *("serve", "up", "up-split", "capture", *PROCESSES),  # run until stopped
    *("demo", "sweep", "train run", "jobs batch"),  # tell how far they are; others show what came
    "train schema",  # is JSON
}


def verbs(group: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from verbs(command, f"{before}{name} ")
        else:
            yield f"{before}{name}", command


def test_every_verb_that_shows_something_shows_it_as_json() -> None:
    found = dict(verbs(typer.main.get_command(app)))
    assert set(found) >= SHOW_NOTHING
    lacking = [
        name
        for name, command in found.items()
        if name not in SHOW_NOTHING
        and not any("--json" in option.opts for option in command.params)
    ]
    assert lacking == []


def test_options_of_a_registry_read_the_same_in_every_command() -> None:
    whole = dict(verbs(typer.main.get_command(app)))
    options = [(name, one) for name, command in whole.items() for one in command.params]
    servers = [
        (name, one)
        for name, one in options
        if {"--server", "--at"} & set(one.opts) and one.metavar == "URL" and not one.multiple
    ]
    assert {one.help for _, one in servers} == {SERVER_HELP}
    alone = [name for name, one in servers if one.opts != ["--server", "--at"]]
    assert alone == ["models history"], "its --at is a time"
    assert len({one.help for _, one in options if one.opts == ["--why"]}) == 1


def test_the_help_shows_a_flag_without_a_value(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = typer.main.get_command(app)  # made once: it takes longer than a page of help

    def shown(name: str, columns: int) -> str:
        monkeypatch.setenv("COLUMNS", str(columns))
        with pytest.raises(SystemExit) as end:
            whole.main([*name.split(), "--help"], prog_name="flambeau")
        assert end.value.code == 0, name
        return capsys.readouterr().out

    for name in ("", *dict(verbs(whole))):
        if name not in PROCESSES:
            wide = shown(name, 200)
            assert "--help" in wide
            assert "<bool>" not in wide, name
            assert "…" not in shown(name, 80), name


def test_the_help_of_train_tells_the_options_of_a_training_here() -> None:
    shown = CliRunner().invoke(app, ["train", "--help"], env={"COLUMNS": "80"}).output
    here = next(c for name, c in verbs(typer.main.get_command(app)) if name == "train run")
    missing = [p.opts[0] for p in here.params if p.opts[0] not in shown and "-" in p.opts[0]]
    assert missing == []
    assert "flambeau train run --help" in " ".join(shown.split())


def test_a_verb_of_a_group_is_told_its_place() -> None:
    done = CliRunner().invoke(app, ["promote", "digits"], env={"COLUMNS": "200"})
    assert done.exit_code == 2
    assert re.search(
        r"Did you mean '\S+ models promote' or '\S+ rollout promote'\?", done.output
    ), done.output


@pytest.mark.parametrize(
    "words",
    [
        "models show digts", "models show digts/2", "models verify digts", "models promote digts 1",
        "models rollback digts", "models history digts", "report digts", "verify digts",
        "push digts/1 --to TO", "pull digts 1 --from STORE", "samples list digts",
        "samples show digts some-id", "models prune digts",
    ],
)  # fmt: skip
def test_a_misspelt_model_is_told_the_nearest(words: str, tmp_path: Path) -> None:
    store = ModelStore(str(tmp_path / "store"))
    publish_in(store, tmp_path / "draft")
    named = words.replace("STORE", store.url).replace("TO", str(tmp_path / "to")).split()
    elsewhere = [] if "--from" in named else ["--store", store.url]
    done = CliRunner().invoke(app, [*named, *elsewhere])
    assert "(did you mean 'digits'?)" in done.output, done.output
    assert done.exit_code == 1


@pytest.mark.parametrize(
    "words",
    [
        "models list", "models show digits", "models verify digits", "models promote digits 1",
        "models rollback digits", "models history digits", "report digits", "verify digits",
        "push digits/1 --to TO", "pull digits/1 --from TYPO", "samples list digits",
        "samples show digits some-id", "samples delete digits", "alerts",
        "models prune digits --yes --no-server",
    ],
)  # fmt: skip
def test_a_verb_that_reads_makes_no_store(words: str, tmp_path: Path) -> None:
    (tmp_path / "stores").mkdir()
    typo = tmp_path / "store"
    named = words.replace("TYPO", str(typo)).replace("TO", str(tmp_path / "to")).split()
    other = ["--store", str(tmp_path / "to" if "--from" in named else typo)]
    done = CliRunner().invoke(app, [*named, *other])
    assert done.exit_code == 2
    assert done.stdout == ""
    assert f"there is no store {typo}" in done.stderr
    assert f"(did you mean '{tmp_path}/stores'?)" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["stores"]


@pytest.mark.parametrize(("options", "told"), [([], " with --resume"), (["--resume"], "")])
def test_an_interrupted_training_tells_the_command_that_goes_on(
    options: list[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from training import pipeline

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(pipeline, "run", interrupted)
    folders = ["--store", str(tmp_path / "store"), "--runs-dir", str(tmp_path / "runs")]
    done = CliRunner().invoke(app, ["train", str(ROOT / DIGITS), *folders, *options])
    assert done.exit_code == 130
    assert done.stderr == f"interrupted; the same command{told} resumes from here\n"


def test_ctrl_c_while_the_command_line_is_imported_ends_it_with_one_line() -> None:
    script = """
import runpy, sys
class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == "typer":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupting())
runpy.run_module("flambeau", run_name="__main__")
"""
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


def loaded_by(*arguments: str) -> set[str]:
    """Returns the modules that a command has loaded when it ends."""
    script = (
        "import sys\nfrom flambeau.cli import app\n"
        "try:\n    app(sys.argv[1:])\nexcept SystemExit:\n    pass\n"
        "print('loaded', *sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        capture_output=True, text=True, cwd=ROOT, check=True,
    )  # fmt: skip
    return set(done.stdout.splitlines()[-1].split())


def test_help_imports_nothing_that_it_does_not_print() -> None:
    heavy = {"numpy", "pydantic", "obstore", "asyncio", "yaml", "grpc", "torch", "ssl"}
    assert not loaded_by("--help") & heavy


def test_a_listing_of_the_store_imports_neither_numpy_nor_torch(tmp_path: Path) -> None:
    store = ModelStore(str(tmp_path / "store"))
    publish_in(store, tmp_path / "draft")
    loaded = loaded_by("models", "list", "--store", store.url)
    assert "model_store.store" in loaded
    assert not loaded & {"numpy", "obstore", "asyncio", "grpc", "torch", "onnxruntime", "ssl"}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["modls"], "models"),
        (["models", "lst"], "list"),
        (["serve", "--htp-port=1"], "--http-port"),
        (["serve", "--set=htp_port=1"], "http_port"),
        (["up", "--set=htp_port=1"], "http_port"),
        (["up", "--http-port", "9000"], "--set http_port=9000"),
        (["up-split", "--threads=2"], "--set threads=2"),
        (["serve", "--threads"], "--set threads=VALUE"),
        (["serve", "--processes=2", "--set=processes=3"], "'processes' has an option"),
        (["up", "--set=store=there"], "'store' has an option"),
        (["gateway", "--quue=redis://here"], "--queue"),
        (["train", DIGITS, "--set", "optmi.clip=1"], "optim"),
        (
            [
                "train",
                "training/recipes/digits_cnn.yaml",
                "--set",
                "model.target=training.networks:Cn",
            ],
            "SmallCnn",
        ),
        (["train", DIGITS, "--set", "model.target=trainig.networks:SmallCnn"], "training"),
        (["train", DIGITS, "--set", "model.from=digitz@production"], "digitz"),
        (["sweep", DIGITS, "--param", "optim.adamw.lrr=log(1e-4, 1e-1)"], "lr"),
        (
            ["sweep", DIGITS, "--param", "optim.adamw.lr=log(1e-4, 1e-1)", "--metric=val/acuracy"],
            "val/accuracy",
        ),
    ],
)
def test_a_misspelt_name_is_refused_with_the_nearest_before_torch_is_imported(
    arguments: list[str], told: str
) -> None:
    script = (
        "import sys\nfrom flambeau.cli import app\n"
        "try:\n    app(sys.argv[1:])\n"
        "except SystemExit as end:\n    print('torch' in sys.modules, end.code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, cwd=ROOT
    )
    assert done.stdout.split() == ["False", "2"], done.stderr
    assert told in done.stderr


def test_nothing_is_trained_into_what_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "resnet").mkdir()
    (tmp_path / "resnet" / "config.pbtxt").touch()
    found = CliRunner().invoke(app, ["up", "--store", str(tmp_path), "--recipe", "missing.yaml"])
    assert found.exit_code == 1
    assert "error: nothing is trained into this store" in found.stderr
    assert "looks like a Triton model repository" in found.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["resnet"]


@pytest.mark.parametrize("name", ["gateway", "inference", "trainer"])
def test_each_process_of_the_split_form_has_a_verb_with_its_own_help(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "flambeau", name, "--help"],
        capture_output=True, text=True, cwd=ROOT, check=True,
    )  # fmt: skip
    assert done.stdout.startswith(f"usage: flambeau {name} ")
    assert "--log-level" in done.stdout


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ("models show --store {} di", ["digits"]),
        ("infer di", []),  # of the folder that is used unless one is named: there is none
        ("serve --store {} --model di", ["digits"]),
        ("push --store {} di", ["digits/1"]),
        ("pull --from {} di", ["digits/1"]),
    ],
)
def test_completion_is_there_for_every_shell_and_completes_models(
    tmp_path: Path, asked: str, told: list[str]
) -> None:
    store = ModelStore(str(tmp_path / "store"))
    publish_in(store, tmp_path / "draft", "digits")
    publish_in(store, tmp_path / "other", "faces")
    here = tmp_path / "here"
    here.mkdir()
    assert completed(here, asked.format(store.url)) == told
    assert not list(here.iterdir()), "a completion has made a store"


def test_completion_of_infer_knows_the_models_of_the_usual_store(tmp_path: Path) -> None:
    publish_in(ModelStore(str(tmp_path / "var/model_store")), tmp_path / "draft", "digits")
    assert completed(tmp_path, "infer di") == ["digits"]


def completed(folder: Path, line: str) -> list[str]:
    """Returns the shell completions for a line that ends in the beginning of a word."""
    done = subprocess.run(
        [str(Path(sys.executable).with_name("flambeau"))],
        env={
            "_FLAMBEAU_COMPLETE": "complete_bash",
            "COMP_WORDS": f"flambeau {line}",
            "COMP_CWORD": str(len(line.split())),
            "PYTHONPATH": str(ROOT),
        },
        capture_output=True, text=True, cwd=folder,
    )  # fmt: skip
    return done.stdout.split()


def test_a_promotion_is_shown_as_json(tmp_path: Path) -> None:
    store = ModelStore(str(tmp_path / "store"))
    publish_in(store, tmp_path / "draft")
    found = CliRunner().invoke(
        app, ["models", "promote", "digits", "1", "--json", "--store", store.url]
    )
    shown = json.loads(found.stdout)
    assert (shown["model"], shown["aliases"], shown["generation"]) == (
        "digits", {"production": 1}, 1,
    )  # fmt: skip


def test_a_check_of_files_is_shown_as_json(tmp_path: Path) -> None:
    store = ModelStore(str(tmp_path / "store"))
    publish_in(store, tmp_path / "draft")
    (Path(store.url) / "digits" / "1" / "report.json").write_text("{} ")
    found = CliRunner().invoke(app, ["models", "verify", "digits", "--json", "--store", store.url])
    shown = json.loads(found.stdout)
    assert (found.exit_code, shown["ok"]) == (1, False)
    assert [entry["file"] for entry in shown["files"] if entry["error"]] == ["report.json"]


@pytest.mark.parametrize(
    ("store", "told"),
    [("ftp://x/y", "at ftp://"), ("http://x/y", "at http://"), ("s3://", "it names no bucket"),
     ("s3:///prefix", "it names no bucket")],
)  # fmt: skip
def test_a_store_that_is_neither_a_folder_nor_a_bucket_is_refused(store: str, told: str) -> None:
    done = CliRunner().invoke(app, ["models", "list", "--store", store])
    assert (done.exit_code, done.stdout) == (1, "")
    assert told in done.stderr
    assert done.stderr.endswith("gs://bucket/prefix or az://container/prefix\n")


def test_a_whole_request_is_no_input(tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text('{"inputs": [{"name": "image"}]}')
    done = CliRunner().invoke(app, ["infer", "digits", f"--input=image={tmp_path}/r.json"])
    assert done.exit_code == 2
    assert "is a whole request" in done.stderr
    assert "/v2/models/MODEL/infer" in done.stderr


def test_who_has_no_key_is_told_the_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit), failing_with({ClientError: 1}):
        raise ServerError("this call needs a token", "UNAUTHENTICATED")
    told = "error: this call needs a token; give a key with --token-file FILE\n"
    assert capsys.readouterr().err == told


def test_who_reaches_no_server_is_told_the_option(capsys: pytest.CaptureFixture[str]) -> None:
    for details, hint in (("failed to connect", True), ("the server drains", False)):
        with pytest.raises(typer.Exit), failing_with({ClientError: 1}):
            raise from_status("UNAVAILABLE", details, timeout_s=1)
        told = capsys.readouterr().err
        assert told.endswith("; set the address with --server HOST:PORT\n") is hint, details


def test_a_keys_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["access", "list", "--file", str(tmp_path / "no.yaml")])
    assert done.exit_code == 2
    assert f"there is no file {tmp_path}/no.yaml" in done.stderr


def test_an_empty_recipe_is_said_to_be_empty(tmp_path: Path) -> None:
    (tmp_path / "r.yaml").touch()
    done = CliRunner().invoke(app, ["train", str(tmp_path / "r.yaml")])
    assert (done.exit_code, "r.yaml is empty" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("words", "option"),
    [
        ("jobs wait x --output FILE/r.npz", "--output"),
        ("jobs get x --output FOLDER", "--output"),
        ("jobs get x --output FOLDER/none/r.npz", "--output"),
        ("jobs batch digits --input-dir FOLDER --output-dir FILE", "--output-dir"),
        ("report digits --output FOLDER", "--output"),
        ("alerts --output FOLDER/none/a.yaml", "--output"),
        (f"train run {DIGITS} --runs-dir FILE/runs", "--runs-dir"),
        (f"sweep {DIGITS} --param train.epochs=int(1,2) --sweeps-dir FILE", "--sweeps-dir"),
    ],
)
def test_a_path_that_cannot_be_written_is_refused_at_once(
    words: str, option: str, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.touch()
    given = words.replace("FILE", str(file)).replace("FOLDER", str(tmp_path)).split()
    done = CliRunner().invoke(app, given, env={"COLUMNS": "400"})
    assert done.exit_code == 2, done.output
    assert f"Invalid value for '{option}': '" in done.output
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize(
    "words",
    [
        "infer digits --input image",
        "infer digits --input image=[1",
        "infer digits --input image=[1] --server localhost",
        "jobs submit digits --input image",
        "jobs get x --server nowhere",
        "train list --server nowhere",
    ],
)
def test_a_wrong_command_line_exits_with_2(words: str) -> None:
    done = CliRunner().invoke(app, words.split())
    assert (done.exit_code, done.output.count("\n")) == (2, 1), done.output


def test_a_grant_that_is_none_is_a_usage_error(tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    done = CliRunner().invoke(app, ["access", "add", "ci", "--grant", "foo", "--file", str(file)])
    assert (done.exit_code, done.stdout, file.exists()) == (2, "", False)
    assert "error: 'foo' does not begin with a scope" in done.stderr
