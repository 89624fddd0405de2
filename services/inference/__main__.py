"""Entry point of `flambeau inference` and `python -m services.inference --queue redis://…`."""

import sys
from collections.abc import Sequence

from model_store.errors import StoreError
from model_store.host.install_advice import needing


def main(arguments: Sequence[str]) -> int:
    """Runs the process with these arguments and returns its exit code."""
    with needing("serve"):
        from services.inference.config import InferenceConfig
        from services.inference.server import serve
        from services.ports import PortError
        from services.process import end_past_held_threads
        from services.queueing.redis_streams.clients import QueueUrlError
        from services.settings import ConfigError, settings_from

    try:
        serve(
            settings_from(
                arguments,
                InferenceConfig,
                "Runs models for gateways, on a device of this machine.",
                "flambeau inference",
            )
        )
    except (ConfigError, QueueUrlError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except (PortError, StoreError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    end_past_held_threads()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
