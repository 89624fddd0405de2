"""Installs the packages that an archive asks for, into a folder of its own.

In: an unpacked archive with a file of requirements. Out: a folder beside its files, which its own
processes alone search for modules.

Rule: this runs code of packages, and takes them from the package index that pip is configured for;
it happens only where the server's operator allows it (`install_py_dep_per_model`).
"""

import importlib.metadata
import logging
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryFile

from model_store.archives.archive_files import PACKAGES
from model_store.errors import ModelArchiveError

logger = logging.getLogger("flambeau.torchserve")
INSTALL_S = 1200.0
"""Longest time of an installation."""
_SHOWN_BYTES = 1000
IMPORTED = frozenset(
    ("annotated-types", "msgspec", "numpy", "orjson", "pydantic", "pydantic-core", "pyyaml",
     "safetensors", "typing-extensions", "typing-inspection")
)  # fmt: skip
"""Packages that the process of a handler has imported before it opens the archive."""


def install_requirements(folder: Path, file: str) -> None:
    """Installs packages.

    Args:
        folder: folder of the archive's files.
        file: name of the file of requirements there.

    Raises:
        ModelArchiveError: they cannot be installed; the message has the end of pip's output.
    """
    command = [sys.executable, "-P", "-m", "pip", "install", "--no-input", "--quiet",
               "--disable-pip-version-check", "--target", PACKAGES, "-r", file]  # fmt: skip
    with TemporaryFile() as output:
        try:
            code = subprocess.run(  # noqa: S603
                command,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=INSTALL_S,
                check=False,
            ).returncode
            why = f"pip ended with {code}"
        except (OSError, subprocess.TimeoutExpired) as error:
            code, why = 1, str(error)
        if code:
            output.seek(max(output.seek(0, 2) - _SHOWN_BYTES, 0))
            told = " ".join(output.read().decode(errors="replace").split())
            raise ModelArchiveError(
                f"the requirements in {file} cannot be installed: {why}: {told or 'no output'}; "
                "correct the file, or install the packages in the server's environment"
            )
    for note in unused_packages(folder):
        logger.warning("a requirement of an archive is not used", extra={"why": note})


def unused_packages(folder: Path) -> tuple[str, ...]:
    """Returns a note for each package of an archive that its handler does not get.

    Its process has imported that package before, in another version.

    Args:
        folder: folder of the archive's files.
    """
    own, path = _versions([str(folder / PACKAGES)]), [one for one in sys.path if one]
    of_server = _versions([one for one in path if not Path(one).is_relative_to(folder)])
    return tuple(
        f"the handler gets {name} {of_server[name]}, which the server itself uses, and not "
        f"{own[name]} of the archive's requirements; write {name}=={of_server[name]} there, or "
        "install the other version in the server's environment"
        for name in sorted(own.keys() & of_server.keys() & IMPORTED)
        if own[name] != of_server[name]
    )


def _versions(path: list[str]) -> dict[str, str]:
    """Returns the versions of packages below folders, by their normalized names."""
    found: dict[str, str] = {}
    for one in importlib.metadata.distributions(path=path):
        name = str(one.metadata["Name"]).lower().replace("_", "-")
        found.setdefault(name, one.version)
    return found
