"""The names that modules of an archive cannot have.

In: the folder of an archive. Out: an error, if a module of it has the name of a package of ours:
its handler's process has imported that package before, and Python has one module of a name.
"""

from pathlib import Path

from model_store.errors import ModelArchiveError
from model_store.host.install_advice import OURS


def check_module_names(folder: Path) -> None:
    """Checks the modules beside a handler.

    Raises:
        ModelArchiveError: one has the name of a package of ours.
    """
    for name in sorted(OURS):
        if (folder / f"{name}.py").exists() or any((folder / name).glob("*.py")):
            raise ModelArchiveError(
                f"the archive has a module '{name}', which is the name of a package of the server; "
                "rename it"
            )
