"""`make images-check`: builds every image's file system, starts each as it will be started, asks.

In: `deploy/*.Dockerfile`, and wheels fetched first. Out: sizes, and exit code 0 if a model that the
trainer's image trained was served by the worker's, asked for through the gateway's over REST and
gRPC, and shown by the registry's. All but the fetching happens without a network but loopback, in a
namespace of its own. CUDA's build is only linted: it needs wheels of several gigabytes and a GPU.
`--base` makes the base image again and builds on that: its size is told, and nothing is used that
only this machine has.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from deploy.lock import TORCH
from tests.images.base_image import BaseImageError, make_base_image, size_mb
from tests.images.clean_root import ROOT, BuildError, CleanRoot
from tests.images.dockerfile import read_dockerfile
from tests.images.smoke import check_all

WHEELS = ROOT / "var/image_wheels"
LOCKS = ("build", "gateway-keys", "inference-onnx", "registry", "trainer")
BASE = ROOT / "var/image_base"
LIMITS_MB = {"gateway": 250, "inference": 1000, "registry": 300, "trainer": None}
"""Largest size of an image, with its base."""
BASE_MB = 130
"""Documented size of the base image; `--base` measures it."""


def main() -> int:
    """Runs all of it. Returns the exit code."""
    parser = argparse.ArgumentParser(description="Proves the images without a container engine.")
    parser.add_argument("--base", action="store_true", help="build on the base image made again")
    parser.add_argument("--in-namespace", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    base = BASE if arguments.base else None
    if arguments.in_namespace:
        try:
            return build_and_check(base)
        except BuildError as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
    if os.geteuid() != 0 or not (3, 11, 3) <= sys.version_info < (3, 12):
        # Below 3.11.3, as in Debian 12, redis needs a package that the images do not have.
        version = sys.version.split()[0]
        print(f"error: run it as root (mounts, chroot) with Python 3.11.3 or a later 3.11, not "
              f"{version}; make images-check IMAGES_PYTHON=/path/to/python3.11 names one",
              file=sys.stderr)  # fmt: skip
        return 2
    if base:
        try:
            make_base_image(base)
        except BaseImageError as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
    fetch_wheels()
    command = 'ip link set lo up && exec "$@"'
    again = [sys.executable, "-m", "tests.images", "--in-namespace", *sys.argv[1:]]
    return subprocess.call(["unshare", "--net", "sh", "-c", command, "in-namespace", *again])


def fetch_wheels() -> None:
    """Puts all that the images install into one folder, unless it is there; pip checks it."""
    files = [ROOT / f"deploy/requirements/{name}.txt" for name in LOCKS]
    wanted = TORCH + "".join(file.read_text() for file in files)
    done = WHEELS / "fetched.txt"
    if done.exists() and done.read_text() == wanted:
        return
    pip = [sys.executable, "-m", "pip", "download", "-qq", "--no-deps", "--dest", str(WHEELS)]
    subprocess.run([*pip, TORCH], check=True)
    for file in files:
        subprocess.run([*pip, "--require-hashes", "--requirement", str(file)], check=True)
    done.write_text(wanted)


def build_and_check(base: Path | None) -> int:
    """Builds in a temporary folder, prints the sizes, starts and asks. Returns the exit code."""
    base_mb = size_mb(base) if base else BASE_MB
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        images = {image: build(image, folder / image, base) for image in LIMITS_MB}
        fits = True
        for image, limit_mb in LIMITS_MB.items():
            own_mb = images[image].size_mb()
            fits = fits and (limit_mb is None or own_mb + base_mb <= limit_mb)
            limit = "" if limit_mb is None else f"; at most {limit_mb}"
            whole = f"{own_mb + base_mb:.0f} MB with its base of {base_mb:.0f}"
            print(f"{image}: {own_mb:.0f} MB, {whole}{limit}", flush=True)
        check_all(images, folder / "volumes")
    print("the images build, start read-only as uid 10001, train, serve and stop")
    return 0 if fits else 1


def build(image: str, folder: Path, base: Path | None) -> CleanRoot:
    """Builds one image's stages, each in a folder of its own. Returns the last.

    A stage of the full image, with what compiles and strips, has this machine's Debian for it.
    """
    stages = read_dockerfile(ROOT / f"deploy/{image}.Dockerfile", {})
    roots: dict[str, CleanRoot] = {}
    for number, stage in enumerate(stages):
        own_base = base if "slim" in stage.base else None
        root = CleanRoot(folder / str(number), stage, own_base)
        root.build(roots, WHEELS)
        roots[stage.name] = root
    return root


if __name__ == "__main__":
    sys.exit(main())
