"""flambeau: from a PyTorch model to live traffic.

Publish a model, with a proof that its artifacts match it, and serve it:

    import flambeau

    version = flambeau.publish(net, examples={"image": x}, name="digits")
    flambeau.serve("digits")

Call it, from any machine, or run it here:

    with flambeau.Client("127.0.0.1:8001") as client:
        digits = client.model("digits")
        logits = digits(image=images)

    with flambeau.load("digits@production") as digits:
        logits = digits(image=images)

`publish` takes a module or a function of tensors, `serve` starts a server, `load` gives a version
as a function, and `Client` and `AsyncClient` call models on a server. Importing the package is
cheap: each name is loaded at first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING

__all__ = [
    "AsyncClient",
    "Client",
    "Context",
    "LoadedModel",
    "Pipeline",
    "PublishError",
    "PublishOptions",
    "PublishedVersion",
    "Server",
    "Step",
    "Tls",
    "__version__",
    "load",
    "publish",
    "serve",
]

if TYPE_CHECKING:
    from flambeau.channel import Tls
    from flambeau.client import AsyncClient, Client
    from flambeau.local.loaded import LoadedModel, load
    from flambeau.local.server import Server, serve
    from flambeau.protocol.python_model import Context
    from flambeau.publishing.errors import PublishError
    from flambeau.publishing.pipeline import Pipeline, Step
    from flambeau.publishing.publish import PublishOptions, publish
    from flambeau.publishing.published import PublishedVersion

    __version__: str
else:
    _MODULES = {
        "AsyncClient": "flambeau.client",
        "Client": "flambeau.client",
        "Context": "flambeau.protocol.python_model",
        "LoadedModel": "flambeau.local.loaded",
        "Pipeline": "flambeau.publishing.pipeline",
        "PublishError": "flambeau.publishing.errors",
        "PublishOptions": "flambeau.publishing.publish",
        "PublishedVersion": "flambeau.publishing.published",
        "Server": "flambeau.local.server",
        "Step": "flambeau.publishing.pipeline",
        "Tls": "flambeau.channel",
        "load": "flambeau.local.loaded",
        "publish": "flambeau.publishing.publish",
        "serve": "flambeau.local.server",
    }

    def __getattr__(name: str) -> object:
        if name in _MODULES:
            return getattr(import_module(_MODULES[name]), name)
        if name == "__version__":
            return _version()
        raise AttributeError(f"module 'flambeau' has no attribute '{name}'")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})


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
