"""Code that a recipe names: what is not there is told with what is nearest to it."""

from pathlib import Path

import pytest

from training.errors import TargetError
from training.targets import load_target


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
