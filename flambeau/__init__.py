"""flambeau: from a PyTorch training recipe to live traffic.

`from flambeau import Client, AsyncClient` calls models on a server. Importing the package itself is
cheap: each name is loaded at first use.
"""

from typing import TYPE_CHECKING

__all__ = ["AsyncClient", "Client", "Tls", "__version__"]

if TYPE_CHECKING:
    from flambeau.channel import Tls
    from flambeau.client import AsyncClient, Client

    __version__: str
else:

    def __getattr__(name: str) -> object:
        if name in ("AsyncClient", "Client"):
            from flambeau import client

            return getattr(client, name)
        if name == "Tls":
            from flambeau.channel import Tls

            return Tls
        if name == "__version__":
            return _version()
        raise AttributeError(f"module 'flambeau' has no attribute '{name}'")


def _version() -> str:
    """Returns the version in pyproject.toml: as installed, or read from the checkout."""
    from importlib import metadata

    try:
        return metadata.version("flambeau")
    except metadata.PackageNotFoundError:
        import tomllib
        from pathlib import Path

        pyproject = Path(__file__).parents[1] / "pyproject.toml"
        return str(tomllib.loads(pyproject.read_text())["project"]["version"])
