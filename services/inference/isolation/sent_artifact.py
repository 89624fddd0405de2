"""Sends an artifact and the options to open it with to another process.

In: a `VerifiedArtifact`. Out, in the other process: an equal one. All of it lies in an anonymous
file (memfd), whose descriptor an `open` message carries; the folder of side files is passed by its
path, and stays the sender's.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import orjson

from flambeau.protocol.signature import Signature
from model_store.manifest import Artifact, PythonStep
from services.inference.backends.files_folder import FilesFolder
from services.inference.backends.verified_artifact import StepCode, VerifiedArtifact
from services.inference.isolation.channel import Channel


def send_opening(channel: Channel, how: Mapping[str, Any], files: Sequence[bytes]) -> None:
    """Sends options and the bytes of some files.

    Args:
        channel: channel to the process.
        how: options, serializable as JSON.
        files: contents of files, in an order that the options describe.

    Raises:
        ChannelClosedError, TimeoutError: as `Channel.send`.
    """
    options = orjson.dumps(how)
    with open(os.memfd_create("flambeau-artifact"), "w+b") as file:
        file.writelines([options, *files])
        file.seek(0)  # both processes share one file offset
        channel.send("open", len(options), file.fileno())


def receive_opening(channel: Channel) -> tuple[dict[str, Any], IO[bytes]]:
    """Returns the options of the next message, and the file with the rest, which is to be closed.

    Raises:
        ChannelClosedError: the sender is gone.
    """
    _, size_bytes, descriptor = channel.receive()
    assert descriptor is not None
    file = open(descriptor, "r+b")  # noqa: SIM115 - the caller closes it
    how: dict[str, Any] = orjson.loads(file.read(size_bytes))
    return how, file


def packed(artifact: VerifiedArtifact) -> tuple[dict[str, Any], Sequence[bytes]]:
    """Returns a description for a message, and the contents of the file."""
    code, folder = artifact.code, artifact.folder
    files = (artifact.data, artifact.weights, b"" if code is None else code.source)
    described = {
        "sizes": [len(data) for data in files],
        "entry": artifact.entry.model_dump(mode="json"),
        "signature": artifact.signature.model_dump(mode="json"),
        "python_step": None if code is None else code.step.model_dump(mode="json"),
        "folder": None if folder is None else str(folder.path),
    }
    return described, files


def unpacked(described: dict[str, Any], file: IO[bytes]) -> VerifiedArtifact:
    """Reads an artifact from the file that `packed` described."""
    data, weights, source = (file.read(size) for size in described["sizes"])
    step, folder = described["python_step"], described["folder"]
    return VerifiedArtifact(
        entry=Artifact.model_validate(described["entry"]),
        signature=Signature.model_validate(described["signature"]),
        data=data,
        weights=weights,
        code=None if step is None else StepCode(PythonStep.model_validate(step), source),
        folder=None if folder is None else FilesFolder(Path(folder)),
    )
