"""Installs torch into the current environment: the build for the CPU, or one for CUDA.

In: the value of `TORCH_INDEX` (README.md), pip's configuration, and the presence of an NVIDIA
driver. Out: an installed torch. Before the download it prints the package, its source and its size.
Run by make, by an interpreter that has nothing but pip.
"""

import difflib
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from deploy.lock import TORCH

VERSION = TORCH.partition("==")[2]
PYTORCH = "https://download.pytorch.org/whl/"
"""PyTorch's own wheels: a folder for the CPU, and one for each CUDA version."""
VALUES = "cpu, a tag of CUDA such as cu130, pip (as pip is configured), or the URL of an index"
SIZES = {"cpu": ("0.2 GB", "1.6 GB"), "cuda": ("2.7 GB", "5.7 GB")}
"""Sizes by build: the download of torch and its libraries, and the whole environment on disk; for
torch 2.13.0 on x86-64."""

INTERRUPTED = 130
"""Exit code of a program that Ctrl-C stopped, by shell convention."""
FOR = {"cpu": " for the CPU", "cuda": " for CUDA", "": ""}


class TorchIndexError(Exception):
    """The value of `TORCH_INDEX` is invalid."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Source of torch."""

    build: str
    """`cpu`, `cuda`, or empty if only the index knows."""
    index: str | None
    """URL of the index; None for pip's configuration."""
    why: str


def choose(wanted: str, cpu_at_hand: bool, driver: bool) -> Choice:
    """Selects the source of torch.

    Args:
        wanted: value of `TORCH_INDEX`; may be empty.
        cpu_at_hand: True if pip's configured index has a CPU build.
        driver: True if there is an NVIDIA driver.

    Raises:
        TorchIndexError: the value is none of `VALUES`.
    """
    named = f"TORCH_INDEX={wanted}"
    if "://" in wanted:
        return Choice(_build_of(wanted.rstrip("/").rpartition("/")[2]), wanted, named)
    if wanted == "pip":
        return Choice("cpu" if cpu_at_hand else "", None, named)
    if wanted in ("", "cpu") and cpu_at_hand:
        return Choice("cpu", None, "pip's configuration has it")
    if wanted == "" and driver:
        return Choice("cuda", None, "nvidia-smi finds a GPU; TORCH_INDEX=cpu needs less")
    if wanted == "":
        return Choice("cpu", f"{PYTORCH}cpu", "no GPU here; TORCH_INDEX chooses another build")
    if build := _build_of(wanted):
        return Choice(build, f"{PYTORCH}{wanted}", named)
    raise TorchIndexError(f"TORCH_INDEX is {wanted!r}{_nearest(wanted)}; set it to {VALUES}")


def told(choice: Choice) -> str:
    """Returns the text to print before the download."""
    source = choice.index or "the index that pip is configured for"
    words = f"installing {TORCH}{FOR[choice.build]} from {source}"
    if choice.build:
        download, disk = SIZES[choice.build]
        words += f"\n  {download} to download with its libraries; {disk} of disk with all the rest"
    return f"{words}\n  ({choice.why})"


def main() -> int:
    """Installs torch unless it is installed; `--check` only validates. Returns the exit code.

    The check needs only the standard library: make runs it before there is an environment.
    """
    only_checks = sys.argv[1:2] == ["--check"]
    wanted = "".join(sys.argv[2 if only_checks else 1 :]).strip()
    try:
        choose(wanted, cpu_at_hand=False, driver=False)
    except TorchIndexError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if only_checks or (not wanted and _installed() == VERSION):
        return 0
    choice = choose(wanted, _cpu_at_hand(), _driver())
    print(told(choice), flush=True)
    command = [*_pip("install"), "-qq", "--no-compile", TORCH]
    if choice.index:  # other packages come from the configured index
        command += ["--no-deps", "--index-url", choice.index]
    return subprocess.call(command)  # noqa: S603


def _nearest(wanted: str) -> str:
    close = difflib.get_close_matches(wanted.lower(), ("cpu", "pip", "cu130"), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _build_of(tag: str) -> str:
    return "cpu" if tag == "cpu" else "cuda" if re.fullmatch(r"cu\d+", tag) else ""


def _installed() -> str:
    """Returns the installed version of torch, of any build; empty if there is none."""
    try:
        return version("torch").partition("+")[0]
    except PackageNotFoundError:
        return ""


def _cpu_at_hand() -> bool:
    """Checks if pip lists a CPU build; it reads the index, and downloads no file."""
    command = [*_pip("index"), "versions", "torch"]
    done = subprocess.run(command, capture_output=True, text=True)  # noqa: S603
    listed = re.findall(r"^Available versions: (.*)$", done.stdout, re.MULTILINE)
    return f"{VERSION}+cpu" in ", ".join(listed).split(", ")


def _driver() -> bool:
    program = shutil.which("nvidia-smi")
    if program is None:
        return False
    return subprocess.run([program, "--list-gpus"], capture_output=True).returncode == 0  # noqa: S603


def _pip(verb: str) -> list[str]:
    return [sys.executable, "-m", "pip", verb, "--disable-pip-version-check"]


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("interrupted; the same command installs what is missing", file=sys.stderr)
        sys.exit(INTERRUPTED)
