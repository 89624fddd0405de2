"""Entry point of `flambeau registry` and `python -m services.registry_server --queue redis://…`."""

import sys
from collections.abc import Sequence

from model_store.host.install_advice import needing


def main(arguments: Sequence[str]) -> int:
    """Runs the process with these arguments. Returns its exit code."""
    with needing("edges"):
        from services.exit_codes import exit_code
        from services.registry_server.config import RegistryConfig
        from services.registry_server.server import serve
        from services.settings import settings_from

    about = "Shows the versions of the model store, takes new ones and moves aliases."
    return exit_code(
        lambda: serve(settings_from(arguments, RegistryConfig, about, "flambeau registry"))
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
