"""`make images-check`: builds every image's file system, starts each as it will be started, asks.

In: `deploy/*.Dockerfile`, and wheels fetched first. Out: sizes, and exit code 0 if a model that the
trainer's image trained was served by the worker's and asked for through the gateway's, over REST
and gRPC. All but the fetching happens without a network but loopback, in a namespace of its own.
CUDA's build is only linted: it needs wheels of several gigabytes and a GPU.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from deploy.lock import TORCH
from tests.images.clean_root import ROOT, BuildError, CleanRoot
from tests.images.dockerfile import read_dockerfile
from tests.images.smoke import check_all

WHEELS = ROOT / "var/image_wheels"
LOCKS = ("build", "gateway", "inference-onnx", "trainer")
LIMITS_MB = {"gateway": 250, "inference": 1000, "trainer": None}
"""What may be installed on top of the base image, whose size cannot be measured here."""


def main() -> int:
    """Runs all of it. Returns the exit code."""
    parser = argparse.ArgumentParser(description="Proves the images without a container engine.")
    parser.add_argument("--in-namespace", action="store_true", help=argparse.SUPPRESS)
    if parser.parse_args().in_namespace:
        try:
            return build_and_check()
        except BuildError as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
    if os.geteuid() != 0 or sys.version_info[:2] != (3, 11):
        print("error: run it as root (mounts, chroot) with Python 3.11, the images'",
              file=sys.stderr)  # fmt: skip
        return 2
    fetch_wheels()
    command = 'ip link set lo up && exec "$@"'
    again = [sys.executable, "-m", "tests.images", "--in-namespace"]
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


def build_and_check() -> int:
    """Builds in a temporary folder, prints the sizes, starts and asks. Returns the exit code."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        images = {image: build(image, folder / image) for image in LIMITS_MB}
        fits = True
        for image, limit_mb in LIMITS_MB.items():
            size_mb = images[image].size_mb()
            fits = fits and (limit_mb is None or size_mb <= limit_mb)
            limit = "" if limit_mb is None else f", at most {limit_mb}"
            print(f"{image}: {size_mb:.0f} MB on top of its base{limit}", flush=True)
        check_all(images, folder / "volumes")
    print("the images build, start read-only as uid 10001, train, serve and stop")
    return 0 if fits else 1


def build(image: str, folder: Path) -> CleanRoot:
    """Builds one image's stages, each in a folder of its own. Returns the last."""
    stages = read_dockerfile(ROOT / f"deploy/{image}.Dockerfile", {})
    roots: dict[str, CleanRoot] = {}
    for number, stage in enumerate(stages):
        root = CleanRoot(folder / str(number), stage)
        root.build(roots, WHEELS)
        roots[stage.name] = root
    return root


if __name__ == "__main__":
    sys.exit(main())
