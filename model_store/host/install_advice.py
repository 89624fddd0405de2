"""Composes the command that installs an extra of flambeau into the running environment.

In: an extra. Out: a command for an error message. An environment made by `make`, or any other of a
checkout, needs a different command than one with an installed wheel.
"""

import contextlib
import json
import os
import shutil
import sys
from collections.abc import Iterator
from importlib.metadata import distributions
from pathlib import Path
from urllib.parse import unquote, urlparse

CHECKOUT = Path(__file__).parents[2]
"""Folder of the packages: a checkout, or the environment's `site-packages`."""
OURS = frozenset({"flambeau", "model_store", "protos", "services", "training"})


def install_command(extra: str) -> str:
    """Returns the command to type in the working directory.

    Args:
        extra: an extra of `pyproject.toml`, such as `data`; several are separated by commas.
    """
    return f"{_pip()} install {_requirement(extra, CHECKOUT, _installed_from())}"


def package_command(package: str) -> str:
    """Returns the command for a package that is in no extra.

    Args:
        package: its name in the package index.
    """
    return f"{_pip()} install {package}"


@contextlib.contextmanager
def needing(extra: str) -> Iterator[None]:
    """Ends the process with a message if the block imports a library that is not installed.

    Args:
        extra: the extra that contains it; see `install_command`.

    Raises:
        SystemExit: with the message, which Python prints, and exit code 1.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in OURS:
            raise  # an internal error, which no installation fixes
        raise SystemExit(f"error: {error}; install it with {install_command(extra)}") from error


def _requirement(extra: str, packages: Path, wheel: str | None) -> str:
    """Returns the requirement that pip installs.

    Args:
        extra: the extra to add.
        packages: the folder of the packages.
        wheel: the URL of the wheel file they were installed from; None for an index.
    """
    if (packages / "pyproject.toml").is_file():
        return f"-e '{_shown(packages)}[{extra}]'"
    return f"'flambeau[{extra}] @ {wheel}'" if wheel else f"'flambeau[{extra}]'"


def _installed_from() -> str | None:
    """Returns the URL of the wheel if it was a file that still exists."""
    for found in distributions(name="flambeau"):
        if text := found.read_text("direct_url.json"):
            url = str(json.loads(text)["url"])
            if Path(unquote(urlparse(url).path)).is_file():
                return url
    return None


def _pip() -> str:
    """Returns the command for this environment's pip."""
    pip = Path(sys.executable).with_name("pip")
    if not pip.exists():
        return f"{_shown(Path(sys.executable))} -m pip"
    found = shutil.which("pip")
    return "pip" if found and Path(found) == pip else _shown(pip)


def _shown(path: Path) -> str:
    """Returns the path, relative if it is below the working directory."""
    below = os.path.relpath(path)
    return str(path) if below.startswith(os.pardir) else below
