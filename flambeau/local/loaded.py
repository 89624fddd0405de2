"""`flambeau.load`: a version of a store as a function, for tests and batch work."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from flambeau.local.server import DEFAULT_STORE, Server, start
from flambeau.wire import Array

ONE_VERSION = "services.standalone.one_version"
LARGEST_MESSAGE_BYTES = 2**30


class LoadedModel:
    """A version that runs in a process of ours; called like a function.

    The process ends with the block, with `close`, or with this process.

    Attributes:
        name: name of the model.
        version: number of the version.
        artifact: name of the artifact that runs.
        signature: names, datatypes and shapes of inputs and outputs.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        line = server.addresses.served[0]
        self.name, self.version, artifact = line.split()
        self.artifact = artifact.strip("()")
        self._client = server.client(max_message_bytes=LARGEST_MESSAGE_BYTES, timeout_s=600.0)
        self._model = self._client.model(self.name, self.version)
        self.signature = self._model.signature

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<flambeau model {self.name} {self.version} ({self.artifact})>"

    def __call__(self, /, **inputs: Array) -> Any:
        """Returns the only output as an array, or a dict of arrays by name.

        Args:
            inputs: arrays by input name, [rows, ...].

        Raises:
            InvalidRequestError: the inputs do not fit the signature.
            ClientError: the model failed.
        """
        return self._model(**inputs)

    def infer(
        self, inputs: Mapping[str, Array], *, outputs: Sequence[str] = ()
    ) -> dict[str, Array]:
        """Returns arrays by output name; raises as a call does."""
        return self._model.infer(inputs, outputs=outputs)

    def close(self) -> None:
        """Ends the process."""
        self._client.close()
        self._server.stop()


def load(
    version: str,
    *,
    store: str | os.PathLike[str] = DEFAULT_STORE,
    artifact: str = "",
) -> LoadedModel:
    """Loads a version of a store, verified on this machine, in a process of ours.

        with flambeau.load("digits@production") as digits:
            logits = digits(image=images)

    Args:
        version: `digits` for the live version, or the newest if none is live; or `digits@` and a
            number, an alias or a range such as `^1.2`.
        store: the store: a folder, or `s3://bucket/prefix`.
        artifact: name of the artifact to run; empty for the fastest.

    Raises:
        ServerError: there is no such version, or no artifact of it can run here.
    """
    text = os.fspath(store)
    url = text if "://" in text else str(Path(text).expanduser().absolute())
    return LoadedModel(start(ONE_VERSION, url, version, artifact))
