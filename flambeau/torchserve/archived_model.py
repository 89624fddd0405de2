"""A TorchServe archive as a Python model: `ArchivedModel`, and one that gives answers in parts.

In: requests as elements of a BYTES tensor (`model_store/archives/handler_calls.py`), in batches.
Out: answers, an element for each. The file of such a version only imports one of the two classes;
its settings (`context.args`) name the archive.

Rules: an exception of the handler is an answer in TorchServe's words, and never runs the batch
again; the greeting is answered without the handler, once that is initialized.
"""

import itertools
import json
import logging
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from flambeau.protocol.python_model import Context
from flambeau.protocol.tensors import Array
from flambeau.torchserve.batch_answers import answers_of, failed, failure_of, rows_of
from flambeau.torchserve.handler_context import HandlerContext
from flambeau.torchserve.handler_file import HandlerError, described, open_handler
from flambeau.torchserve.handler_metrics import HandlerMetrics, UnreadMetrics
from flambeau.torchserve.intermediate_answers import IntermediateAnswers
from model_store.archives.archive_manifest import MANIFEST_PATH
from model_store.archives.archive_settings import ARCHIVE_FILE, ArchiveSettings
from model_store.archives.handler_calls import (
    BODY,
    GREETED,
    GREETING,
    REQUEST,
    RESPONSE,
    HandlerAnswer,
    HandlerCallError,
    HandlerRequest,
    Part,
    decode_request,
    encode_answer,
)
from model_store.archives.model_archive import open_archive
from model_store.archives.requirements import unused_packages
from model_store.yaml_text import read_yaml

SHOWN_IDS = 8
"""Requests of a failed batch that the log names."""
PREDICTION_TIME = "PredictionTime"
"""TorchServe's metric of a batch, in ms."""


class ArchivedModel:
    """The handler of one archive."""

    def load(self, context: Context) -> None:
        """Opens and initializes the handler, in the archive's folder.

        Raises:
            ModelArchiveError: the archive travels with the version, and cannot be unpacked.
            HandlerError: the handler cannot be found, or does not initialize.
        """
        self._settings = ArchiveSettings.model_validate(context.args)
        self._logger = context.logger
        # As in TorchServe, which shows handlers' messages from INFO on.
        logging.basicConfig(
            level=logging.INFO,
            format=f"{self._settings.model_name} %(levelname)s %(name)s: %(message)s",
        )
        self._folder = Path(self._settings.folder or _unpacked(context.files[ARCHIVE_FILE]))
        os.chdir(self._folder)
        self._context = self._handler_context(context.device)
        for note in unused_packages(self._folder):
            self._logger.warning("%s: %s", self._settings.model_name, note)
        self._handler = open_handler(self._folder, self._settings.handler, self._settings.envelope)
        try:
            self._handler.initialize(self._context)
        except BaseException as error:  # it may even call `sys.exit`
            raise HandlerError(
                f"the handler '{self._handler.name}' does not initialize: "
                f"{described(error, self._folder)}"
            ) from error

    def infer(self, inputs: Mapping[str, Array]) -> Any:
        """Answers a batch."""
        elements = inputs[REQUEST].tolist()
        return {RESPONSE: _encoded(elements, self.answers(_requests(elements)))}

    def answers(self, requests: Sequence[HandlerRequest]) -> list[HandlerAnswer]:
        """Has the handler answer a batch."""
        if not requests:
            return []
        context = self._context
        context.begin_batch(requests)
        started = time.monotonic()
        try:
            rows = rows_of(requests, self._settings.decode_input_request)
            result = self._handler.answer(rows, context)
            context.metrics.add_time(PREDICTION_TIME, round((time.monotonic() - started) * 1e3, 2))
            answers = answers_of(result, context, len(requests), self._settings.max_answer_bytes)
        except BaseException as error:  # it may even call `sys.exit`, and so may what it returned
            answers = self.failed(error, len(requests))
        measured, dropped = context.metrics.take()
        return [replace(answers[0], measurements=measured, dropped=dropped), *answers[1:]]

    def failed(self, error: BaseException, count: int) -> list[HandlerAnswer]:
        """Returns the answers of a batch whose handler has raised an exception."""
        ids = list((self._context.request_ids or {}).values())
        named = ", ".join(ids[:SHOWN_IDS]) + (" and others" if len(ids) > SHOWN_IDS else "")
        self._logger.warning(
            "the handler of %s failed for %s", self._settings.model_name, named, exc_info=error
        )
        return failed(failure_of(error), count)

    def metrics(self) -> HandlerMetrics:
        """Returns the handler's metrics, with those of the server's configuration."""
        found = HandlerMetrics(self._settings.model_name)
        for one in self._settings.metrics:
            found.add_metric_to_cache(one.name, one.unit, one.dimensions, one.kind)
        return found

    def send_parts_to(self, parts: IntermediateAnswers) -> None:
        """Has intermediate answers sent to an object in place of TorchServe's socket."""
        self._context.cl_socket = parts

    def _handler_context(self, device: str) -> HandlerContext:
        manifest: dict[str, Any] = json.loads((self._folder / MANIFEST_PATH).read_bytes())
        file = manifest["model"].get("configFile")
        document = read_yaml((self._folder / file).read_bytes()) if file else None
        return HandlerContext(
            self._settings.model_name,
            str(self._folder),
            manifest,
            document or {},
            batch_size=self._settings.batch_size,
            metrics=self.metrics(),
            gpu=int(device.partition(":")[2] or 0) if device.startswith("cuda") else None,
            limits_image_pixels=self._settings.limit_max_image_pixels,
        )


class ArchivedModelInParts(ArchivedModel):
    """The handler of an archive that sends intermediate answers; it runs in a thread of its own."""

    def load(self, context: Context) -> None:
        """Opens and initializes the handler; see `ArchivedModel.load`."""
        self._thread = ThreadPoolExecutor(1)
        self._thread.submit(super().load, context).result()
        self._parts = IntermediateAnswers()
        self._batches = itertools.count(1)
        self.send_parts_to(self._parts)

    def infer(self, inputs: Mapping[str, Array]) -> Iterator[dict[str, list[bytes]]]:
        """Yields the intermediate answers to a batch, and the last one."""
        elements = inputs[REQUEST].tolist()
        batch = next(self._batches)  # an answer that comes late is then of no later batch
        requests = [replace(one, id=f"{one.id}#{batch}") for one in _requests(elements)]
        ids = [request.id for request in requests]
        for answers in self._parts.during(partial(self.answers, requests), ids, self._thread):
            yield {RESPONSE: _encoded(elements, answers)}

    def close(self) -> None:
        """Ends the thread."""
        self._thread.shutdown(wait=False)


def _unpacked(archive: Path) -> str:
    """Unpacks an archive beside itself: the folder is private, and removed with the model."""
    archive.parent.chmod(0o700)
    target = Path(tempfile.mkdtemp(dir=archive.parent)) / "archive"
    return str(open_archive(archive, target).folder)


def _requests(elements: Sequence[bytes]) -> list[HandlerRequest]:
    """Returns the requests of a batch, each with an id that no other one of it has.

    Handlers match answers by id, and callers choose ids: two may choose the same.
    """
    requests = [decode_request(one) for one in elements if one != GREETING]
    taken = {request.id for request in requests}
    if len(taken) == len(requests):
        return requests
    found: dict[str, HandlerRequest] = {}
    for place, request in enumerate(requests):
        name = request.id
        if name in found:
            name = f"{name}#{place}"
            while name in taken:
                name += "#"
            taken.add(name)
        found[name] = replace(request, id=name)
    return list(found.values())


def _encoded(elements: Sequence[bytes], answers: Sequence[HandlerAnswer]) -> list[bytes]:
    """Returns an element for each request; greetings have their own answer."""
    left = iter(answers)
    return [GREETED if one == GREETING else _element(next(left)) for one in elements]


def _element(answer: HandlerAnswer) -> bytes:
    """Returns an answer as an element; what does not fit beside it is metrics, half by half."""
    try:
        return encode_answer(answer)
    except HandlerCallError as error:
        measured = answer.measurements
        kept, dropped = measured[: len(measured) // 2], answer.dropped + (len(measured) + 1) // 2
        if measured:
            return _element(replace(answer, measurements=kept, dropped=dropped))
        words = f"the answer is too large: {error}"
        return encode_answer(HandlerAnswer(status=503, failure=words, dropped=dropped))


class ImportedHandler(ArchivedModel):
    """The handler of an archive as a model of its own: bodies of requests in, bodies out."""

    def infer(self, inputs: Mapping[str, Array]) -> dict[str, list[bytes]]:
        """Answers a batch.

        Raises:
            ValueError: the handler refused a body: it raised one, or answered with status 4xx.
            HandlerError: it failed, or answered with status 5xx.
        """
        bodies = inputs[BODY].tolist()
        requests = [
            HandlerRequest(id=str(row), parts=[Part(BODY, self._settings.content_type, body)])
            for row, body in enumerate(bodies)
        ]
        answers = self.answers(requests)
        for answer in answers:
            if answer.failure or answer.status >= 400:
                text = answer.failure or bytes(answer.body).decode(errors="replace")[:1000]
                raise self._refused(answer.status, text)
        return {BODY: [bytes(answer.body) for answer in answers]}

    def metrics(self) -> HandlerMetrics:
        """Returns metrics that nobody reads: a version has none of its own."""
        return UnreadMetrics(self._settings.model_name)

    def failed(self, error: BaseException, count: int) -> list[HandlerAnswer]:
        """Raises a handler's exception as a Python model does; see `infer`."""
        if isinstance(error, ValueError | MemoryError):
            raise error
        words, status = failure_of(error)
        if status < 500:
            raise self._refused(status, words) from error
        reason = described(error, self._folder)
        raise HandlerError(f"the handler '{self._handler.name}' failed: {reason}") from error

    def _refused(self, status: int, text: str) -> Exception:
        kind = ValueError if status < 500 else HandlerError
        return kind(f"the handler '{self._handler.name}' answered with status {status}: {text}")
