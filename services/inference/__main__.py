"""Entry point of `flambeau inference` and `python -m services.inference --queue redis://…`."""

import sys
from collections.abc import Sequence

from model_store.host.install_advice import needing


def main(arguments: Sequence[str]) -> int:
    """Runs the process with these arguments and returns its exit code."""
    with needing("serve"):
        from services.exit_codes import exit_code
        from services.inference.config import InferenceConfig
        from services.inference.server import serve
        from services.process import end_past_held_threads
        from services.settings import settings_from

    about = "Runs models for gateways, on a device of this machine."
    code = exit_code(
        lambda: serve(settings_from(arguments, InferenceConfig, about, "flambeau inference"))
    )
    if not code:
        end_past_held_threads()
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
