"""The command that runs a module of ours in a process of its own.

In: a module and its arguments. Out: a command for `subprocess`.

Rule kept here: `python -m` looks for modules in the working directory first, so that a folder
`services` or a file `random.py` in it would be run in place of ours or of Python's. Ours are found
where this process has its own, and the working directory is not looked into.
"""

import sys
from pathlib import Path

PACKAGES = Path(__file__).parents[2]
"""Where our packages lie: a checkout, or the environment's `site-packages`."""
_START = (
    "import runpy, sys; root, module = sys.argv[1:3]; del sys.argv[1:3]; "
    "sys.path[:0] = [] if root in sys.path else [root]; "
    "runpy.run_module(module, run_name='__main__', alter_sys=True)"
)


def own_command(
    module: str, *arguments: str, python: str = "", packages: Path = PACKAGES
) -> list[str]:
    """The command.

    Args:
        module: such as `services.gateway`; run as `python -m` would.
        arguments: of it.
        python: the interpreter; empty for that of this process.
        packages: the folder that holds ours; of another checkout, for example.
    """
    return [python or sys.executable, "-P", "-c", _START, str(packages), module, *arguments]
