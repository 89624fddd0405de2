"""The OpenAPI document of a server: the protocol's paths, and those of the models it serves.

In: the directory, and a caller. Out: the JSON of the document.

Rules:
- a caller sees the models that its credential may use. Without a credential, a server that requires
  them shows the protocol's paths alone;
- the paths of a version are made once; a change of the served versions makes those that changed;
- the document has at most `MAX_DOCUMENT_BYTES`, and says how many models it leaves out;
- it is made in slices: no number of models blocks the event loop.
"""

from typing import Any

import orjson

from flambeau.protocol.signature import Signature
from services.access.caller import Principal
from services.gateway.edges.documentation.model_paths import model_paths
from services.gateway.edges.openapi import openapi_document
from services.gateway.sliced_work import SlicedWork, Slices
from services.queueing.directory import Directory
from services.queueing.records import ServedVersion

MAX_DOCUMENT_BYTES = 2**20
"""Largest document, without its general part; a model takes some 3 KiB."""
MAX_TENSORS = 128
"""A model with more inputs and outputs is left out: making its paths takes some 10 µs for each."""
_A_SLICE = 4
"""Models in a slice."""

_Known = tuple[Signature, bool, bytes]
"""Signature of a version, True if it was live, and its paths."""


class OpenDocument:
    """Makes the document.

    Args:
        directory: versions that are served.
        work: makes the document in slices.
        version: version of the server.
        with_jobs: True if the server keeps jobs.
        with_regions: True if callers may register shared memory.
        with_registry: True if the server has a registry.
    """

    def __init__(
        self,
        directory: Directory,
        work: SlicedWork,
        version: str,
        *,
        with_jobs: bool,
        with_regions: bool = False,
        with_registry: bool = False,
    ) -> None:
        self._directory = directory
        self._work = work
        document = openapi_document(
            version,
            with_jobs=with_jobs,
            with_regions=with_regions,
            with_registry=with_registry,
        )
        self._info: dict[str, Any] = document.pop("info")
        self._paths = orjson.dumps(document.pop("paths"))[1:-1]
        self._start = orjson.dumps(document)[:-1]
        self.general = self._joined([], 0)
        """The document without models."""
        self._known: dict[str, _Known] = {}
        """By model."""
        self._whole: tuple[int, bytes] = -1, b""
        """The document of all models, and the number of the directory's changes before it."""

    async def seen_by(self, principal: Principal) -> bytes:
        """Returns the document for a caller.

        Raises:
            TooManyInFlightError: too much other work is being done in slices.
        """
        changes, whole = self._whole
        if principal.caller is None and changes == self._directory.changes:
            return whole
        return await self._work.run(self._make(principal))

    def _make(self, principal: Principal) -> Slices[bytes]:
        changes = self._directory.changes
        documented = self._documented()
        self._known = {name: known for name, known in self._known.items() if name in documented}
        found: list[bytes] = []
        size = left_out = 0
        for number, (model, served) in enumerate(documented.items()):
            if number % _A_SLICE == 0:
                yield
            if not principal.sees(model):
                continue
            paths = self._paths_of(served)
            if paths and size + len(paths) <= MAX_DOCUMENT_BYTES:
                size += len(paths)
                found.append(paths)
            else:
                left_out += 1
        document = self._joined(found, left_out)
        if principal.caller is None and changes == self._directory.changes:
            self._whole = changes, document
        return document

    def _documented(self) -> dict[str, ServedVersion]:
        """Returns the live version of each model; of a model without one, the newest that runs."""
        found: dict[str, ServedVersion] = {}
        for served in self._directory.all_versions():
            model, number = served.lane.model, served.lane.version
            live = self._directory.live_version(model)
            if served.state == "ready" and live in (number, None):
                found[model] = served
        return found

    def _paths_of(self, served: ServedVersion) -> bytes:
        """Returns the paths of a version, as members of a JSON object; empty for a large one."""
        model, signature = served.lane.model, served.signature
        is_live = self._directory.live_version(model) == served.lane.version
        if signature is None or len(signature.inputs) + len(signature.outputs) > MAX_TENSORS:
            return b""
        known = self._known.get(model)
        if known is None or known[0] is not signature or known[1] is not is_live:
            paths = orjson.dumps(model_paths(served, signature, is_live=is_live))[1:-1]
            known = self._known[model] = signature, is_live, paths
        return known[2]

    def _joined(self, models: list[bytes], left_out: int) -> bytes:
        info = self._info
        if left_out:
            left = (
                f" {left_out} of the models are left out here, for their number or size; "
                "GET /v2/models/{model} describes each."
            )
            info = {**info, "description": info["description"] + left}
        paths = b",".join([self._paths, *models])
        return b'%b,"info":%b,"paths":{%b}}' % (self._start, orjson.dumps(info), paths)
