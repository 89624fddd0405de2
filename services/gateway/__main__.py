"""`flambeau gateway` and `python -m services.gateway --queue redis://…`."""

import sys
from collections.abc import Sequence

from model_store.host.install_advice import needing


def main(arguments: Sequence[str]) -> int:
    """Runs the process with these arguments. Returns its exit code."""
    with needing("edges"):
        from services.gateway.config import GatewayConfig
        from services.gateway.server import serve
        from services.ports import PortError
        from services.queueing.redis_streams.clients import QueueUrlError
        from services.settings import ConfigError, settings_from
        from services.webhook_calls import SecretError

    try:
        serve(
            settings_from(
                arguments,
                GatewayConfig,
                "Accepts requests over REST and gRPC, and sends them to workers.",
                "flambeau gateway",
            )
        )
    except (ConfigError, QueueUrlError, SecretError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except PortError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
