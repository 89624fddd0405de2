"""The configuration of an all-in-one server. Read once, at startup; there is no other source."""

from services.gateway.config import GatewaySettings
from services.inference.config import InferenceSettings


class ServerConfig(GatewaySettings, InferenceSettings):
    """All settings of `flambeau serve`: those of a gateway and of a worker."""
