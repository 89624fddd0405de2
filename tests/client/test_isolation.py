"""The client in the processes of others: beside packages of the same names, and tritonclient."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.client.scripted_server import ScriptedServer
from tests.fixtures.client_environment import client_python

ROOT = Path(__file__).parents[2]
OURS = ("model_store", "protos", "services", "training")
"""Top-level packages of this repository whose names projects use too."""

USE = """
import numpy as np
import flambeau
with flambeau.Client(sys.argv[1], timeout_s=10) as client:
    digits = client.model("digits")
    assert digits(image=np.ones((1, 2, 3), np.float32)).sum() == 6
    assert len(list(digits.map([[[1, 2, 3]] * 2] * 5, progress=True))) == 5
"""
ASYNC_USE = """
import asyncio
async def ask():
    async with flambeau.AsyncClient(sys.argv[1], timeout_s=10) as client:
        assert await client.is_ready("digits")
asyncio.run(ask())
"""
EVERY_NAME = """
for name in flambeau.__all__:
    getattr(flambeau, name)
"""
JOBS = """
import flambeau.jobs, flambeau.training_jobs
with flambeau.jobs.JobClient(sys.argv[1]), flambeau.training_jobs.TrainingClient(sys.argv[1]):
    pass
"""


def run(program: str, server: ScriptedServer, python: str = sys.executable) -> str:
    """Runs a program that finds flambeau in this checkout; returns its output."""
    done = subprocess.run(
        [python, program, server.address],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with packages of its own that are called like ours."""
    for name in OURS:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f"print('{name} of the project')\n")
    return tmp_path


def test_a_project_keeps_its_packages_of_our_names(project: Path, server: ScriptedServer) -> None:
    program = project / "main.py"
    program.write_text(
        f"import sys{USE}{ASYNC_USE}{EVERY_NAME}{JOBS}"
        f"found = sorted({{name.partition('.')[0] for name in sys.modules}} & set({OURS}))\n"
        "print('imported:', *found)\n"
        f"import {', '.join(OURS)}\n"
    )
    its_own = [f"{name} of the project" for name in OURS]
    assert run(str(program), server).splitlines() == ["imported:", *its_own]


@pytest.mark.parametrize("first", ["import tritonclient.grpc\n", ""])
def test_tritonclient_works_in_the_same_process(
    tmp_path: Path, server: ScriptedServer, first: str
) -> None:
    program = tmp_path / "main.py"
    program.write_text(
        # pydantic and others, which that environment lacks, come from the environment of tests.
        f"import sys; sys.path.append({sysconfig.get_path('purelib')!r})\n{first}{USE}"
        "import tritonclient.grpc\n"
        "assert tritonclient.grpc.InferenceServerClient(sys.argv[1]).is_model_ready('digits')\n"
        "print(tritonclient.grpc.__name__)\n"
    )
    assert run(str(program), server, client_python()) == "tritonclient.grpc\n"
