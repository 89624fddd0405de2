"""Configuration of the controller of ModelRollouts. Read once, at start-up."""

from pydantic import Field

from services.kubernetes.object_api import ClusterSettings
from services.settings import ServiceSettings


class ControllerConfig(ServiceSettings, ClusterSettings):
    """All settings of `python -m services.kubernetes`."""

    registry: str
    """URL of the server whose registry starts the rollouts, such as
    `http://flambeau-registry:8007`."""
    registry_token_file: str = ""
    """File with the credential for the registry: an API key or a token with `read` and `promote` on
    the models. It is read anew for each call. Empty sends none."""
    registry_ca_file: str = ""
    """PEM file with the authorities of the registry's certificate; empty for the system's."""
    rollout_poll_s: float = Field(5.0, ge=0.1, le=3600)
    """Interval of reading the state of a rollout that runs."""
