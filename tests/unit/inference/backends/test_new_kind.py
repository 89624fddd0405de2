"""A new kind of artifact: one record and one backend suffice to open, verify and serve it."""

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from flambeau.protocol.signature import Signature, TensorSpec
from flambeau.protocol.tensors import Array
from model_store.artifact_kinds import STORED_KINDS, StoredKind
from model_store.errors import ManifestError
from model_store.golden import GoldenRows
from model_store.manifest import Golden, Manifest, parse_manifest
from model_store.store import ModelStore
from services.inference.backends.backend import Backend
from services.inference.backends.device import Device
from services.inference.backends.open_options import OpenOptions
from services.inference.backends.served_kinds import SERVED_KINDS, ServedKind
from services.inference.backends.verified_artifact import VerifiedArtifact
from services.inference.loading.loader import LoadError, LoadOptions, load_version
from tests.fixtures.store_versions import artifact_in, draft_in, entry_in

SPEC = TensorSpec(name="x", datatype="FP32", shape=(-1, 3))
SIGNATURE = Signature(
    inputs=(SPEC,), outputs=(SPEC.model_copy(update={"name": "y"}),), max_batch_size=4
)


class FactorBackend(Backend):
    """A model whose file is one number, by which it multiplies."""

    platform = "toy_factor"

    def __init__(self, artifact: VerifiedArtifact, options: OpenOptions) -> None:
        self._factor = np.float32(artifact.data.decode())

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        return {"y": np.multiply(inputs["x"], self._factor)}


def test_every_kind_has_a_record_here_and_its_backends() -> None:
    assert list(SERVED_KINDS) == list(STORED_KINDS)
    for kind in SERVED_KINDS.values():
        for backend in kind.backends.values():
            module, _, name = backend.partition(":")
            spec = find_spec(module)
            assert spec is not None
            source = Path(str(spec.origin)).read_text()
            assert f"class {name}(" in source or f"def {name}(" in source


@pytest.fixture
def _factor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(STORED_KINDS, "factor", StoredKind(suffix="txt"))
    backend = f"{__name__}:FactorBackend"
    kind = ServedKind(
        package="numpy", extra="serve", distributions=("numpy",), backends={"cpu": backend}
    )
    monkeypatch.setitem(SERVED_KINDS, "factor", kind)


def published(folder: Path, factor: bytes) -> tuple[ModelStore, Manifest]:
    x = np.arange(15, dtype=np.float32).reshape(5, 3)
    golden = GoldenRows({"x": x}, {"y": x * 2})
    given = folder / "draft"
    artifact = artifact_in(given, factor, kind="factor", name="factor")
    draft = draft_in(given, signature=SIGNATURE, artifacts=(artifact,))
    rows = Golden(file=entry_in(given, "golden.safetensors", golden.to_bytes()), rows=5)
    draft = draft.model_copy(update={"golden": rows})
    store = ModelStore(str(folder / "store"))
    return store, store.publish(draft, given)


@pytest.mark.usefixtures("_factor")
def test_it_is_published_verified_and_served(tmp_path: Path) -> None:
    store, manifest = published(tmp_path, b"2")
    manifest = store.manifest(manifest.model, manifest.version)
    loaded = load_version(store, manifest, LoadOptions())
    (backend,) = loaded.backends
    assert backend.platform == "toy_factor"
    assert backend.run({"x": np.ones((1, 3), np.float32)})["y"].tolist() == [[2, 2, 2]]


@pytest.mark.usefixtures("_factor")
def test_it_is_refused_like_the_others(tmp_path: Path) -> None:
    store, manifest = published(tmp_path, b"3")
    with pytest.raises(LoadError, match="replaying the golden rows on this machine: largest"):
        load_version(store, manifest, LoadOptions())
    on_gpu = LoadOptions(backend=OpenOptions(device=Device("cuda", 0)))
    words = "factor runs on the CPU only, not on cuda:0 yet; serve the version's onnx or torch"
    with pytest.raises(LoadError, match=words):
        load_version(store, manifest, on_gpu)


def test_a_kind_without_a_record_is_no_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as known:
        known.setitem(STORED_KINDS, "factor", StoredKind(suffix="txt"))
        _, manifest = published(tmp_path, b"2")
    with pytest.raises(ManifestError, match=r"'artifacts.0.kind' is 'factor': write 'onnx', "):
        parse_manifest(manifest.to_json(), "it")
