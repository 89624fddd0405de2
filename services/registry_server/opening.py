"""Opens the registry of a model store, as the settings of its process say."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from model_store.store import ModelStore
from model_store.uploads.abandoned import UPLOADS
from model_store.uploads.uploads import Uploads
from services.access.config import is_loopback
from services.access.grants import parse_aliases
from services.low_priority_thread import STEPS_BELOW_LOOP, lower_priority
from services.queueing.directory import Directory
from services.registry.callers.deployment_callers import DeploymentCallers
from services.registry.event_webhooks import WebhookTargets
from services.registry.registry import Registry
from services.registry.registry_access import RegistryAccess
from services.registry_server.config import RegistrySettings
from services.webhook_calls import WebhookCalls, read_secret


def open_registry(
    config: RegistrySettings,
    store: ModelStore,
    is_served: Callable[[str, int], bool],
    callers: DeploymentCallers | None = None,
) -> Registry:
    """Opens the registry.

    Args:
        config: settings of the process.
        store: its model store.
        is_served: tells if a server holds a version, which is not deleted then.
        callers: recent callers, as `Registry` has them.

    Raises:
        ConfigError: webhooks have no secret to sign with.
    """
    folder = None
    if config.upload_folder:
        folder = Path(config.upload_folder).expanduser().absolute()
    elif store.is_local:
        folder = Path(store.url, UPLOADS)
    hashing = ThreadPoolExecutor(1, "hashing", lambda: lower_priority(STEPS_BELOW_LOOP))
    uploads = None
    if folder is not None:
        uploads = Uploads(store, folder, config.trust().check_arrival, threads=hashing)
    is_closed = not config.asks_for_credentials and not is_loopback(config.host)
    access = RegistryAccess(
        mode=config.registry,
        is_closed=is_closed,
        two_person=parse_aliases(config.registry_two_person),
        two_person_rollback=config.registry_two_person_rollback,
    )
    return Registry(store, uploads, access, is_served, callers, webhooks=_webhooks(config))


def holds(directory: Directory, model: str, version: int) -> bool:
    """Returns True if a server holds a version: it serves or loads it, or has unloaded it.

    An unloaded version is loaded again when it is requested.
    """
    return any(
        served.lane.version == version
        for served in directory.of_model(model)
        if served.state != "failed"
    )


def _webhooks(config: RegistrySettings) -> WebhookTargets | None:
    """Returns the webhooks of the settings.

    Raises:
        ConfigError: there is no secret to sign with, or it cannot be read or is too short.
    """
    if not config.registry_webhooks:
        return None
    secret = read_secret(config.webhook_secret_file)
    return WebhookTargets(config.registry_webhooks, WebhookCalls(secret))
