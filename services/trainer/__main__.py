"""Entry point of `flambeau trainer` and `python -m services.trainer`: the training service.

`--no-worker` starts only the API, `--no-api` only the worker.
"""

import importlib.util
import sys
from collections.abc import Sequence

from model_store.host.install_advice import needing

SWITCHES = {"--no-worker": "--worker=false", "--no-api": "--api=false"}


def _find(package: str) -> None:
    """Checks that a package is installed, without the seconds that an import takes.

    Raises:
        ModuleNotFoundError: it is not installed.
    """
    if importlib.util.find_spec(package) is None:
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)


def main(arguments: Sequence[str]) -> int:
    """Runs the process with these arguments and returns its exit code."""
    with needing("trainer"):
        from services.process import hush_grpc

        hush_grpc()  # before gRPC is imported
        from services.exit_codes import exit_code
        from services.settings import settings_from
        from services.trainer.config import TrainerConfig
        from services.trainer.server import serve

    given = [SWITCHES.get(argument, argument) for argument in arguments]

    def run() -> None:
        about = "Accepts training jobs over REST and gRPC, and runs them."
        config = settings_from(given, TrainerConfig, about, "flambeau trainer")
        if config.worker and config.executor == "local":
            with needing("trainer"):  # otherwise every job would fail
                _find("torch")
        serve(config)

    return exit_code(run, OSError)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
