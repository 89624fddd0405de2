"""Handlers that use TorchServe's own package: its base class, its parts, its handlers."""

import json
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch import nn

from model_store.archives.archive_manifest import MANIFEST_PATH
from model_store.archives.archive_settings import RunSettings
from model_store.archives.archive_version import publish_archive
from model_store.archives.model_archive import open_archive
from model_store.store import ModelStore
from services.inference.loading.loader import LoadError, LoadOptions, load_version
from tests.fixtures.model_archives import manifest_of
from tests.fixtures.served_archives import ServedArchive, request_of
from tests.unit.training.importing.foreign_models import write_script

DOUBLED = """
    import torch
    from ts.torch_handler.base_handler import BaseHandler

    class Doubled(BaseHandler):
        def preprocess(self, data):
            return torch.tensor([row["body"] for row in data], device=self.device)

        def postprocess(self, data):
            return data.tolist()
"""
COUNTING = """
    from ts.handler_utils.utils import send_intermediate_predict_response

    class Counting:
        def initialize(self, context):
            pass

        def handle(self, data, context):
            for number in range(3):
                parts = [f"{bytes(row['body']).decode()}{number}" for row in data]
                send_intermediate_predict_response(
                    parts, context.request_ids, "Intermediate Prediction success", 200, context
                )
            return [f"last {bytes(row['body']).decode()}" for row in data]
"""


def test_a_subclass_of_the_base_handler_runs_its_network(tmp_path: Path) -> None:
    network = nn.Linear(4, 3)
    script = write_script(tmp_path / "model.pt", network).read_bytes()
    served = ServedArchive(tmp_path, DOUBLED, files={"model.pt": script}, serializedFile="model.pt")
    rows = [[1.0, 2.0, 3.0, 4.0], [0.0, 1.0, 0.0, 1.0]]
    found = served.ask(*(request_of(json.dumps(row).encode(), "application/json") for row in rows))
    with torch.inference_mode():
        wanted = network(torch.tensor(rows))
    torch.testing.assert_close(torch.tensor([json.loads(bytes(one.body)) for one in found]), wanted)
    assert {one.name for one in found[0].measurements} == {"HandlerTime", "PredictionTime"}
    served.backend.close()


def test_parts_are_given_as_they_are_sent(tmp_path: Path) -> None:
    served = ServedArchive(tmp_path, COUNTING)
    assert served.backend.gives_parts
    found = served.ask_in_parts(request_of(b"a", id="1"), request_of(b"b", id="2"))
    bodies = [[bytes(one.body).decode() for one in part] for part in found]
    assert bodies == [["a0", "b0"], ["a1", "b1"], ["a2", "b2"], ["last a", "last b"]]
    assert not any(one.headers for part in found for one in part)
    served.backend.close()


def test_callers_that_choose_the_same_id_get_their_own_parts(tmp_path: Path) -> None:
    served = ServedArchive(tmp_path, COUNTING)
    ids = {"a": "same", "b": "same#1", "c": "same", "d": "same", "e": "same#2"}
    found = served.ask_in_parts(*(request_of(body.encode(), id=one) for body, one in ids.items()))
    bodies = [[bytes(one.body).decode() for one in part] for part in found]
    wanted = [[f"{body}{number}" for body in ids] for number in range(3)]
    assert bodies == [*wanted, [f"last {body}" for body in ids]]
    served.backend.close()


LATE = """
import struct

EARLIER = []

def text(value):
    return struct.pack("!i", len(value)) + value

def send(context, identity, body):
    message = struct.pack("!i", 200) + text(b"fine") + text(identity.encode()) + text(b"")
    message += struct.pack("!i", 200) + text(b"") + struct.pack("!i", 0) + text(body)
    context.cl_socket.sendall(message + struct.pack("!i", -1))

def handle(data, context):  # it names send_intermediate_predict_response
    if not data:
        return []
    told = b"told nobody"
    for identity in EARLIER:
        try:
            send(context, identity, b"secret of an earlier caller")
        except ConnectionError:
            continue
        told = b"told a stranger"
    EARLIER.append(context.get_request_id(0))
    return [told]
"""


def test_an_answer_that_comes_late_is_no_later_callers(tmp_path: Path) -> None:
    """Callers of two batches may choose the same id."""
    served = ServedArchive(tmp_path, LATE)
    for _ in range(2):
        found = served.ask_in_parts(request_of(b"x", id="same"))
        assert [bytes(one.body) for (one,) in found] == [b"told nobody"]
    served.backend.close()


@pytest.mark.skipif(
    find_spec("torchvision") is not None,
    reason="torchvision is installed, and nothing is missing",
)
def test_a_default_handler_names_the_package_that_it_lacks(tmp_path: Path) -> None:
    path = tmp_path / "m.mar"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("model.pt", write_script(tmp_path / "model.pt").read_bytes())
        described = manifest_of("image_classifier", serializedFile="model.pt")
        archive.writestr(MANIFEST_PATH, json.dumps(described))
    store = ModelStore(str(tmp_path / "store"))
    opened = open_archive(path, tmp_path / "files")
    manifest = publish_archive(store, opened, "m", RunSettings())
    with pytest.raises(
        LoadError, match=r"'image_classifier' needs packages .*: captum, torchvision; install"
    ):
        load_version(store, manifest, LoadOptions())
