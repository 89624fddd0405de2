"""Opens the registry of a server's model store, as its settings say."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from model_store.store import ModelStore
from model_store.uploads.abandoned import UPLOADS
from model_store.uploads.uploads import Uploads
from services.access.config import is_loopback
from services.access.grants import parse_aliases
from services.inference.trust import Trust
from services.low_priority_thread import STEPS_BELOW_LOOP, lower_priority
from services.queueing.directory import Directory
from services.registry.event_webhooks import WebhookTargets
from services.registry.registry import Registry
from services.registry.registry_access import RegistryAccess
from services.settings import ConfigError
from services.standalone.config import ServerConfig
from services.webhook_calls import SecretError, WebhookCalls, read_secret


def open_registry(config: ServerConfig, store: ModelStore, directory: Directory) -> Registry | None:
    """Opens the registry; None if it is off, or the ports speak another server's API.

    Args:
        config: settings of the server.
        store: its model store.
        directory: versions that are served, which are not deleted.

    Raises:
        ConfigError: webhooks have no secret to sign with.
    """
    if config.registry == "off" or config.torchserve:
        return None
    trust = Trust(keys_folder=config.trusted_keys, signature_needed_for=config.signature_needed_for)
    folder = None
    if config.upload_folder:
        folder = Path(config.upload_folder).expanduser().absolute()
    elif store.is_local:
        folder = Path(store.url, UPLOADS)
    hashing = ThreadPoolExecutor(1, "hashing", lambda: lower_priority(STEPS_BELOW_LOOP))
    uploads = None
    if folder is not None:
        uploads = Uploads(store, folder, trust.check_arrival, threads=hashing)
    is_closed = not config.asks_for_credentials and not is_loopback(config.host)

    def is_served(model: str, version: int) -> bool:
        return any(
            (one.lane.model, one.lane.version) == (model, version)
            for one in directory.all_versions()
            if one.state != "failed"  # an unloaded one is loaded again when it is requested
        )

    access = RegistryAccess(
        mode=config.registry,
        is_closed=is_closed,
        two_person=parse_aliases(config.registry_two_person),
        two_person_rollback=config.registry_two_person_rollback,
    )
    return Registry(store, uploads, access, is_served, webhooks=_webhooks(config))


def _webhooks(config: ServerConfig) -> WebhookTargets | None:
    """Returns the webhooks of the settings.

    Raises:
        ConfigError: there is no secret to sign with.
    """
    if not config.registry_webhooks:
        return None
    try:
        secret = read_secret(config.webhook_secret_file)
    except SecretError as error:
        raise ConfigError(str(error)) from error
    return WebhookTargets(config.registry_webhooks, WebhookCalls(secret))
