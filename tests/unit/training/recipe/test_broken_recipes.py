"""Broken recipes end in words: an exit code, a few lines, and no traceback.

Each case is a recipe for iris that differs from one that works by its `changes`. A failure in the
recipe's own code is told with the lines of that code, and with none of ours.
"""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from typer.testing import CliRunner, Result

from flambeau.commands.train import train
from tests.unit.training import broken_networks

MOST_LINES = 5
NETS = "broken_networks.py"


def target(name: str, **more: Any) -> dict[str, Any]:
    return {"model": {"target": f"{NETS}:{name}", **more}}


def answers(kind: str, **more: Any) -> dict[str, Any]:
    """A recipe for a network whose second output, `two`, is one of `broken_networks.Answers`."""
    return target("Answers", args={"kind": kind, **more}, outputs=["logits", "two"])


def code(key: str, words: str, *lines: str) -> str:
    """Returns the pattern of an error in code: the key, the error, and its lines in order."""
    found = [rf"{NETS}:\d+ in {line}" for line in lines]
    return rf"(?s){key} fails.*: {words}\n  " + r"\n  ".join(found) + r"[^\n]*\n$"


CASES: dict[str, tuple[dict[str, Any], str]] = {
    # Nothing to train.
    "everything frozen": (
        target("Net", freeze=["*"]),
        r"no parameter .* left to train: model.freeze \(\*\) fits all of them \(first.weight, .*; "
        "narrow it",
    ),
    "everything frozen at first": (
        target("Net", freeze=["first.*", "second.*"], unfreeze_at={"epoch": 2}),
        r"left to train before epoch 2: model.freeze \(first.\*, second.\*\) fits all of them",
    ),
    "no parameters": (target("WithoutParameters"), "left to train: it has none; name a network"),
    "no parameters, some frozen": (
        target("WithoutParameters", freeze=["first.*"]), "left to train: it has none",
    ),
    "no gradients": (target("LearnsNothing"), "left to train: all 4 have requires_grad=False"),
    "a cut gradient": (target("CutsTheGradient"), "no gradient; look for detach()"),
    # Names that do not go together.
    "one name twice": (
        target("Net", outputs=["features"]),
        "model.outputs names 'features', and the data has an input of that name; a graph of onnx",
    ),
    # Batches that a norm cannot take.
    "a norm and one row left": (
        {**target("Net", args={"norm": True}), "data": {"iris": {}, "batch_size": 101}},
        r"the last batch of an epoch has 1 row \(102 rows, data.batch_size 101\), and batch norm "
        "'norm' needs 2 in training; take data.batch_size 102, or",
    ),
    "a norm and single rows": (
        {**target("Net", args={"norm": True}), "data": {"iris": {}, "batch_size": 1}},
        "every batch has 1 row .* take data.batch_size 2",
    ),
    # Values of another type.
    "an unknown key": ({"keep_artifacts": "all"}, "unknown key 'keep_artifacts'"),
    "a mapping for a target": ({"model": {"target": {"Net": 1}}}, "'model.target' is .*write text"),
    "a list for a mapping": ({"model": []}, "'model' is .*: write a mapping, as in {key: value}"),
    "text for a list": (target("Net", freeze="first.*"), r"write a list, as in \[first.\*\]"),
    "text for a number": ({"train": {"epochs": "many"}}, "'many': write a whole number"),
    "nothing for a part": ({"publish": None}, "'publish' is .*: write a mapping"),
    # Code that cannot be had.
    "a network that is made": (target("made_already"), "is a network, not a factory"),
    "no such name": (target("Nett"), "has no 'Nett' .*did you mean 'Net'"),
    "no such file": ({"model": {"target": "nets.py:Net"}}, "there is no file .*/nets.py"),
    "no such module": ({"model": {"target": "nowhere.here:Net"}}, "no module 'nowhere'"),
    "a file with a mistake": (
        {"model": {"target": "mistaken.py:Net"}},
        r"fails when imported: SyntaxError: .* \(mistaken.py:2\)",
    ),
    "a file that misses another": (
        {"model": {"target": "missing.py:Net"}},
        r"No module named 'nothing_there'\n  missing.py:1 in <module>: import nothing_there\n$",
    ),
    "a file that ends the process": (
        {"model": {"target": "ending.py:Net"}}, r"SystemExit: 4\n  ending.py:1 in <module>",
    ),
    "a package of our name": (
        {"model": {"target": "training.nets:Net"}},
        r"flambeau has a package of the name 'training' \(.*\), which hides yours \(.*\): name the "
        r"file instead \(training/nets.py:Name\)",
    ),
    "a module of our name": (
        {"model": {"target": "training.networks:Net"}}, "has no 'Net' .*, which hides yours",
    ),
    "a step in a package of our name": (
        {"preprocess": [{"python": {"target": "training.nets:Step"}}]}, ", which hides yours",
    ),
    "a lazy layer": (target("IsLazy"), r"lazy layers.* \(layer.weight, layer.bias\); give their"),
    "an expanded buffer": (
        target("HasViews", args={"kind": "expanded"}), "'view' is a view of other memory .*clone",
    ),
    "a slice for a buffer": (target("HasViews", args={"kind": "slice"}), "'view' is a view of"),
    "weights that are others turned": (
        target("HasViews", args={"kind": "turned"}), "'view' is a view of other memory",
    ),
    "a network that returns other names": (
        target("ReturnsMapping"), r"returns \['classes'\] and model.outputs names \['logits'\]; ",
    ),
    "a network that returns nothing": (target("ReturnsNothing"), "returns None; return a tensor"),
    "a network that changes its input": (
        target("ChangesItsInput"), "changes its input 'features' in place",
    ),
    # Outputs that no server can answer with.
    "an output of BF16": (
        answers("bf16"),
        r"model.target .*:Answers gives output 2 \('two'\) as torch.bfloat16, which servers cannot "
        r"answer with; end forward with y.float\(\)\n$",
    ),
    "an only output of BF16": (
        target("Answers", args={"kind": "bf16", "first": True}),
        r"gives output 1 \('logits'\) as torch.bfloat16",
    ),
    "an output of 8 bits": (answers("float8"), r"output 2 \('two'\) as torch.float8_e5m2, .*float"),
    "a complex output": (
        answers("complex"), r"output 2 \('two'\) as torch.complex64, .*; return .*view_as_real",
    ),
    "a sparse output": (answers("sparse"), r"output 2 \('two'\) .*return a dense tensor"),
    "an output that is nothing": (
        answers("none"), r"returns a tuple whose item 2 \('two'\) is None; return a tensor",
    ),
    "a list for an output": (answers("list"), r"tuple whose item 2 \('two'\) is a list; return"),
    "one number for all rows": (
        answers("scalar"),
        r"gives output 'two' \[\] for 1 row, \[\] for 2 rows, \[\] for 7 rows, and an output has a "
        r"row for each row of the batch, .*; let forward reduce the other axes alone",
    ),
    "the same for all rows": (
        answers("constant"),
        r"gives output 'two' \[5\] for 1 row, \[5\] for 2 rows, .*; remove outputs",
    ),
    "rows along another axis": (
        answers("turned"), r"'two' \[3, 1\] for 1 row, .* first, as y.transpose\(0, 1\)",
    ),
    "as many rows as fit": (answers("vary"), r"'two' \[.*; let forward keep every row"),
    "as many rows as fit, which few do not show": (
        answers("cut"),
        r"the trained network gives output 'two' \[8, 3\] for 30 rows, .*; let forward keep",
    ),
    "rows beside each other": (answers("square"), r"'two' \[1, 1\] .*; let a row have the same"),
    "an axis that a single row loses": (
        answers("squeezed"), r"'two' \[\] for 1 row, \[2\] for 2 rows, .*; let forward reduce",
    ),
    "random answers": (
        answers("random"),
        r"gives different outputs for the same rows the second time \(output 'two' differs by up "
        r"to 0\.\d+\), .* draw random numbers in training only",
    ),
    "random whole numbers": (answers("random numbers"), r"time \(output 'two' has other values\)"),
    # Code that raises.
    "a constructor that fails": (
        target("FailsWhenMade"),
        code("model.target .*:FailsWhenMade", "ZeroDivisionError: .*", "__init__: .*", "layer_of"),
    ),
    "a constructor that ends the process": (
        target("EndsTheProcess"), code("model.target .*", "SystemExit: 3", "__init__"),
    ),
    "a constructor that forgets to begin": (
        target("ForgetsToBegin"), code("model.target .*", "AttributeError: .*", "__init__"),
    ),
    "a network that fails": (
        target("FailsInForward"), code("model.target .*", "RuntimeError: mat1 .*", "forward"),
    ),
    "a network that fails in a layer": (
        target("FailsInForward"),
        r"fails on inputs 'features' \[2, 4\] in layer 'second' \(Linear\(in_features=8, "
        r"out_features=3, bias=True\)\), which was given \[2, 4\]: RuntimeError",
    ),
    "a network that mixes rows": (
        target("MixesRows"),
        r"the trained network's own answer to a row depends on the other rows of its batch .*; "
        r"no tolerance and no other kind helps a network that mixes rows; figures in",
    ),
    "a network of another width": (
        {"model": {"target": "training.models.mlp:Mlp", "args": {"features": 30}}},
        r"fails on inputs 'features' \[2, 4\] in layer 'standardise' \(BatchNorm1d\(30, .*\)\), "
        r"which was given \[2, 4\]: RuntimeError",
    ),
    "a network that fails in training": (
        target("FailsInTraining"), code("model.target .*", "KeyError: 'teacher'", "forward"),
    ),
    "a network that fails when it is evaluated": (
        target("FailsForManyRows"), code("the recipe's code", "KeyError: 'many'", "forward"),
    ),
    "a backward pass that fails": (
        target("FailsInBackward"), code("model.target .*", "LookupError: .*", "backward"),
    ),
    "a twin that fails": (
        target("HasNoTwin"), code("HasNoTwin.export_twin", "ValueError: .*", "export_twin"),
    ),
    "data that fail": (
        {"data": {"target": f"{NETS}:no_data"}}, code("data.target .*", "OSError: .*", "no_data"),
    ),
    "a loss that cannot be made": (
        {"loss": {"target": f"{NETS}:no_loss"}}, code("loss.target .*", ".*no loss", "no_loss"),
    ),
    "a loss that fails": (
        {"loss": {"target": f"{NETS}:failing_loss"}},
        code("loss.target .*", "AttributeError: .*", "<lambda>"),
    ),
    "weights that fail": (
        {"data": {"iris": {}, "sampler": {"weighted": {"target": f"{NETS}:no_weights"}}}},
        code("data.sampler.weighted.target .*", "ValueError: .*", "no_weights"),
    ),
    "a change that fails": (
        {"data": {"iris": {}, "augment": [{"function": {"target": f"{NETS}:no_change"}}]}},
        code(".*no_change", "ValueError: .*", "no_change"),
    ),
    "a step that cannot be made": (
        {"preprocess": [{"module": {"target": f"{NETS}:NoStep"}}]},
        code("preprocess.0.module.target .*", "ValueError: .*", "__init__"),
    ),
    "a step that fails": (
        {"preprocess": [{"module": {"target": f"{NETS}:FailingStep"}}]},
        code("preprocess.0.module", "ValueError: .*", "forward"),
    ),
    "a python step that fails": (
        {"preprocess": [{"python": {"target": f"{NETS}:PythonStep"}}]},
        code("preprocess.0.python: PythonStep", "KeyError: 'words'", "__call__"),
    ),
}  # fmt: skip


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with broken code in it, and a package called as one of ours is."""
    shutil.copy(broken_networks.__file__, tmp_path / NETS)
    files = {
        "mistaken.py": "\nclass Net(:\n",
        "missing.py": "import nothing_there\nclass Net: ...\n",
        "ending.py": "raise SystemExit(4)\nclass Net: ...\n",
        "training/__init__.py": "",
        "training/nets.py": "class Net: ...\n",
        "training/networks.py": "class Net: ...\n",
    }
    (tmp_path / "training").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(source: str, *more: str) -> Result:
    app = typer.Typer()
    app.command()(train)
    return CliRunner().invoke(app, [source, *more])


def told(result: Result) -> str:
    """Returns the error output; checks that it is no traceback."""
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code in (1, 2)
    assert "Traceback" not in result.output
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") <= MOST_LINES
    return result.stderr


@pytest.mark.parametrize("name", CASES)
def test_a_broken_recipe_ends_in_words(project: Path, name: str) -> None:
    changes, words = CASES[name]
    document = {
        "name": "broken",
        "model": {"target": f"{NETS}:Net"},
        "data": {"iris": {}},
        "train": {"epochs": 1},
        "export": [{"kind": "onnx"}],
        "publish": {"model": "broken"},
    }
    (project / "recipe.yaml").write_text(yaml.safe_dump({**document, **changes}))
    assert re.search(words, told(run("recipe.yaml"))), told(run("recipe.yaml"))
    assert not list(project.glob("var/store/broken/*"))


def test_a_function_that_makes_a_wrong_recipe_is_told_with_its_line(project: Path) -> None:
    words = told(run(f"{NETS}:recipe"))
    assert re.search(
        r"recipe broken_networks.py:recipe fails: ValidationError: 'model.target' is <class .*>: "
        r"write its location, as text: path/file.py:Net or .*'data' is missing",
        words,
    )
    assert re.search(r"\n  broken_networks.py:\d+ in recipe: return Recipe", words)


def test_a_value_for_set_is_told_as_one_in_the_file(project: Path) -> None:
    (project / "recipe.yaml").write_text("name: broken\n")
    assert "unknown key 'keep_artifacts'" in told(run("recipe.yaml", "--set", "keep_artifacts=all"))


def test_layers_may_share_their_weights(project: Path) -> None:
    (project / "recipe.yaml").write_text(
        yaml.safe_dump(
            {
                "name": "tied",
                **target("HasViews", args={"kind": "tied"}),
                "data": {"iris": {}},
                "train": {"epochs": 1},
                "export": [{"kind": "onnx"}],
                "publish": {"model": "tied"},
            }
        )
    )
    result = run("recipe.yaml")
    assert result.exit_code == 0, result.output
