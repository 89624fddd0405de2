"""The TorchServe door: its ports, and what they share.

In: the settings of the door, and the parts of a front. Out: a port for each address. What a call
means is written in `services/gateway/torchserve/`; the edges here translate.
"""

from collections.abc import Callable
from pathlib import Path

from model_store.store import ModelStore
from services.access.config import is_loopback
from services.gateway.edge_port import EdgeParts, EdgePort, http_server
from services.gateway.edges.torchserve.grpc_door import grpc_ports
from services.gateway.edges.torchserve.rest_routes import RestRoutes
from services.gateway.torchserve.archive_registry import Act, ArchiveRegistry
from services.gateway.torchserve.archive_source import ArchiveSource
from services.gateway.torchserve.door_settings import DoorSettings, addresses
from services.gateway.torchserve.management import Management
from services.gateway.torchserve.predictions import Predictions
from services.gateway.torchserve.tokens import Tokens
from services.queueing.directory import Directory
from services.settings import ConfigError
from services.telemetry.torchserve_metrics import TorchServeMetrics
from services.wire.open_port import PortServer

REST, GRPC = "torchserve", "torchserve-grpc"
"""The APIs in the accounting."""
INFERENCE, MANAGEMENT = "inference_address", "management_address"


class TorchServeDoor:
    """The door of one process.

    Args:
        settings: of the door.
        folder: the server's folder of registered archives.
        store: its store.
        directory: versions that are served.
        act: has the model process look at a model.
        open_to_strangers: True if other machines may register archives without a token.

    Raises:
        ConfigError: other machines could register archives without a token.
    """

    def __init__(
        self,
        settings: DoorSettings,
        folder: Path,
        store: ModelStore,
        directory: Directory,
        act: Act,
        *,
        open_to_strangers: bool = False,
    ) -> None:
        properties = self._properties = settings.properties
        self._registry = ArchiveRegistry(store, folder, directory, act, properties)
        self._source = ArchiveSource(folder, properties)
        self._tokens: Tokens | None = None
        if settings.key_file:
            self._tokens = Tokens(Path(settings.key_file), properties.token_expiration_min * 60)
        self.asks_for_credentials = self._tokens is not None
        self.metrics_address = properties.metrics_address[:2]
        if not self.asks_for_credentials and not open_to_strangers:
            _check_open(settings)

    def ports(self, parts: EdgeParts) -> list[EdgePort]:
        """Makes the ports.

        Raises:
            ConfigError: one is to speak TLS, and there is no certificate.
        """
        found = addresses(self._properties)
        registry = parts.metrics.registry
        with_host = not self._properties.disable_system_metrics
        figures = TorchServeMetrics(registry, with_host=with_host)
        predictions = self.predictions(parts, REST, "200", figures)
        management = self.management(parts, predictions)
        ports = self._grpc_ports(parts, self.predictions(parts, GRPC, "OK", figures), management)
        for name in (INFERENCE, MANAGEMENT):
            if name not in found:
                continue
            is_tls = getattr(self._properties, name)[2]
            if is_tls and parts.certificates is None:
                raise ConfigError(
                    f"{name} is an https address; give private_key_file and certificate_file"
                )
            routes = RestRoutes(
                predictions,
                management,
                self._tokens,
                self._properties,
                infers=name == INFERENCE,
                manages=name == MANAGEMENT or MANAGEMENT not in found,
            )
            server = http_server(routes.route, parts, is_tls=is_tls, unread=routes.unread)
            host, port = found[name]

            def begin_drain(server: PortServer = server) -> None:
                server.begin_drain()
                predictions.leave()

            ports.append(
                EdgePort(name=name, host=host, port=port, server=server, begin_drain=begin_drain)
            )
        return ports

    def _grpc_ports(
        self, parts: EdgeParts, predictions: Predictions, management: Management
    ) -> list[EdgePort]:
        """Makes the ports of gRPC.

        Raises:
            ConfigError: as `ports`.
        """
        is_tls = self._properties.enable_grpc_ssl
        if is_tls and parts.certificates is None:
            raise ConfigError("enable_grpc_ssl is true; give private_key_file and certificate_file")
        return grpc_ports(
            predictions, management, self._tokens, parts, addresses(self._properties),
            is_tls=is_tls,
        )  # fmt: skip

    def predictions(
        self, parts: EdgeParts, protocol: str, ok: str, figures: TorchServeMetrics
    ) -> Predictions:
        """Returns the predictions of a protocol.

        Args:
            parts: parts of the front.
            protocol: its name in the accounting.
            ok: code of an answer there.
            figures: metrics under TorchServe's names.
        """
        return Predictions(
            protocol, ok, parts.admission, parts.accounting, self._registry.latest, parts.sampler,
            figures,
        )  # fmt: skip

    def management(self, parts: EdgeParts, predictions: Predictions) -> Management:
        """Returns the management of a protocol."""
        is_leaving: Callable[[], bool] = lambda: parts.facts.leaving  # noqa: E731
        return Management(self._registry, predictions, self._source, self._properties, is_leaving)


def _check_open(settings: DoorSettings) -> None:
    """Refuses a server that runs archives of whoever reaches it.

    Raises:
        ConfigError: other machines reach its management, which asks for no token.
    """
    properties = settings.properties
    hosts = (properties.management_address[0], properties.grpc_management_address)
    host = next((one for one in hosts if not is_loopback(one)), None)
    if properties.enable_model_api and host is not None:
        raise ConfigError(
            f"management listens on '{host}', enable_model_api is on, and no token is asked for: "
            "every machine that reaches it could run code here. Ask for tokens, or listen on "
            "127.0.0.1, or give --set open_to_strangers=true where a proxy in front controls access"
        )
