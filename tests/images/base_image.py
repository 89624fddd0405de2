"""The base image, made again: Debian's packages and Python as `python:3.11-slim-bookworm` has them.

In: debootstrap, a mirror of Debian, and the Python that runs this. Out: a folder to build images on
in place of this machine's `/usr`, so that a library that only this machine has is missed; and a
size to add to theirs. It is not the base image itself: the packages and what is left out follow
that image's Dockerfile, and Debian's slim variant, which has no manuals.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

PACKAGES = (
    "ca-certificates", "libbz2-1.0", "libdb5.3", "libexpat1", "libffi8", "libgdbm6", "liblzma5",
    "libncursesw6", "libnsl2", "libreadline8", "libsqlite3-0", "libssl3", "libtirpc3", "libuuid1",
    "netbase", "openssl", "tzdata", "zlib1g",
)  # fmt: skip
"""Beside those that every Debian has: certificates, time zones, and what Python's modules load."""
LEFT_OUT = (
    "tmp/*", "usr/share/groff", "usr/share/i18n", "usr/share/info/*", "usr/share/lintian",
    "usr/share/man/*", "var/cache/apt/*", "var/cache/debconf/*-old", "var/lib/apt/lists/*",
    "var/lib/dpkg/*-old", "var/log/*",
)  # fmt: skip
PROGRAMS = ("python3.11", "python3", "python")
_VERSION = "python3.11"


class BaseImageError(Exception):
    """It cannot be made here; the message says what is missing."""


def make_base_image(folder: Path) -> None:
    """Puts it into a folder, unless it is there.

    Args:
        folder: made here. Half of one is removed.

    Raises:
        BaseImageError: there is no debootstrap here, or it failed.
    """
    if folder.exists():
        return
    program = shutil.which("debootstrap", path=os.defpath + ":/usr/sbin:/sbin")
    if program is None:
        raise BaseImageError("no debootstrap here; install it (apt-get install debootstrap)")
    making = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(making, ignore_errors=True)
    making.parent.mkdir(parents=True, exist_ok=True)
    include = f"--include={','.join(PACKAGES)}"
    command = [program, "--variant=minbase", include, "bookworm", str(making)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        raise BaseImageError(f"{' '.join(command)} failed:\n{done.stdout[-2000:]}")
    _leave_out_manuals(making)
    _add_python(Path(sys.base_prefix), making / "usr/local")
    making.rename(folder)


def size_mb(folder: Path) -> float:
    """The bytes of all files in megabytes (10^6), as engines count a layer: without its blocks."""
    command = ["du", "--summarize", "--apparent-size", "--block-size=1", "--one-file-system"]
    done = subprocess.run([*command, str(folder)], check=True, capture_output=True, text=True)
    return int(done.stdout.split()[0]) / 1e6


def _leave_out_manuals(root: Path) -> None:
    for pattern in LEFT_OUT:
        for path in root.glob(pattern):
            _remove(path)
    for path in list((root / "usr/share/doc").rglob("*")):
        if path.is_symlink() or (path.is_file() and path.name != "copyright"):
            path.unlink()
    for path in list((root / "usr/share/locale").iterdir()):
        if not path.name.startswith(("en", "locale")):
            _remove(path)


def _add_python(source: Path, target: Path) -> None:
    """The interpreter without tests, bytecode and symbols, and the pip and setuptools it brings."""
    library = target / "lib" / _VERSION

    def unwanted(folder: str, names: list[str]) -> set[str]:
        top = {"site-packages"} if Path(folder) == source / "lib" / _VERSION else set()
        cut = {"__pycache__", "test", "tests", "idle_test"} | top
        return {name for name in names if name in cut or name.startswith("config-3")}

    shutil.copytree(source / "lib" / _VERSION, library, symlinks=True, ignore=unwanted)
    (library / "site-packages").mkdir()
    for path in (source / "lib").glob("libpython3*.so*"):
        shutil.copy2(path, target / "lib", follow_symlinks=False)
    shutil.copytree(source / "include", target / "include", dirs_exist_ok=True)
    (target / "bin").mkdir(exist_ok=True)
    shutil.copy2(source / "bin" / _VERSION, target / "bin")
    for name in PROGRAMS[1:]:
        (target / "bin" / name).symlink_to(_VERSION)
    compiled = [*target.glob("lib/*.so*"), *library.glob("lib-dynload/*.so")]
    compiled = [target / "bin" / _VERSION, *(path for path in compiled if not path.is_symlink())]
    subprocess.run(["strip", "--strip-unneeded", *map(str, compiled)], check=True)
    root = target.parents[1]
    (root / "etc/ld.so.conf").write_text("/usr/local/lib\ninclude /etc/ld.so.conf.d/*.conf\n")
    subprocess.run(["chroot", str(root), "/sbin/ldconfig"], check=True)
    install = ["chroot", str(root), "/usr/local/bin/python3", "-B", "-m", "ensurepip"]
    subprocess.run(install, check=True, capture_output=True)
    for path in list(library.rglob("__pycache__")):
        shutil.rmtree(path)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
