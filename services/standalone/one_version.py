"""`python -m services.standalone.one_version STORE VERSION [ARTIFACT]`: serves one version.

In: a store, and an address such as `digits@production`. It listens on free ports of this machine
alone, and prints them as `flambeau serve` does. `flambeau.load` runs it.
"""

import sys
from functools import partial

from model_store.errors import StoreError
from model_store.store import ModelStore
from model_store.version_address import find_version
from services.gateway.front import Listening
from services.ports import PortError
from services.process import end_past_held_threads
from services.queueing.records import Lane
from services.settings import ConfigError, checked
from services.standalone.config import ServerConfig
from services.standalone.server import serve


def main(url: str, address: str, artifact: str = "") -> int:
    """Serves until SIGTERM. Returns the exit code."""
    try:
        manifest = find_version(ModelStore(url, when_missing="refuse"), address)
        settings = {
            "store": url,
            "models": [manifest.model],
            "artifact": artifact,
            "http_port": 0,
            "grpc_port": 0,
            "metrics_port": 0,
            "log_level": "error",
        }
        config = checked(ServerConfig, settings)
        lane = Lane(manifest.model, manifest.version)
        serve(config, partial(_print_address, lane), {lane.model: lane.version})
    except (StoreError, ConfigError, PortError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    end_past_held_threads()
    return 0


def _print_address(lane: Lane, listening: Listening) -> None:
    """Prints what is served and where; raises if nothing is. Beside a pipeline are its models."""
    served = next((found for found in listening.served if found.lane == lane), None)
    if served is None or served.state != "ready":
        reason = "it was not loaded" if served is None else served.reason
        raise ConfigError(f"the version cannot be served here: {reason}")
    print(f"serving {lane.model} {lane.version} ({served.artifact or served.platform})")
    print(f"REST http://127.0.0.1:{listening.http_port}")
    print(f"gRPC 127.0.0.1:{listening.grpc_port}")
    print(f"metrics http://127.0.0.1:{listening.metrics_port}/metrics", flush=True)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
