"""Exported programs of 8 bit numbers: compiled while they load, or refused in words."""

import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
import torch._inductor.config

from services.errors import BackendError
from services.inference.backends.exported_program import load_program
from services.inference.backends.open_backend import open_backend
from services.inference.backends.open_options import OpenOptions
from services.inference.backends.verified_artifact import VerifiedArtifact
from tests.fixtures import exported_models
from tests.fixtures.exported_models import artifact_of
from tests.fixtures.misbehaving_models import SIGNATURE, WIDTH


@pytest.fixture(scope="module")
def data() -> bytes:
    return exported_models.pt2_int8()


def test_it_runs_as_native_code_at_any_batch_size(
    tmp_path: Path, data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = Mock()
    load = torch._inductor.aoti_load_package

    def load_recording(path: str) -> Mock:
        package.side_effect = load(path)
        return package

    monkeypatch.setattr(torch._inductor, "aoti_load_package", load_recording)
    artifact = artifact_of(tmp_path, "pt2", data, precision="int8")
    backend = open_backend(
        VerifiedArtifact(entry=artifact, signature=SIGNATURE, data=data), OpenOptions()
    )
    as_exported = load_program(data).module()
    for count in (1, 2, 64, 7):
        x = np.random.default_rng(count).uniform(-1, 1, (count, WIDTH)).astype(np.float32)
        found: Any = backend.run({"x": x})["y"]
        with torch.inference_mode():
            expected = as_exported(torch.from_numpy(x)).numpy()
        np.testing.assert_allclose(found, expected, atol=0.05)
    assert package.call_count == 4
    assert backend.platform == "pytorch_pt2"
    backend.close()


def test_without_a_compiler_it_says_so(
    tmp_path: Path, data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch._inductor import cpp_builder, exc

    def no_compiler() -> str:
        raise exc.InvalidCxxCompiler

    monkeypatch.setattr(cpp_builder, "get_cpp_compiler", no_compiler)
    artifact = artifact_of(tmp_path, "pt2", data, precision="int8")
    with pytest.raises(BackendError, match=r"no C\+\+ compiler is here; install g\+\+, or serve"):
        open_backend(
            VerifiedArtifact(entry=artifact, signature=SIGNATURE, data=data), OpenOptions()
        )


def test_without_torchao_whose_operators_it_may_need_it_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unknown_operator(file: object) -> None:
        raise RuntimeError("We ran into an error when deserializing the saved file.\nmore")

    monkeypatch.setattr(torch.export, "load", unknown_operator)
    monkeypatch.setitem(sys.modules, "torchao", None)
    with pytest.raises(BackendError, match=r"deserializing the saved file\. If torchao .* install"):
        load_program(b"")
