"""The packages of an image in a separate environment: its lock, and our wheel.

In: `deploy/requirements/*.txt`, and the index of pip or its cache. Out: an interpreter that finds
what the image's would, and nothing of this project's environment. Environments stay in
`var/image_locks`, one of each lock, and are made anew when the lock has changed.
"""

import fcntl
import hashlib
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from deploy.lock import OF_TORCH_FOR_CUDA, OWN_INDEX, TORCH

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "var/image_locks"
LOCK_OF_TAG = {
    ("gateway", ""): "gateway-keys",
    ("gateway", "auth"): "gateway-auth",
    ("inference", ""): "inference-onnx",
    ("inference", "torch"): "inference-torch",
    ("inference", "cuda"): "inference-cuda",
    ("registry", ""): "registry",
    ("trainer", ""): "trainer",
}
"""By image and what its tag ends in: the file that its build installs."""
COPIED = ("flambeau", "model_store", "protos", "services", "training")


def lock_of(image: str) -> str:
    """The lock of an image, such as `flambeau/gateway:0.1.0-auth`."""
    name, _, tag = image.removeprefix("flambeau/").partition(":")
    return LOCK_OF_TAG[name, tag.partition("-")[2]]


def installed(name: str) -> Path:
    """The interpreter of an environment with a lock's distributions, and no others but torch.

    torch is of the CPU wherever the image has it: CUDA's own wheels, gigabytes, are left out.

    Args:
        name: of the lock, without `.txt`.
    """
    if sys.version_info[:2] != (3, 11) or platform.machine() != "x86_64":
        pytest.skip("the images' locks are for CPython 3.11 on x86-64")
    text = (ROOT / f"deploy/requirements/{name}.txt").read_text()
    digest = hashlib.sha256(f"{text}{TORCH}".encode()).hexdigest()[:16]
    folder = FOLDER / f"{name}-{digest}"
    with _alone(name):
        if not (folder / "complete").exists():
            for old in FOLDER.glob(f"{name}-{'[0-9a-f]' * 16}"):
                shutil.rmtree(old)
            _install(folder, name, text)
            (folder / "complete").touch()
    return folder / "bin/python"


def own_wheel(folder: Path) -> Path:
    """A folder with our own packages, installed from a wheel that is built of a copy.

    Args:
        folder: for the copy and the result; made here.
    """
    source, wheels, target = folder / "source", folder / "wheels", folder / "site"
    source.mkdir(parents=True)
    for name in COPIED:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "LICENSE", "README.md"):
        shutil.copy(ROOT / name, source)
    pip = [sys.executable, "-m", "pip", "-q"]
    _run(
        [
            *pip,
            "wheel",
            "--no-deps",
            "--no-build-isolation",
            "--wheel-dir",
            str(wheels),
            str(source),
        ]
    )
    _run([*pip, "install", "--no-deps", "--target", str(target), *map(str, wheels.iterdir())])
    return target


def _install(folder: Path, name: str, text: str) -> None:
    """Installs a lock with the commands of the Dockerfiles."""
    _run([sys.executable, "-m", "venv", "--without-pip", str(folder)])
    python = str(folder / "bin/python")
    pip = [
        sys.executable,
        "-m",
        "pip",
        "-q",
        "--python",
        python,
        "install",
        "--no-deps",
        "--no-compile",
    ]  # bytecode is made of what starts import, by the first of them
    has_cuda = name.endswith("-cuda")
    wanted = folder / "requirements.txt"
    wanted.write_text("".join(
        f"{line}\n" for line in text.splitlines()
        if not (has_cuda and OF_TORCH_FOR_CUDA.fullmatch(line.partition("==")[0]))
    ))  # fmt: skip
    _run([*pip, "--require-hashes", "--requirement", str(wanted)])
    if sys.version_info < (3, 11, 3):  # redis needs it there; the images have a newer Python
        _run([*pip, "async-timeout"])
    if has_cuda or name in OWN_INDEX:
        _run([*pip, TORCH])
    if not has_cuda:
        _run([sys.executable, "-m", "pip", "--python", python, "check"])


@contextmanager
def _alone(name: str) -> Iterator[None]:
    """Keeps other test processes from making the same environment meanwhile."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / f"{name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    said = re.sub(r"(?m)^WARNING.*\n", "", done.stdout + done.stderr)
    assert done.returncode == 0, f"{' '.join(command)}:\n{said}"
