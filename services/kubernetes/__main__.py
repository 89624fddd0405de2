"""Entry point of `python -m services.kubernetes`: the controller of ModelRollouts."""

import asyncio
import logging
import platform
import sys
from collections.abc import Sequence
from importlib.metadata import version as installed_version

from prometheus_client import CollectorRegistry, Info
from prometheus_client.process_collector import ProcessCollector

from flambeau.registry.errors import RegistryError
from services.kubernetes.config import ControllerConfig
from services.kubernetes.controller import ModelRolloutController
from services.kubernetes.model_rollout import GROUP_VERSION, PLURAL
from services.kubernetes.object_api import ObjectApi
from services.kubernetes.reconciliation import Reconciliation
from services.kubernetes.registry_rollouts import RegistryRollouts
from services.ports import PortError, metrics_server
from services.process import stop_on_signals
from services.settings import ConfigError, settings_from
from services.telemetry.logs import configure_logs

logger = logging.getLogger("flambeau.model_rollouts")


def main(arguments: Sequence[str]) -> int:
    """Runs the process with these arguments and returns its exit code."""
    try:
        config = settings_from(
            arguments,
            ControllerConfig,
            "Starts rollouts at a registry as ModelRollouts of Kubernetes ask for, and tells their "
            "state in the objects.",
            "python -m services.kubernetes",
        )
        configure_logs(config.log_level)
        objects = ObjectApi(config, GROUP_VERSION, PLURAL)
        registry = RegistryRollouts(
            config.registry, config.registry_token_file, config.registry_ca_file
        )
        asyncio.run(_serve(config, objects, registry))
    except (ConfigError, RegistryError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except (PortError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


async def _serve(config: ControllerConfig, objects: ObjectApi, registry: RegistryRollouts) -> None:
    asked = asyncio.Event()
    reconciliation = Reconciliation(objects, registry, config.rollout_poll_s)
    controller = ModelRolloutController(objects, reconciliation)

    def why_not_ready() -> str:
        return "shutting down" if asked.is_set() else controller.why_not_ready

    with metrics_server(
        config.host, config.metrics_port, _metrics(), why_not_ready
    ) as metrics_port:
        stop_on_signals(asked)
        logger.info("ready", extra={"host": config.host, "metrics_port": metrics_port})
        await controller.run(asked)
    logger.info("stopped")


def _metrics() -> CollectorRegistry:
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    Info("flambeau_build", "Versions of flambeau and Python.", registry=registry).info(
        {"version": installed_version("flambeau"), "python": platform.python_version()}
    )
    return registry


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
