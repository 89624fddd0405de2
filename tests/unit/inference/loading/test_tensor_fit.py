"""Tensors that an artifact's backend does not take: refused by name before the file is opened."""

from pathlib import Path

import pytest

from flambeau.protocol.signature import Signature
from model_store.artifact_kinds import ArtifactKind
from model_store.manifest import Manifest
from services.inference.backends.artifact_fit import UnfitArtifactError
from services.inference.backends.device import CPU, Device
from services.inference.loading.artifact_files import check_servable
from tests.fixtures.shaped_models import BIASED, SCALED, SHOUTING, spec
from tests.fixtures.store_versions import artifact_in, draft_in, entry_in

GPU = Device("cuda", 0)
HALF = Signature(
    inputs=(spec("x", "BF16", -1),), outputs=(spec("y", "FP32", -1),), max_batch_size=1
)


def check(folder: Path, kind: ArtifactKind, signature: Signature, device: Device = CPU) -> None:
    weights = entry_in(folder, "weights.bin", b"") if kind == "openvino" else None
    artifact = artifact_in(folder, name=kind, kind=kind, weights=weights)
    draft = draft_in(folder).model_copy(update={"signature": signature, "artifacts": (artifact,)})
    fields = {name: getattr(draft, name) for name in type(draft).model_fields}
    manifest = Manifest.model_construct(**fields)
    check_servable(manifest, artifact, device)


@pytest.mark.parametrize(
    ("kind", "signature", "message"),
    [
        ("torchscript", SHOUTING, "tensor 'text' is BYTES, which torchscript on cpu does not take"),
        ("openvino", SHOUTING, "which openvino on cpu does not take; publish the model as ONNX"),
        ("openvino", BIASED, "input 'bias' is optional, and openvino needs every input"),
        ("pt2", BIASED, "input 'bias' is optional, and pt2 needs every input"),
        ("aoti", BIASED, "input 'bias' is optional, and aoti needs every input"),
        ("onnx", HALF, "tensor 'x' is BF16, which no backend here takes"),
    ],
)
def test_a_kind_that_does_not_take_a_tensor_says_so(
    tmp_path: Path, kind: ArtifactKind, signature: Signature, message: str
) -> None:
    with pytest.raises(UnfitArtifactError, match=message):
        check(tmp_path, kind, signature)


def test_texts_are_not_taken_on_a_gpu(tmp_path: Path) -> None:
    with pytest.raises(
        UnfitArtifactError, match="'text' is BYTES, which onnx on cuda:0 does not take"
    ):
        check(tmp_path, "onnx", SHOUTING, GPU)


@pytest.mark.parametrize(
    ("kind", "signature"),
    [("onnx", SHOUTING), ("onnx", BIASED), ("torchscript", BIASED), ("openvino", SCALED)],
)
def test_a_kind_that_takes_all_tensors_passes(
    tmp_path: Path, kind: ArtifactKind, signature: Signature
) -> None:
    check(tmp_path, kind, signature)
