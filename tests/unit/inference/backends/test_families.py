"""The backends of exported programs, compiled packages and OpenVINO, with real artifacts."""

import gc
import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flambeau.protocol.tensors import Array
from model_store.host.install_advice import install_command
from model_store.manifest import Artifact, MadeWith
from services.errors import BackendError
from services.inference.backends import artifact_fit
from services.inference.backends.artifact_fit import UnfitArtifactError, check_fit
from services.inference.backends.backend import Backend
from services.inference.backends.device import CPU, Device
from services.inference.backends.open_backend import open_backend
from services.inference.backends.open_options import OpenOptions
from services.inference.backends.torch_module import TorchModuleBackend
from services.inference.backends.verified_artifact import VerifiedArtifact
from services.inference.isolation.isolated_backend import open_isolated_backend
from services.low_priority_thread import NICENESS
from tests.fixtures import exported_models
from tests.fixtures.exported_models import artifact_of, right
from tests.fixtures.misbehaving_models import SIGNATURE, WIDTH

KINDS = {"pt2": "pytorch_pt2", "aoti": "pytorch_aotinductor", "openvino": "openvino_ir"}


def rows(count: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=(count, WIDTH)).astype(np.float32)


def assert_close(found: Any, expected: Any, atol: float = 1e-5) -> None:
    np.testing.assert_allclose(found, expected, atol=atol)


@pytest.fixture(scope="module")
def shared_folder(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """One for all processes of a test run."""
    own = tmp_path_factory.getbasetemp()
    return own if worker_id == "master" else own.parent


@pytest.fixture(
    params=[pytest.param(k, marks=pytest.mark.long if k == "aoti" else []) for k in KINDS]
)
def files(request: pytest.FixtureRequest, shared_folder: Path) -> tuple[str, bytes, bytes]:
    """Kind, bytes and weights."""
    kind = request.param
    if kind == "openvino":
        return kind, *exported_models.openvino_ir()
    return (
        kind,
        exported_models.aoti(shared_folder) if kind == "aoti" else exported_models.pt2(),
        b"",
    )


@pytest.fixture
def backend(files: tuple[str, bytes, bytes], tmp_path: Path) -> Iterator[Backend]:
    kind, data, weights = files
    artifact = artifact_of(tmp_path, kind, data, weights)
    backend = open_backend(
        VerifiedArtifact(entry=artifact, signature=SIGNATURE, data=data, weights=weights),
        OpenOptions(),
    )
    assert backend.platform == KINDS[kind]
    yield backend
    backend.close()


def test_batches_of_any_size_give_what_torch_gives(backend: Backend) -> None:
    network = exported_models.Network()
    for count in (1, 5, 64, 2):
        x = backend.buffer("x", (count, WIDTH), np.dtype(np.float32))
        x[:] = rows(count)
        with torch.inference_mode():
            expected = network(torch.from_numpy(x)).numpy()
        assert_close(backend.run({"x": x})["y"], expected)


def test_read_only_and_strided_inputs_are_run_as_they_are(backend: Backend) -> None:
    x = np.frombuffer(rows(3).tobytes(), np.float32).reshape(3, WIDTH)
    assert not x.flags.writeable
    assert_close(backend.run({"x": x})["y"], right(x))
    strided = np.repeat(rows(3), 2, axis=0)[::2]
    assert_close(backend.run({"x": strided})["y"], right(strided))


def test_a_module_gets_inputs_without_gaps() -> None:
    """Compiled packages read them as if there were none, whatever the strides say."""

    def module(x: torch.Tensor) -> torch.Tensor:
        assert x.is_contiguous()
        return x

    class Direct(TorchModuleBackend):
        platform = "pytorch_test"

    backend = Direct(module, SIGNATURE, 1)
    with_gaps = np.repeat(rows(3), 2, axis=1)[:, ::2]
    assert backend.run({"x": with_gaps})["y"].tolist() == rows(3).tolist()


def test_outputs_are_the_callers(backend: Backend) -> None:
    x = rows(4)
    first = backend.run({"x": x})["y"]
    kept = first.copy()
    first_again = backend.run({"x": rows(4, seed=1)})["y"]
    x[:] = 7
    assert first.tolist() == kept.tolist()
    first_again[:] = 0  # nobody else reads them
    assert_close(backend.run({"x": x})["y"], right(x))


def test_each_runs_in_a_process_of_its_own(files: tuple[str, bytes, bytes], tmp_path: Path) -> None:
    kind, data, weights = files
    artifact = artifact_of(tmp_path, kind, data, weights)
    isolated = open_isolated_backend(
        VerifiedArtifact(entry=artifact, signature=SIGNATURE, data=data, weights=weights),
        OpenOptions(),
        low_priority=True,
    )
    assert isolated.platform == KINDS[kind]
    lowest = min(os.getpriority(os.PRIO_PROCESS, 0) + NICENESS, 19)
    assert os.getpriority(os.PRIO_PROCESS, isolated.pid) == lowest
    before = isolated.cpu_seconds()
    assert_close(isolated.run({"x": rows(3)})["y"], right(rows(3)))
    assert isolated.cpu_seconds() > before
    maps = Path(f"/proc/{isolated.pid}/maps").read_text().split()
    unpacked = {Path(name) for name in maps if "aotinductor_" in name}
    assert all(path.exists() for path in unpacked)
    assert bool(unpacked) == (kind == "aoti")
    isolated.close()
    assert not any(path.exists() for path in unpacked)
    with pytest.raises(OSError, match="Invalid argument"):
        isolated.cpu_seconds()


def test_sixteen_bits_inside_a_program_are_its_own_business(tmp_path: Path) -> None:
    data = exported_models.pt2(torch.bfloat16)
    backend = open_backend(
        VerifiedArtifact(
            entry=artifact_of(tmp_path, "pt2", data, precision="bf16"),
            signature=SIGNATURE,
            data=data,
        ),
        OpenOptions(),
    )
    y = backend.run({"x": rows(3)})["y"]
    assert y.dtype == np.float32
    assert_close(y, right(rows(3)), atol=0.1)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Returns the models that OpenVINO compiles, in order."""
    import openvino

    found = []
    compile_model = openvino.Core.compile_model

    def record(*given: Any) -> object:
        found.append(compile_model(*given))
        return found[-1]

    monkeypatch.setattr(openvino.Core, "compile_model", record)
    return found


@pytest.mark.parametrize("threads", [1, 2])
def test_torch_and_openvino_get_the_threads_they_are_given(
    tmp_path: Path, compiled: list[Any], threads: int
) -> None:
    data = exported_models.pt2()
    open_backend(
        VerifiedArtifact(entry=artifact_of(tmp_path, "pt2", data), signature=SIGNATURE, data=data),
        OpenOptions(threads=threads),
    )
    assert torch.get_num_threads() == threads
    torch.set_num_threads(1)
    data, weights = exported_models.openvino_ir()
    artifact = artifact_of(tmp_path, "openvino", data, weights)
    open_backend(
        VerifiedArtifact(entry=artifact, signature=SIGNATURE, data=data, weights=weights),
        OpenOptions(threads=threads),
    )
    (model,) = compiled
    assert model.get_property("INFERENCE_NUM_THREADS") == threads
    assert model.get_property("NUM_STREAMS") == 1


@pytest.mark.parametrize(
    ("precision", "hint"), [("fp32", "f32"), ("int8", "f32"), ("bf16", "bf16")]
)
def test_openvino_computes_in_the_artifacts_precision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: str, hint: str
) -> None:
    import openvino

    asked = []
    compile_model = openvino.Core.compile_model

    def spy(core: object, model: object, device: str, properties: dict[str, object]) -> object:
        asked.append(properties["INFERENCE_PRECISION_HINT"])
        return compile_model(core, model, device, properties)

    monkeypatch.setattr(openvino.Core, "compile_model", spy)
    data, weights = exported_models.openvino_ir()
    artifact = artifact_of(tmp_path, "openvino", data, weights, precision=precision)
    backend = open_backend(
        VerifiedArtifact(entry=artifact, signature=SIGNATURE, data=data, weights=weights),
        OpenOptions(),
    )
    assert_close(backend.run({"x": rows(2)})["y"], right(rows(2)), atol=0.1)
    assert asked == [hint]


def test_openvino_needs_its_files_no_more_and_aliases_no_input(tmp_path: Path) -> None:
    data, weights = (bytes(bytearray(part)) for part in exported_models.openvino_ir())
    artifact = artifact_of(tmp_path, "openvino", data, weights)
    backend = open_backend(
        VerifiedArtifact(entry=artifact, signature=SIGNATURE, data=data, weights=weights),
        OpenOptions(),
    )
    del data, weights
    gc.collect()
    shutil.rmtree(tmp_path)
    assert_close(backend.run({"x": rows(2)})["y"], right(rows(2)))
    data, weights = exported_models.openvino_identity()
    artifact = artifact_of(tmp_path, "openvino", data, weights)
    identity = open_backend(
        VerifiedArtifact(entry=artifact, signature=SIGNATURE, data=data, weights=weights),
        OpenOptions(),
    )
    x = rows(2)
    y = identity.run({"x": x})["y"]
    assert not np.shares_memory(x, y)


def test_openvino_says_which_names_its_model_has(tmp_path: Path) -> None:
    data, weights = exported_models.openvino_ir()
    artifact = artifact_of(tmp_path, "openvino", data, weights)
    (y,) = SIGNATURE.outputs
    other = SIGNATURE.model_copy(update={"outputs": (y.model_copy(update={"name": "logits"}),)})
    with pytest.raises(BackendError, match=r"no output 'logits', .* it names: y;"):
        open_backend(
            VerifiedArtifact(entry=artifact, signature=other, data=data, weights=weights),
            OpenOptions(),
        )


@pytest.mark.long
def test_a_compiled_package_leaves_nothing_behind(
    shared_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = exported_models.aoti(shared_folder)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    backend = open_backend(
        VerifiedArtifact(
            entry=artifact_of(tmp_path / "files", "aoti", data), signature=SIGNATURE, data=data
        ),
        OpenOptions(),
    )
    assert [path.name for path in tmp_path.iterdir()] == ["files"]
    assert backend.run({"x": rows(2)})["y"].shape == (2, WIDTH)


def artifact(folder: Path, kind: str, **made_with: object) -> Artifact:
    made = exported_models.MADE_WITH.model_copy(update=made_with)
    return artifact_of(folder, kind, b"unread", made_with=made)


def test_code_for_another_processor_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = artifact(tmp_path, "aoti", cpu_features=("avx2", "amx_int8", "amx_bf16"))
    monkeypatch.setattr(artifact_fit, "cpu_features", lambda: ("avx2", "avx512f"))
    message = r"with amx_int8, amx_bf16, which this one lacks \(it has avx2, avx512f\); compile"
    with pytest.raises(UnfitArtifactError, match=message):
        check_fit(made, CPU)
    with pytest.raises(UnfitArtifactError, match=message):
        open_backend(
            VerifiedArtifact(entry=made, signature=SIGNATURE, data=b"unread"), OpenOptions()
        )
    monkeypatch.setattr(artifact_fit, "cpu_features", lambda: ("avx2", "amx_int8", "amx_bf16"))
    check_fit(made, CPU)


@pytest.mark.parametrize("libraries", [{"torch": "2.12.1"}, {}])
def test_code_of_another_torch_is_refused(tmp_path: Path, libraries: dict[str, str]) -> None:
    with pytest.raises(UnfitArtifactError, match=r"compiled by torch .*and torch 2.* installed"):
        check_fit(artifact(tmp_path, "aoti", libraries=libraries), CPU)
    check_fit(artifact(tmp_path, "pt2", libraries=libraries), CPU)


def test_another_build_of_the_same_torch_will_do(tmp_path: Path) -> None:
    version = torch.__version__.split("+")[0]
    check_fit(artifact(tmp_path, "aoti", libraries={"torch": f"{version}+cu130"}), CPU)


def test_code_for_a_gpu_is_refused_on_the_cpu(tmp_path: Path) -> None:
    with pytest.raises(UnfitArtifactError, match="compiled for cuda, and the device here is cpu"):
        check_fit(artifact(tmp_path, "aoti", device="cuda"), CPU)


@pytest.mark.parametrize("kind", KINDS)
def test_gpus_run_other_kinds(tmp_path: Path, kind: str) -> None:
    with pytest.raises(UnfitArtifactError, match=f"{kind} runs on the CPU only, not on cuda:0"):
        check_fit(artifact(tmp_path, kind), Device("cuda", 0))


@pytest.mark.parametrize("kind", ["onnx", *KINDS])
def test_halves_are_refused_where_the_processor_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    half = artifact(tmp_path, kind, cpu_features=()).model_copy(update={"precision": "fp16"})
    monkeypatch.setattr(artifact_fit, "cpu_features", lambda: ("avx512f", "avx512_bf16"))
    with pytest.raises(UnfitArtifactError, match=r"neither avx512_fp16 nor amx_fp16: .* 7 times"):
        check_fit(half, CPU)
    monkeypatch.setattr(artifact_fit, "cpu_features", lambda: ("avx512f", "avx512_fp16"))
    check_fit(half, CPU)


@pytest.mark.parametrize(
    ("kind", "package", "extra"), [("openvino", "openvino", "openvino"), ("pt2", "torch", "train")]
)
def test_a_runtime_that_is_not_installed_is_named_with_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, package: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    advice = re.escape(install_command(extra))
    message = f"through {package}, which is not installed here: {advice}"
    with pytest.raises(UnfitArtifactError, match=message):
        check_fit(artifact_of(tmp_path, kind, b"unread", made_with=MadeWith()), CPU)
