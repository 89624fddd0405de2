"""Code named by a recipe: errors for missing names suggest the nearest one."""

from pathlib import Path

import pytest

from training.errors import TargetError
from training.recipe.targets import call_target, check_target, load_target


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a file, a package and a folder without `__init__.py`."""
    for name in ("nets/wide.py", "ranked/__init__.py", "ranked/linear.py", "loose_parts/heads.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("class Net: ...\n")
    (tmp_path / "nets" / "needs.py").write_text("import numpyy\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("nets/wied.py:Net", r"no file .*/nets/wied\.py \(did you mean 'wide\.py'\?\); paths"),
        ("nest/wide.py:Net", r"no file .*/nest/wide\.py \(did you mean 'nets'\?\); paths start"),
        ("nets/zzz.py:Net", r"no file .*/nets/zzz\.py \(known: needs\.py, wide\.py\); paths"),
        ("ranked.liner:Net", r"cannot import 'ranked\.liner': .* \(did you mean 'linear'\?\);"),
        ("rankd.linear:Net", r"cannot import 'rankd\.linear': .* \(did you mean 'ranked'\?\);"),
        ("loose_parts.haeds:Net", r"\(did you mean 'heads'\?\); packages are looked for"),
        ("loose_part.heads:Net", r"\(did you mean 'loose_parts'\?\); packages are looked for"),
        ("trainig.networks:SmallCnn", r"\(did you mean 'training'\?\); packages are looked for"),
        ("nets/wide.py:Nett", r"nets/wide\.py has no 'Nett' \(did you mean 'Net'\?\)"),
    ],
)
def test_the_nearest_name_is_told(project: Path, target: str, words: str) -> None:
    with pytest.raises(TargetError, match=words):
        load_target(target, "model.target")


@pytest.mark.parametrize(
    "target", ["nets.needs:Net", "ranked.linear.deeper:Net", "no_such_thing_anywhere:Net"]
)
def test_nothing_is_guessed_where_nothing_is_near(project: Path, target: str) -> None:
    with pytest.raises(TargetError, match="cannot import") as refused:
        load_target(target, "model.target")
    assert "did you mean" not in str(refused.value)
    assert "known:" not in str(refused.value)


def test_only_classes_and_functions_are_named_where_nothing_is_near(project: Path) -> None:
    (project / "nets" / "deep.py").write_text(
        "import json\nfrom pathlib import Path\nSIZE = 3\ndef made(): ...\nclass Deep: ...\n"
    )
    with pytest.raises(TargetError, match=r"has no 'Zzzz' \(known: Deep, made\)$"):
        load_target("nets/deep.py:Zzzz", "model.target")
    with pytest.raises(TargetError, match=r"torch\.nn has no 'Zzzz'$"):
        load_target("torch.nn:Zzzz", "model.target")
    with pytest.raises(TargetError, match=r"torch\.nn has no 'Lineer' \(did you mean 'Linear'\?\)"):
        load_target("torch.nn:Lineer", "model.target")


def test_what_is_offered_goes_to_those_who_take_it(project: Path) -> None:
    (project / "rows.py").write_text(
        "def seeded(seed, side=1): return seed, side\n"
        "def plain(side=1): return side\n"
        "def open_to_all(**more): return more\n"
    )
    offered = {"seed": 7}
    assert call_target("rows.py:seeded", {"side": 2}, "data", offered) == (7, 2)
    assert call_target("rows.py:seeded", {"seed": 3}, "data", offered) == (3, 1)
    assert call_target("rows.py:plain", {}, "data", offered) == 1
    assert call_target("rows.py:open_to_all", {}, "data", offered) == {"seed": 7}
    check_target("rows.py:plain", {"side": 2}, "data", offered)
    with pytest.raises(TargetError, match=r"unknown key 'seed' in 'data\.args'"):
        call_target("rows.py:plain", {"seed": 3}, "data", offered)
