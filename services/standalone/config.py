"""The configuration of an all-in-one server. Read once, at start-up; nothing else configures it."""

from services.gateway.config import GatewaySettings
from services.inference.config import InferenceSettings


class ServerConfig(GatewaySettings, InferenceSettings):
    """Every setting of `flambeau serve`: a gateway's and a worker's."""
