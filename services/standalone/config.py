"""The configuration of an all-in-one server. Read once, at start-up; nothing else configures it."""

from pydantic import Field

from services.gateway.config import GatewaySettings
from services.gateway.verification_desk import VerifyFor
from services.inference.config import InferenceSettings


class ServerConfig(GatewaySettings, InferenceSettings):
    """Every setting of `flambeau serve`: a gateway's and a worker's."""

    verify_for: VerifyFor = "this_machine"
    """Who may have versions verified here (`flambeau verify --on`): callers on `this_machine`,
    `everybody` who reaches the gRPC port, or `nobody`. Say `nobody` where a proxy on this machine
    passes on what strangers send."""
    verify_time_limit_s: float = Field(300.0, gt=0, le=86_400)
    """How long one artifact may be verified before it counts as failed; raise it for models that
    take seconds a row."""
