"""Loads of backends that offer a twin: it is replayed and warmed up, or left out."""

import logging
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from flambeau.protocol.tensors import Array
from model_store.store import ModelStore
from services.inference.backends.backend import Backend
from services.inference.backends.open_backend import open_backend
from services.inference.backends.open_options import OpenOptions
from services.inference.backends.verified_artifact import VerifiedArtifact
from services.inference.config import InferenceSettings
from services.inference.loading import loader
from services.inference.loading.configured_policy import serving_policy
from services.inference.loading.loader import LoadedVersion, LoadOptions, load_version
from tests.fixtures.onnx_models import linear, publish

Load = Callable[[LoadOptions], LoadedVersion]


class Twin(Backend):
    """Runs its original, or fails."""

    platform = "fake"

    def __init__(self, original: Backend, error: Exception | None) -> None:
        self._original, self._error = original, error
        self.rows: list[int] = []
        self.is_closed = False

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Runs the original."""
        if self._error is not None:
            raise self._error
        self.rows.append(len(inputs["x"]))
        return self._original.run(inputs)

    def close(self) -> None:
        """Leaves the original open."""
        self.is_closed = True


class Twins:
    """Gives every backend a twin."""

    def __init__(self) -> None:
        self.made: list[Twin] = []
        self.error: Exception | None = None

    def open(self, artifact: VerifiedArtifact, options: OpenOptions) -> Backend:
        """Opens the artifact in its backend."""
        backend = open_backend(artifact, options)

        def twin() -> Backend:
            self.made.append(Twin(backend, self.error))
            return self.made[-1]

        backend.twin = twin  # type: ignore[method-assign]
        return backend


@pytest.fixture
def twins(monkeypatch: pytest.MonkeyPatch) -> Twins:
    made = Twins()
    monkeypatch.setattr(loader, "open_backend", made.open)
    return made


@pytest.fixture
def load(tmp_path: Path) -> Load:
    store, manifest = ModelStore(str(tmp_path)), publish(str(tmp_path), "m", linear(2))
    return lambda options: load_version(store, manifest, options)


def test_each_backend_has_a_twin_that_ran_the_golden_rows_and_every_size(
    twins: Twins, load: Load
) -> None:
    loaded = load(LoadOptions(instances=2))
    assert loaded.backends[2:] == twins.made
    assert len(twins.made) == 2
    largest = loaded.manifest.signature.max_batch_size
    assert all({1, largest} <= set(twin.rows) for twin in twins.made)


def test_one_without_memory_is_closed_and_the_version_serves(
    twins: Twins, load: Load, caplog: pytest.LogCaptureFixture
) -> None:
    twins.error = RuntimeError("CUDA out of memory")
    with caplog.at_level(logging.WARNING):
        assert len(load(LoadOptions()).backends) == 1
    assert twins.made[0].is_closed
    assert [record.message for record in caplog.records] == ["its batches do not overlap"]


@pytest.mark.parametrize(("runs", "twins_made"), [(0, 1), (1, 0), (2, 1)])
def test_there_is_none_where_batches_run_one_after_the_other(
    twins: Twins, load: Load, runs: int, twins_made: int
) -> None:
    settings = InferenceSettings.model_validate({"max_concurrent_runs": runs, "needs_file": ""})
    policy = serving_policy(settings)
    load(LoadOptions(overlaps=policy.lane.load.overlaps))
    assert len(twins.made) == twins_made
