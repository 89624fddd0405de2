"""A clean root in place of an image: a folder with this machine's Debian and Python under it.

In: stages of a Dockerfile. Out: their file systems, and processes started in them. Where the base
image has Debian and Python in /usr/local, the root has those of a base image made again, or this
machine's `/usr` and interpreter, bound read-only; every step after FROM is carried out as it is
written. Needs root (mounts, chroot), and Python 3.11, that of the images.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.images.base_image import size_mb
from tests.images.dockerfile import Stage, Step

ROOT = Path(__file__).parents[2]
OF_THE_BASE = ("bin", "lib", "lib64", "sbin")
MOUNT_POINTS = ("dev", "proc", "tmp", "usr", "wheels")

# $1 the root, $2 what is /usr, $3 the interpreter's folder, $4 wheels to install from or nothing,
# $5 `ro` or `rw`, $6 user id, $7 group id, $8 volumes as FOLDER:PATH; then the command. The mounts
# end with the process, whose mount namespace is its own.
_ENTER = """
set -eu
root=$1 usr=$2 python=$3 wheels=$4 mode=$5 user=$6 group=$7 volumes=$8
shift 8
mount --bind "$root" "$root"
mount --bind "$usr" "$root/usr" && mount -o remount,bind,ro "$root/usr"
mount --bind "$python" "$root/usr/local" && mount -o remount,bind,ro "$root/usr/local"
mount --rbind /dev "$root/dev"
mount --rbind /proc "$root/proc"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
test -z "$wheels" || mount --bind "$wheels" "$root/wheels"
for volume in $volumes; do mount --bind "${volume%%:*}" "$root${volume#*:}"; done
test "$mode" = rw || mount -o remount,bind,ro "$root"
test "$user" != 0 || exec chroot "$root" "$@"
exec chroot "$root" setpriv --reuid "$user" --regid "$group" --clear-groups --no-new-privs \
    --inh-caps=-all --bounding-set=-all "$@"
"""


class BuildError(Exception):
    """A RUN that failed, and what it printed."""


class CleanRoot:
    """One stage's file system. The folder belongs to it, and is removed by whoever made it.

    Args:
        folder: made here.
        stage: what is built in it.
        base: a base image made again (`base_image`); None for this machine's Debian and Python.
    """

    def __init__(self, folder: Path, stage: Stage, base: Path | None = None) -> None:
        self.folder = folder
        self.stage = stage
        self._usr = base / "usr" if base else Path("/usr")
        self._python = base / "usr/local" if base else Path(sys.base_prefix)
        for name in MOUNT_POINTS:
            (folder / name).mkdir(parents=True)
        for name in OF_THE_BASE:
            (folder / name).symlink_to(f"usr/{name}")
        if base:
            shutil.copytree(base / "etc", folder / "etc", symlinks=True)
        else:
            (folder / "etc").mkdir()
        (folder / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
        (folder / "etc/group").write_text("root:x:0:\n")
        (folder / "etc/hosts").write_text("127.0.0.1 localhost\n")
        # Python's shared library lies in /usr/local/lib: before Debian's own of another patch.
        (folder / "etc/ld.so.conf").write_text("/usr/local/lib\n")
        subprocess.run(self._entered(["/sbin/ldconfig"], {}, "/"), check=True)

    def build(self, others: Mapping[str, "CleanRoot"], wheels: Path) -> None:
        """Carries out the stage's steps.

        Args:
            others: the stages before it, by name.
            wheels: in place of the package index; there is no network.

        Raises:
            BuildError: a RUN failed.
        """
        for step in self.stage.steps:
            if step.kind == "COPY":
                self._copy(step, others)
            else:
                self._run(step, wheels)

    def start(self, command: Sequence[str], volumes: Mapping[str, Path]) -> "subprocess.Popen[str]":
        """Starts a process as the image's user, all of it read-only but `/tmp` and the volumes.

        Its standard error is a pipe.
        """
        stage = self.stage
        user, _, group = stage.user.partition(":")
        entered = self._entered(
            command, stage.environment, stage.folder, mode="ro", user=user, group=group,
            volumes=volumes,
        )  # fmt: skip
        return subprocess.Popen(entered, stderr=subprocess.PIPE, text=True)

    def size_mb(self) -> float:
        """Returns the size that the image adds to its base, in megabytes (10^6)."""
        return size_mb(self.folder / "opt")

    def _copy(self, step: Step, others: Mapping[str, "CleanRoot"]) -> None:
        words = step.text.split()
        source_root = ROOT
        copy: Callable[[str | Path, str | Path], object] = shutil.copy2
        if words[0].startswith("--from="):
            source_root = others[words.pop(0).removeprefix("--from=")].folder
            copy = os.link  # no step writes to what is there: gigabytes need not be copied
        *sources, target = words
        place = self.folder / os.path.join(step.folder, target).lstrip("/")
        for source in sources:
            path = source_root / source.lstrip("/")
            into = place / path.name if target.endswith("/") else place
            into.parent.mkdir(parents=True, exist_ok=True)
            if path.is_dir():
                ignored = shutil.ignore_patterns("__pycache__") if source_root == ROOT else None
                shutil.copytree(path, into, symlinks=True, ignore=ignored, copy_function=copy)
            else:
                copy(path, into)

    def _run(self, step: Step, wheels: Path) -> None:
        path = "/usr/local/bin:/usr/bin:/bin"
        environment = {"PATH": path, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/wheels"}
        command = self._entered(
            ["sh", "-c", step.text], environment | step.environment, step.folder, wheels=wheels
        )
        (self.folder / step.folder.lstrip("/")).mkdir(parents=True, exist_ok=True)
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode != 0:
            raise BuildError(f"RUN {step.text}\n{done.stdout}failed with {done.returncode}")

    def _entered(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        folder: str,
        *,
        mode: str = "rw",
        user: str = "0",
        group: str = "0",
        volumes: Mapping[str, Path] | None = None,
        wheels: Path | None = None,
    ) -> list[str]:
        settings = [f"{name}={value}" for name, value in environment.items()]
        entering = ["unshare", "--mount", "--propagation", "private", "sh", "-c", _ENTER, "enter"]
        mounts = " ".join(f"{source}:{path}" for path, source in (volumes or {}).items())
        root = str(self.folder)
        usr, python = str(self._usr), str(self._python)
        arguments = [root, usr, python, str(wheels or ""), mode, user, group, mounts]
        return [*entering, *arguments, "env", "-i", f"--chdir={folder}", *settings, *command]
