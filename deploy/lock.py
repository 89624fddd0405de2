"""Writes `deploy/requirements/*.txt`: every distribution of an image, with version and digest.

In: the extras of `pyproject.toml`, and the package index that pip is configured for. Out: a line
`name==version --hash=sha256:…` for each, as pip's installation report resolves them for the
interpreter and machine this runs on (CPython 3.11, x86-64: those of the images). Rules:

- The digests are those of the index; images may be built from any mirror with the same files.
- torch is left out of images that have its CPU build, and so are the CUDA libraries that torch of
  the usual index requires: CPU builds come from a separate index with different digests, so the
  Dockerfile installs torch by its version alone, and `pip check` has to agree.
"""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TORCH = "torch==2.13.0"
"""Requirement that CPU images install, by version alone."""
FOLDER = ROOT / "deploy/requirements"
IMAGES: dict[str, tuple[str, ...]] = {
    "gateway-keys": ("edges", "tracing"),
    "gateway-auth": ("edges", "tracing", "auth"),
    "inference-onnx": ("serve", "signing", "tracing"),
    "inference-torch": ("serve", "signing", "tracing", "torch"),
    "inference-cuda": ("gpu", "tracing"),
    "registry": ("edges", "auth", "signing"),
    "trainer": ("trainer", "auth"),
}
"""The extras of each image. `torch` is not an extra: it stands for torch's own requirements."""
OWN_INDEX = frozenset({"inference-torch", "trainer"})
"""Images whose torch is not in their requirements file."""
OF_TORCH_FOR_CUDA = re.compile(r"torch|triton|(nvidia|cuda)-.*")
HEADER = (
    "# By `make lock-images`, for CPython 3.11 on x86-64 Linux; change pyproject.toml, not this.\n"
)


def main() -> int:
    """Resolves the images named on the command line, or all of them. Returns the exit code."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    for name in sys.argv[1:] or [*IMAGES, "build"]:
        if name == "build":
            wanted = project["build-system"]["requires"]
        else:
            wanted = wanted_by(IMAGES[name], project["project"])
        lines = resolved(wanted, without_torch=name in OWN_INDEX)
        (FOLDER / f"{name}.txt").write_text(HEADER + "".join(f"{line}\n" for line in lines))
        print(f"{name}: {len(lines)} distributions")
    return 0


def wanted_by(extras: tuple[str, ...], project: dict[str, object]) -> list[str]:
    """Returns flambeau's requirements with these extras, extras of extras resolved."""
    optional = project["optional-dependencies"]
    found = project["dependencies"]
    assert isinstance(optional, dict)
    assert isinstance(found, list)
    found = list(found)
    for extra in extras:
        for requirement in [TORCH] if extra == "torch" else optional[extra]:
            if requirement.startswith("flambeau["):
                inner = tuple(requirement.removeprefix("flambeau[").rstrip("]").split(","))
                found += wanted_by(inner, project)
            else:
                found.append(requirement)
    return list(dict.fromkeys(found))


def resolved(wanted: list[str], without_torch: bool) -> list[str]:
    """Resolves requirements with pip, and returns them sorted, each with its digest.

    Raises:
        subprocess.CalledProcessError: pip finds no solution; it has printed the reason.
        ValueError: the index gives no digest of a file.
    """
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed",
               "--only-binary", ":all:", "--report", "-", *wanted]  # fmt: skip
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout  # noqa: S603
    lines = []
    for item in json.loads(output)["install"]:
        version = item["metadata"]["version"]
        name = item["metadata"]["name"].lower().replace("_", "-")
        if without_torch and OF_TORCH_FOR_CUDA.fullmatch(name):
            continue
        digest = item["download_info"]["archive_info"].get("hashes", {}).get("sha256")
        if digest is None:
            raise ValueError(f"the index gives no sha256 of {name} {version}; use one that does")
        lines.append(f"{name}=={version} --hash=sha256:{digest}")
    return sorted(lines)


if __name__ == "__main__":
    sys.exit(main())
