"""The default version of a model whose `production` a rollout has moved."""

import pytest

from model_store.archives.registrations import RegisteredModel, RegisteredVersion, Registrations
from services.gateway.torchserve.registered_versions import followed


def version(number: int | None) -> RegisteredVersion:
    return RegisteredVersion(
        url="m.mar", folder="/m", is_own_folder=False, number=number, min_workers=int(bool(number)),
        max_workers=1, batch_size=1, max_batch_delay_ms=100, response_timeout_s=120,
        startup_timeout_s=120, job_queue_size=100,
    )  # fmt: skip


def registered(first: int | None = 1) -> Registrations:
    versions = {"1.0": version(first), "2.0": version(2), "3.0": version(None)}
    return Registrations(models={"m": RegisteredModel(default="1.0", versions=versions)})


def test_promoted_version_becomes_the_default_one() -> None:
    found = followed(registered(), "m", 2)
    assert found.models["m"].default == "2.0"
    assert found.models["m"].versions == registered().models["m"].versions


@pytest.mark.parametrize("live", [None, 1, 7], ids=["none", "the default", "unregistered"])
def test_other_moves_leave_the_default_version(live: int | None) -> None:
    assert followed(registered(), "m", live) == registered()


def test_unknown_models_and_defaults_without_workers() -> None:
    assert followed(registered(), "other", 2) == registered()
    assert followed(registered(None), "m", None).models["m"].default == "1.0"
