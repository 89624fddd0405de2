"""Entry point of `flambeau registry` and `python -m services.registry_server --queue redis://…`."""

import sys
from collections.abc import Sequence

from model_store.errors import StoreError
from model_store.host.install_advice import needing


def main(arguments: Sequence[str]) -> int:
    """Runs the process with these arguments. Returns its exit code."""
    with needing("edges"):
        from services.ports import PortError
        from services.queueing.redis_streams.clients import QueueUrlError
        from services.registry_server.config import RegistryConfig
        from services.registry_server.server import serve
        from services.settings import ConfigError, settings_from

    try:
        serve(
            settings_from(
                arguments,
                RegistryConfig,
                "Shows the versions of the model store, takes new ones and moves aliases.",
                "flambeau registry",
            )
        )
    except (ConfigError, QueueUrlError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except (PortError, StoreError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
