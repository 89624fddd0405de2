"""One virtual environment for each peer, under `var/peers/NAME/venv`, made from PyPI and reused.

The list of its requirements is written last, beside it: an environment without that note, or with
a different one, was interrupted or is out of date, and is made again.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.peers.peer import PeerError
from deploy.lock import TORCH

FOLDER = Path(__file__).parents[2] / "var" / "peers"
"""Installed first and with this exact pin, so that an available CPU build is used."""
ALL_NEED = ("numpy", "safetensors")
INSTALL_TIMEOUT_S = 1800


class Environment:
    """The virtual environment of one peer.

    Args:
        name: name of the peer and of its folder.
        requirements: packages that pip installs besides torch; the first is the peer itself.
    """

    def __init__(self, name: str, requirements: Sequence[str]) -> None:
        self.folder = FOLDER / name
        self.venv = self.folder / "venv"
        self._requirements = (*requirements, *ALL_NEED)

    @property
    def python(self) -> str:
        """Path of its interpreter."""
        return str(self.venv / "bin" / "python")

    @property
    def site_packages(self) -> Path:
        """Path of its packages."""
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        return self.venv / "lib" / version / "site-packages"

    def script(self, name: str) -> str:
        """Returns the path of a program that a package installed."""
        return str(self.venv / "bin" / name)

    @property
    def search_path(self) -> str:
        """`PATH` with its programs first, for servers that start `python` by that name."""
        return f"{self.venv / 'bin'}:{os.environ['PATH']}"

    def install(self) -> str:
        """Creates the environment if it is missing; returns the version of the peer.

        Raises:
            PeerError: pip failed; the message holds its last lines.
        """
        made_from = "\n".join((sys.version, TORCH, *self._requirements))
        note = self.folder / "installed.txt"
        if not note.exists() or note.read_text() != made_from:
            note.unlink(missing_ok=True)
            shutil.rmtree(self.venv, ignore_errors=True)
            print(f"  making {self.venv} (minutes the first time)", flush=True)
            self._run(sys.executable, "-m", "venv", str(self.venv))
            self._run(self.python, "-m", "deploy.torch_build")
            pip = (self.python, "-m", "pip", "install", "--quiet")
            self._run(*pip, "--disable-pip-version-check", *self._requirements)
            note.write_text(made_from)
        distribution = re.split("[^a-z0-9-]", self._requirements[0])[0]
        ask = f"from importlib.metadata import version; print(version('{distribution}'))"
        return self._run(self.python, "-c", ask).strip()

    def _run(self, *argv: str) -> str:
        try:
            done = subprocess.run(argv, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S)
        except subprocess.TimeoutExpired as error:
            raise PeerError(f"{' '.join(argv[1:4])} took over {INSTALL_TIMEOUT_S} s") from error
        if done.returncode != 0:
            said = " / ".join((done.stderr or done.stdout).strip().splitlines()[-3:])
            raise PeerError(f"{' '.join(argv[1:])} failed: {said}")
        return done.stdout
