"""Makes a gateway's sampler from its settings; imports the sampler's modules only if needed."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from services.gateway.config import GatewaySettings
from services.gateway.payloads.rule import rule_of
from services.queueing.directory import Directory
from services.settings import ConfigError
from services.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from model_store.storage.storage import Storage
    from services.gateway.payloads.sampler import PayloadSampler


def open_sampler(
    settings: GatewaySettings,
    directory: Directory,
    metrics: Metrics,
    model_store: "Storage | None" = None,
    *,
    creates: bool = False,
) -> "PayloadSampler | None":
    """Makes the configured sampler; None if nothing is sampled.

    Args:
        settings: settings of the process.
        directory: models that it serves.
        metrics: metrics of samples.
        model_store: storage that the process serves from, if it has one.
        creates: True creates a missing folder of samples; see `WhenMissing`.

    Raises:
        ConfigError: there is no store to write to, or it cannot be opened.
    """
    if not settings.payload_samples:
        return None
    storage = _own_storage(settings, model_store, creates=creates) or model_store
    if storage is None:
        raise ConfigError(
            "payload_samples is set, and a gateway knows no store to write them to; set "
            "payload_sample_store to the model store's URL, or to a bucket of their own"
        )
    from services.gateway.payloads.sampler import PayloadSampler

    return PayloadSampler(
        settings.payload_samples,
        storage,
        directory,
        metrics.payload_samples,
        metrics.dropped_payload_samples,
    )


def make_sample_folder(settings: GatewaySettings, model_store: "Storage | None") -> None:
    """Creates the configured folder of samples, if it is a folder and missing.

    Raises:
        ConfigError: it cannot be created.
    """
    from model_store.storage.storage import folder_of

    url = settings.payload_sample_store
    if settings.payload_samples and url and folder_of(url) is not None:
        _own_storage(settings, model_store, creates=True)


def _own_storage(
    settings: GatewaySettings, model_store: "Storage | None", *, creates: bool
) -> "Storage | None":
    """Opens the store of samples; None if that is the model store.

    Raises:
        ConfigError: it cannot be opened.
    """
    from model_store.errors import StoreError
    from model_store.storage.storage import Storage, folder_of

    url = settings.payload_sample_store
    try:
        if not url or (model_store and str(folder_of(url)) == model_store.url):
            return None
        return Storage(url, when_missing="create" if creates else "await")
    except StoreError as error:
        raise ConfigError(f"payload_sample_store: {error}") from error


def redactions(settings: GatewaySettings) -> Callable[[str, str, str], bool]:
    """Returns a function that is True for a tensor whose values nobody may keep.

    Its arguments are the model, the tensor's name and its datatype.

    It follows the rules of samples: what these leave out, pairs of a shadow leave out, too, and all
    values of a model without a rule.
    """

    def redacts(model: str, tensor: str, datatype: str) -> bool:
        rule = rule_of(settings.payload_samples, model)
        if rule is None or rule.keep in ("shapes", "statistics") or rule.redacts(tensor):
            return True
        return rule.keep == "numbers" and datatype == "BYTES"

    return redacts
