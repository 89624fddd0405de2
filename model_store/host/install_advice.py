"""The command that installs an extra of flambeau into the environment that runs this.

In: an extra. Out: words for an error message. An environment that `make` made, or any other of a
checkout, needs another command than one that a wheel was installed into.
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
"""Where the packages lie: a checkout, or the environment's `site-packages`."""
OURS = frozenset({"flambeau", "model_store", "protos", "services", "training"})


def install_command(extra: str) -> str:
    """The command, as it is typed in the working directory.

    Args:
        extra: of `pyproject.toml`, such as `data`; several with commas between.
    """
    return f"{_pip()} install {_requirement(extra, CHECKOUT, _installed_from())}"


def package_command(package: str) -> str:
    """The same for a package that no extra has.

    Args:
        package: as its index calls it.
    """
    return f"{_pip()} install {package}"


@contextlib.contextmanager
def needing(extra: str) -> Iterator[None]:
    """Ends the process in words where the block imports a library that is not installed.

    Args:
        extra: that brings it; see `install_command`.

    Raises:
        SystemExit: with the words, which Python prints, and 1.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in OURS:
            raise  # a mistake of ours, which no command mends
        raise SystemExit(f"error: {error}; install it with {install_command(extra)}") from error


def _requirement(extra: str, packages: Path, wheel: str | None) -> str:
    """What pip is to install.

    Args:
        extra: of it.
        packages: where they lie.
        wheel: the file that they were installed from; None for an index.
    """
    if (packages / "pyproject.toml").is_file():
        return f"-e '{_shown(packages)}[{extra}]'"
    return f"'flambeau[{extra}] @ {wheel}'" if wheel else f"'flambeau[{extra}]'"


def _installed_from() -> str | None:
    """The URL of the wheel, if it was a file that is still there."""
    for found in distributions(name="flambeau"):
        if text := found.read_text("direct_url.json"):
            url = str(json.loads(text)["url"])
            if Path(unquote(urlparse(url).path)).is_file():
                return url
    return None


def _pip() -> str:
    """This environment's pip, as the shell finds it."""
    pip = Path(sys.executable).with_name("pip")
    if not pip.exists():
        return f"{_shown(Path(sys.executable))} -m pip"
    found = shutil.which("pip")
    return "pip" if found and Path(found) == pip else _shown(pip)


def _shown(path: Path) -> str:
    """Relative where it is below the working directory."""
    below = os.path.relpath(path)
    return str(path) if below.startswith(os.pardir) else below
