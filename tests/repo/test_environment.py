"""The environment that tests run in: the versions that users install, whatever tools are beside."""

import sys
from importlib.metadata import version
from pathlib import Path

import pytest

VERSIONS = Path(sys.prefix) / "serving-versions.txt"
"""Versions installed for serving, before any tool; `make` writes the file."""
TOOLS_OF_PYTHON = {"pip", "setuptools"}


def test_tests_run_on_the_versions_that_users_install() -> None:
    if not VERSIONS.exists():
        pytest.skip("this environment was not made by make")
    users = dict(line.split("==") for line in VERSIONS.read_text().splitlines())
    assert {"grpcio", "protobuf", "torch", "optuna"} <= users.keys(), "README's verbs need them"
    here = {name: version(name) for name in users.keys() - TOOLS_OF_PYTHON}
    changed = {name: (users[name], here[name]) for name in here if users[name] != here[name]}
    assert changed == {}, "a tool has changed what users get; give it an environment of its own"
