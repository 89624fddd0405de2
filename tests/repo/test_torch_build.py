"""Which build of torch is installed, from where, and what is said before."""

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.torch_build import PYTORCH, SIZES, Choice, TorchIndexError, choose, told

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("wanted", "cpu_at_hand", "driver", "build", "index"),
    [
        ("", True, False, "cpu", None),
        ("", True, True, "cpu", None),
        ("", False, False, "cpu", f"{PYTORCH}cpu"),
        ("", False, True, "cuda", None),
        ("cpu", True, True, "cpu", None),
        ("cpu", False, True, "cpu", f"{PYTORCH}cpu"),
        ("cu130", True, False, "cuda", f"{PYTORCH}cu130"),
        ("pip", False, True, "", None),
        ("https://mirror.example/torch/cpu/", False, True, "cpu", None),
        ("https://mirror.example/simple", True, True, "", None),
    ],
)
def test_build_and_index(
    wanted: str, cpu_at_hand: bool, driver: bool, build: str, index: str | None
) -> None:
    found = choose(wanted, cpu_at_hand, driver)
    assert (found.build, found.index) == (build, wanted if "://" in wanted else index)
    assert not wanted or wanted in found.why or cpu_at_hand


@pytest.mark.parametrize("wanted", ["cuda", "gpu", "CPU", "13.0", "cpu cu130", "cu"])
def test_a_value_that_is_none_is_refused_with_those_there_are(wanted: str) -> None:
    with pytest.raises(TorchIndexError, match="cpu, a tag of CUDA such as cu130, pip"):
        choose(wanted, cpu_at_hand=True, driver=True)


@pytest.mark.parametrize(
    ("wanted", "nearest"), [("cp", "cpu"), ("CPU", "cpu"), ("cu_130", "cu130")]
)
def test_the_nearest_value_is_named(wanted: str, nearest: str) -> None:
    with pytest.raises(
        TorchIndexError, match=rf"TORCH_INDEX is '{wanted}' \(did you mean '{nearest}'"
    ):
        choose(wanted, cpu_at_hand=True, driver=True)


def make_install(venv: Path, index: str) -> "subprocess.CompletedProcess[str]":
    """`make install` into a folder; these tests leave it nothing to download."""
    command = ["make", "install", f"VENV={venv}", f"TORCH_INDEX={index}"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def test_a_wrong_value_is_refused_before_an_environment_is_made(tmp_path: Path) -> None:
    done = make_install(tmp_path / "venv", "cp")
    assert done.returncode != 0
    assert "error: TORCH_INDEX is 'cp' (did you mean 'cpu'?); set it to cpu, a tag" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_value_that_comes_too_late_is_noted(tmp_path: Path) -> None:
    for name in ("bin/python", ".torch-installed", ".serving-installed"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (2e9, 2e9))  # newer than pyproject.toml
    for index in ("cpu", ""):
        done = make_install(tmp_path, index)
        assert done.returncode == 0, done.stderr
        assert ("make clean first" in done.stdout) is bool(index)


@pytest.mark.parametrize("build", SIZES)
def test_what_it_takes_is_said_before_it_is_downloaded(build: str) -> None:
    words = told(Choice(build, f"{PYTORCH}{build}", "because"))
    for part in (f" from {PYTORCH}{build}", *SIZES[build], "(because)"):
        assert part in words


def test_the_documents_name_the_same_sizes() -> None:
    readme = (ROOT / "README.md").read_text()
    assert [size for _, size in SIZES.values() if size not in readme] == []


def test_images_and_compose_take_the_same_values() -> None:
    for name in ("inference", "trainer"):
        text = (ROOT / f"deploy/{name}.Dockerfile").read_text()
        assert "\nARG TORCH_INDEX=cpu\n" in text
        assert f'"{PYTORCH}$TORCH_INDEX"' in text
    compose = (ROOT / "deploy/compose.yaml").read_text()
    assert {*re.findall(r"TORCH_INDEX: (.*?)}?$", compose, re.MULTILINE)} == {
        '"${TORCH_INDEX:-cpu}"'
    }


def test_ctrl_c_ends_it_with_one_line(tmp_path: Path) -> None:
    """While pip waits for an index that never answers."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        index = f"http://127.0.0.1:{silent.getsockname()[1]}/simple"
        settings = {"PIP_INDEX_URL": index, "PIP_CONFIG_FILE": os.devnull, "HOME": str(tmp_path)}
        process = subprocess.Popen(
            [sys.executable, "-m", "deploy.torch_build", "cpu"],
            cwd=ROOT,
            env=os.environ | settings,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        silent.settimeout(60)
        connection, _ = silent.accept()
        with connection:
            os.killpg(process.pid, signal.SIGINT)
            _, errors = process.communicate(timeout=60)
    assert errors == "interrupted; the same command installs what is missing\n"
    assert process.returncode == 130
