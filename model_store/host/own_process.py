"""Composes the command that runs one of our modules in a separate process.

In: a module and its arguments. Out: a command for `subprocess`.

Rule: modules are never imported from the working directory. `python -m` searches it first, so a
folder `services` or a file `random.py` in it would replace our package or Python's module. Our
modules are imported from the folder that this process uses.
"""

import sys
from pathlib import Path

PACKAGES = Path(__file__).parents[2]
"""Folder of our packages: a checkout, or the environment's `site-packages`."""
_START = (
    "import runpy, sys; root, module = sys.argv[1:3]; del sys.argv[1:3]; "
    "sys.path[:0] = [] if root in sys.path else [root]; "
    "runpy.run_module(module, run_name='__main__', alter_sys=True)"
)


def own_command(
    module: str, *arguments: str, python: str = "", packages: Path = PACKAGES
) -> list[str]:
    """Returns the command.

    Args:
        module: module to run as `python -m` would, such as `services.gateway`.
        arguments: its command-line arguments.
        python: the interpreter; empty for that of this process.
        packages: the folder of our packages, such as that of another checkout.
    """
    return [python or sys.executable, "-P", "-c", _START, str(packages), module, *arguments]
