"""Misspelt targets are told without an import, and nothing is refused that an import would find."""

from pathlib import Path

import pytest

from tests.unit.training.recipes import recipe
from training.errors import TargetError
from training.recipe.file import load_recipe
from training.recipe.target_names import check_target_names

DIGITS = "training/recipes/digits_cnn.yaml"


def check(target: str) -> None:
    check_target_names(load_recipe(DIGITS, [f"model.target={target}", "model.args={}"]))


def test_a_misspelt_name_is_told_without_running_the_file(tmp_path: Path) -> None:
    file = tmp_path / "nets.py"
    file.write_text("raise SystemExit('it ran')\n\nclass SmallNet:\n    pass\n")
    with pytest.raises(TargetError, match=r"model.target: .*nets.py has no 'SmalNet'.*mean"):
        check(f"{file}:SmalNet")


def test_a_misspelt_name_of_ours_is_told() -> None:
    with pytest.raises(TargetError, match="did you mean 'SmallCnn'"):
        check("training.networks:SmalCnn")


@pytest.mark.parametrize(
    "source",
    [
        "class Net: ...",
        "def Net(): ...",
        "async def Net(): ...",
        "Net = print",
        "Net: object = print",
        "First, Net = 1, 2",
        "from torch.nn import Linear as Net",
        "import torch.nn as Net",
        "from torch.nn import *",
        "if True:\n    class Net: ...",
        "try:\n    from a import Net\nexcept ImportError:\n    Net = None",
        "with open('f') as Net:\n    pass",
        "for Net in range(3):\n    pass",
        "(Net := 3)",
        "globals()['Net'] = 3",
        "def __getattr__(name): return print",
        "exec('class Net: ...')",
        "this is no Python",
    ],
)
def test_what_an_import_may_find_is_left_to_the_import(source: str, tmp_path: Path) -> None:
    file = tmp_path / "nets.py"
    file.write_text(source)
    check(f"{file}:Net")


@pytest.mark.parametrize(
    ("target", "told"),
    [
        ("nets.py:Net", "there is no file"),
        ("no.such:Net", "no module 'no'"),
        ("trainig.networks:SmallCnn", "no module 'trainig' .did you mean 'training'"),
        ("training.netwroks:SmallCnn", "no module 'training.netwroks'"),
    ],
)
def test_files_and_packages_that_are_not_there_are_told(target: str, told: str) -> None:
    with pytest.raises(TargetError, match=rf"model\.target.*{told}"):
        check(target)


@pytest.mark.parametrize("target", ["sklearn.nothing:Net", "torch.nnn:Linear"])
def test_modules_that_cannot_be_read_are_left_to_the_import(target: str) -> None:
    check(target)


@pytest.mark.parametrize("place", ["nets_of_the_user.py", "nets_of_the_user/__init__.py"])
def test_a_module_beside_the_recipe_is_left_to_the_import(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / place
    file.parent.mkdir(exist_ok=True)
    file.write_text("raise SystemExit('it ran')")
    chosen = load_recipe(DIGITS, ["model.target=nets_of_the_user:Net", "model.args={}"])
    monkeypatch.chdir(tmp_path)
    check_target_names(chosen)


@pytest.mark.parametrize(
    ("source", "args", "words"),
    [
        (
            "class Net(nn.Module):\n def __init__(self, width, *, deep=1): ...",
            {},
            "argument: 'width'",
        ),
        ("class Net:\n def __init__(self, width=1): ...", {"widht": 1}, "did you mean 'width'"),
        ("def Net(a, /, width): ...", {"width": 1}, "argument: 'a'|args do not fit"),
        ("def Net(width): ...", {"width": 1, "deep": 2}, "unknown key 'deep' in 'model.args'"),
    ],
)
def test_arguments_that_do_not_fit_are_told(
    source: str, args: dict[str, int], words: str, tmp_path: Path
) -> None:
    file = tmp_path / "nets.py"
    file.write_text(f"raise SystemExit('it ran')\n{source}\n")
    with pytest.raises(TargetError, match=words):
        check_target_names(recipe(model={"target": f"{file}:Net", "args": args}, data={"iris": {}}))


@pytest.mark.parametrize(
    "source",
    [
        "class Net(nn.Module):\n def __init__(self, *, width): ...",
        "class Net(nn.Module):\n def __init__(self, depth=1, **more): ...",
        "class Net(nn.Module): ...",
        "class Net(Configured):\n def __init__(self): ...",
        "class Net(metaclass=Configured):\n def __init__(self): ...",
        "class Net:\n def __new__(cls, width): ...\n def __init__(self): ...",
        "@configured\nclass Net:\n def __init__(self): ...",
        "class Net:\n @configured\n def __init__(self): ...",
        "class Net:\n def __init__(self): ...\n if True:\n  def __init__(self, width): ...",
        "class Net: ...\nNet = make(Net)",
        "if True:\n def Net(): ...",
        "async def Net(width): ...",
        "Net = make",
    ],
)
def test_arguments_that_may_fit_are_left_to_the_import(source: str, tmp_path: Path) -> None:
    file = tmp_path / "nets.py"
    file.write_text(source)
    model = {"target": f"{file}:Net", "args": {"width": 1}}
    check_target_names(recipe(model=model, data={"iris": {}}))


def test_only_definitions_are_named_where_nothing_is_near(tmp_path: Path) -> None:
    file = tmp_path / "nets.py"
    file.write_text("import numpy\nfrom torch import nn\nSIZE = 3\nclass SmallNet: ...\n")
    with pytest.raises(TargetError, match=r"has no 'Zzz' \(known: SmallNet\)$"):
        check(f"{file}:Zzz")


def test_a_data_set_may_take_the_seed_or_leave_it(tmp_path: Path) -> None:
    file = tmp_path / "rows.py"
    for written in ("seed", "", "*, seed", "**more", "seed=3"):
        file.write_text(f"def rows({written}): ...")
        check_target_names(recipe(data={"target": f"{file}:rows"}))
    file.write_text("def rows(sede): ...")
    with pytest.raises(TargetError, match="missing a required argument: 'sede'"):
        check_target_names(recipe(data={"target": f"{file}:rows"}))
