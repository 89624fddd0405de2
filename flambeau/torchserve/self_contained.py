"""An archive that must need nothing of flambeau, as where it is served by TorchServe.

In: as `ArchivedModel`. Out: the same; code of the archive that imports a package of ours fails as
it would there.
"""

import builtins
from collections.abc import Mapping, Sequence
from typing import Any

from flambeau.protocol.python_model import Context
from flambeau.torchserve.archived_model import ArchivedModel
from model_store.host.install_advice import OURS


class SelfContainedArchive(ArchivedModel):
    """The handler of one archive, in a process of its own."""

    def load(self, context: Context) -> None:
        """Opens and initializes the handler; see `ArchivedModel.load`."""
        refuse_our_packages(str(context.args["folder"]), "TorchServe")
        super().load(context)


def refuse_our_packages(folder: str, server: str) -> None:
    """Makes imports of our packages fail in all files of a folder, until the process ends.

    Args:
        folder: path of the folder.
        server: server that runs the files elsewhere, for messages.
    """
    import_any = builtins.__import__

    def import_other(
        name: str,
        globals: Mapping[str, Any] | None = None,
        locals: Mapping[str, Any] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> Any:
        package = name.partition(".")[0]
        if level == 0 and package in OURS and _is_in(folder, globals):
            raise ModuleNotFoundError(
                f"No module named '{package}' where {server} runs; import it for type checkers "
                "alone, or not at all",
                name=package,
            )
        return import_any(name, globals, locals, fromlist or (), level)

    builtins.__import__ = import_other


def _is_in(folder: str, globals: Mapping[str, Any] | None) -> bool:
    return globals is not None and str(globals.get("__file__") or "").startswith(f"{folder}/")
