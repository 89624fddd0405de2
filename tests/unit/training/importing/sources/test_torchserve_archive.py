"""TorchServe archives: their networks, and handlers that become Python models."""

import json
import zipfile
from contextlib import closing
from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest
import torch
from torch import nn

from model_store.archives.archive_manifest import MANIFEST_PATH
from model_store.errors import ModelArchiveError
from model_store.store import ModelStore
from services.errors import BackendError, InputRefusedError
from services.inference.loading.loader import LoadOptions, load_version
from tests.fixtures.model_archives import Format, manifest_of, write_archive
from tests.unit.training.importing.foreign_models import write_script
from training.errors import DataError, SourceError, TargetError
from training.importing.import_files import FileImport, import_files
from training.importing.import_model import Imported
from training.importing.original import Original
from training.importing.sources.read_source import read_source
from training.importing.sources.source_options import SourceOptions

ROWS = np.linspace(-1, 1, 32, dtype=np.float32).reshape(8, 4)
UPPER = """
    class Upper:
        def initialize(self, context):
            folder = context.system_properties["model_dir"]
            self.end = open(f"{folder}/end.txt").read()

        def handle(self, data, context):
            found = []
            for row, one in enumerate(data):
                text = bytes(one["body"]).decode()
                if text == "bad":
                    context.set_response_status(code=418, idx=row)
                    text = "no tea"
                found.append(text.upper() + self.end)
            return found
"""
NETWORK = """
    import torch

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 3)

        def forward(self, x):
            return self.layer(x)
"""


FAULTY = """
    class PredictionException(Exception):
        def __init__(self, message, error_code):
            super().__init__(message)
            self.message, self.error_code = message, error_code

    def handle(data, context):
        if data is None:
            return None
        for place, row in enumerate(data):
            word, _, number = bytes(row["body"]).decode().partition(" ")
            if word == "value":
                raise ValueError("no number")
            if word == "boom":
                raise RuntimeError("boom")
            if word == "raise":
                raise PredictionException("bad word", int(number))
            if word == "status":
                context.set_response_status(int(number), idx=place)
            if word == "number":
                return [object()]
        return [bytes(row["body"]) for row in data]
    """


def with_default_handler(
    folder: Path, handler: str, files: dict[str, bytes | str], **model: str
) -> Path:
    """Writes an archive without a handler's file."""
    path = folder / "net.mar"
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
        archive.writestr(MANIFEST_PATH, json.dumps(manifest_of(handler, modelName="net", **model)))
    return path


def original_of(path: Path, tmp_path: Path, **options: object) -> Original:
    (tmp_path / "staging").mkdir()
    options.setdefault("examples", {"x": ROWS})
    (found,) = read_source(path, SourceOptions(**options), tmp_path / "staging")  # type: ignore[arg-type]
    assert isinstance(found, Original)
    return found


def test_a_torchscript_network_of_a_default_handler(tmp_path: Path) -> None:
    script = write_script(tmp_path / "model.pt", nn.Linear(4, 3))
    names = {"0": "red", "1": ["n1", "green"], "2": "blue"}
    path = with_default_handler(
        tmp_path,
        "image_classifier",
        {"model.pt": script.read_bytes(), "index_to_name.json": json.dumps(names)},
        serializedFile="model.pt",
    )
    found = original_of(path, tmp_path, examples={"": ROWS})
    assert (found.kind, found.name) == ("torchscript", "net")
    assert found.source == "TorchServe archive net.mar (net 1.0)"
    assert [*found.signature.labels.values()] == [("red", "green", "blue")]
    assert "does before and after the network is not part of the version" in found.notes[-1]


def test_weights_with_their_class(tmp_path: Path) -> None:
    torch.save(nn.ModuleDict({"layer": nn.Linear(4, 3)}).state_dict(), tmp_path / "weights.pt")
    files: dict[str, bytes | str] = {
        "weights.pt": (tmp_path / "weights.pt").read_bytes(),
        "net.py": dedent(NETWORK),
    }
    path = with_default_handler(
        tmp_path, "base_handler", files, serializedFile="weights.pt", modelFile="net.py"
    )
    found = original_of(path, tmp_path)
    assert found.kind == "pt2"
    assert [spec.shape for spec in found.signature.outputs] == [(-1, 3)]


@pytest.mark.parametrize(
    ("files", "model", "reason"),
    [
        ({}, {}, "has no serializedFile"),
        ({"net.so": b"x"}, {"serializedFile": "net.so"}, "has the network net.so"),
        ({"w.pt": b"x", "net.py": "class A: pass\n\nclass B: pass"},
         {"serializedFile": "w.pt", "modelFile": "net.py"}, "has the classes A, B"),
    ],
)  # fmt: skip
def test_networks_that_cannot_be_read_are_named(
    tmp_path: Path, files: dict[str, bytes | str], model: dict[str, str], reason: str
) -> None:
    path = with_default_handler(tmp_path, "image_classifier", files, **model)
    with pytest.raises(SourceError, match=reason):
        original_of(path, tmp_path)


@pytest.mark.parametrize("form", ["default", "tgz", "no-archive"])
def test_a_handler_is_published_and_served_with_its_own_answers(
    tmp_path: Path, form: Format
) -> None:
    path = write_archive(tmp_path, UPPER, files={"end.txt": "!"}, format=form, name="upper")
    wanted = FileImport(
        files=(str(path),), name="", store=str(tmp_path / "store"),
        examples={"body": np.array([b"one", b"two"])}, alias="production",
    )  # fmt: skip
    (imported,) = import_files(wanted, lambda _: None)
    assert isinstance(imported, Imported)
    manifest = imported.manifest
    assert (manifest.model, [one.name for one in manifest.artifacts]) == ("upper", ["python"])
    assert manifest.artifacts[0].folder is None
    store = ModelStore(wanted.store)
    backend = load_version(store, manifest, LoadOptions()).backends[0]
    bodies = np.array([b"red", b"green"], object)
    assert backend.run({"body": bodies})["body"].tolist() == [b"RED!", b"GREEN!"]
    with pytest.raises(Exception, match="status 418: NO TEA!"):
        backend.run({"body": np.array([b"bad"], object)})
    backend.close()


FAULTS = (
    (b"value", InputRefusedError, "no number"),
    (b"status 418", InputRefusedError, "'handler.py' answered with status 418: status 418"),
    (b"raise 422", InputRefusedError, "'handler.py' answered with status 422: bad word"),
    (b"boom", BackendError, "^the handler 'handler.py' failed: RuntimeError: boom .handler.py, "),
    (b"status 503", BackendError, "'handler.py' answered with status 503: status 503"),
    (b"raise 500", BackendError, "failed: PredictionException: bad word"),
    (b"number", BackendError, "status 503: Unsupported model output"),
)
"""Bodies, and the errors that they cause."""


def test_a_refusal_of_a_handler_is_the_callers_fault_and_a_failure_is_not(tmp_path: Path) -> None:
    path = write_archive(tmp_path, FAULTY)
    wanted = FileImport(
        files=(str(path),), name="m", store=str(tmp_path / "store"),
        examples={"body": np.array([b"one", b"two"])},
    )  # fmt: skip
    (imported,) = import_files(wanted, lambda _: None)
    assert isinstance(imported, Imported)
    loaded = load_version(ModelStore(wanted.store), imported.manifest, LoadOptions())
    with closing(loaded.backends[0]) as backend:
        for body, kind, words in FAULTS:
            with pytest.raises(BackendError, match=words) as raised:
                backend.run({"body": np.array([body], object)})
            assert type(raised.value) is kind
        assert backend.run({"body": np.array([b"one"], object)})["body"].tolist() == [b"one"]


def test_a_handler_whose_answers_differ_is_refused(tmp_path: Path) -> None:
    source = """
        import random

        def handle(data, context):
            return [str(random.random()) for _ in data or ()]
    """
    path = write_archive(tmp_path, source)
    who = "the handler 'handler.py' of m.mar"
    words = f"^{who} cannot be published: output 'body' of {who} .*(two runs|rows beside it)"
    with pytest.raises(TargetError, match=words):
        original_of(path, tmp_path, examples={"body": np.array([b"one"])})


@pytest.mark.parametrize(
    "examples", [None, {"x": ROWS}, {"body": ROWS}, {"body": np.array([[b"a"]])}]
)
def test_a_handler_needs_bodies(tmp_path: Path, examples: object) -> None:
    with pytest.raises(DataError, match="'body'"):
        original_of(write_archive(tmp_path), tmp_path, examples=examples)


DECODED = """
    class Decoded:
        def initialize(self, context):
            self.seen = context.metrics.get_metric("Seen")

        def handle(self, data, context):
            self.seen.add_or_update(1, ["any"])
            return [one["body"]["text"].upper() for one in data]
    """


def test_bodies_have_the_content_type_that_is_given(tmp_path: Path) -> None:
    path, examples = write_archive(tmp_path, DECODED), {"body": np.array([b'{"text": "a"}'])}
    with pytest.raises(TargetError, match="content_type: application/json"):
        original_of(path, tmp_path, examples=examples)
    (tmp_path / "staging").rename(tmp_path / "before")
    found = original_of(
        path, tmp_path, examples=examples, args={"content_type": "application/json"}
    )
    assert found.kind == "python"
    (tmp_path / "staging").rename(tmp_path / "again")
    with pytest.raises(SourceError, match="of --args, only"):
        original_of(path, tmp_path, examples=examples, args={"width": 3})


def test_rows_of_bytes_are_bodies(tmp_path: Path) -> None:
    path = write_archive(tmp_path)
    rows = np.arange(12, dtype=np.uint8).reshape(2, 6)
    found = original_of(path, tmp_path, examples={"": rows})
    assert found.examples is not None
    assert found.examples["body"].tolist() == [bytes(range(6)), bytes(range(6, 12))]


def test_an_unsafe_archive_is_refused(tmp_path: Path) -> None:
    path = write_archive(tmp_path)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("../evil", b"x")
    with pytest.raises(ModelArchiveError, match="lead out"):
        original_of(path, tmp_path)
