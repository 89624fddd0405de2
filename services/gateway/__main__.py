"""`flambeau gateway` and `python -m services.gateway --queue redis://…`."""

import sys
from collections.abc import Sequence

from model_store.host.install_advice import needing


def main(arguments: Sequence[str]) -> int:
    """Runs the process with these arguments. Returns its exit code."""
    with needing("edges"):
        from services.exit_codes import exit_code
        from services.gateway.config import GatewayConfig
        from services.gateway.server import serve
        from services.settings import settings_from

    about = "Accepts requests over REST and gRPC, and sends them to workers."
    return exit_code(
        lambda: serve(settings_from(arguments, GatewayConfig, about, "flambeau gateway"))
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
