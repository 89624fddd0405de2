"""The context of a handler of TorchServe: what it reads of requests, what it sets for answers.

In: the manifest, the settings and the folder of an archive; the requests of a batch. Out: the
status and the headers that the handler set for each of them.
Source: the attributes and methods of `ts.context.Context` of TorchServe 0.12, by their names.
"""

import sys
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, cast

from flambeau.torchserve.handler_metrics import HandlerMetrics
from model_store.archives.handler_calls import HandlerRequest

SERVER_VERSION = "0.12.0"
"""The version of TorchServe whose handlers run here."""
CONTENT_TYPE = "content-type"


class RequestProcessor:
    """One request of the batch, and the status and headers of its answer."""

    def __init__(self, request: HandlerRequest) -> None:
        self._request = request
        self._status, self._phrase = 200, ""
        self._headers: dict[str, str] = {}

    def get_request_property(self, key: str) -> Any:
        """Returns a header, or the properties of a part; None if there is none.

        Names of headers come in lower case, and handlers write them in any.
        """
        properties = self.get_request_properties()
        return properties.get(key, properties.get(key.lower()))

    def get_request_properties(self) -> dict[str, Any]:
        """Returns all headers, and the properties of all parts."""
        return self._properties

    @cached_property
    def _properties(self) -> dict[str, Any]:
        parts = {part.name: {CONTENT_TYPE: part.content_type} for part in self._request.parts}
        return {**parts, **self._request.headers}

    def report_status(self, code: int, reason_phrase: str | None = None) -> None:
        """Sets the status of the answer."""
        self._status, self._phrase = code, reason_phrase or ""

    @property
    def has_defaults(self) -> bool:
        """True if neither the status nor a header of the answer is set."""
        return self._status == 200 and not (self._phrase or self._headers)

    def get_response_status_code(self) -> int:
        """Returns the status of the answer."""
        return self._status

    def get_response_status_phrase(self) -> str:
        """Returns the phrase beside the status."""
        return self._phrase

    def add_response_property(self, key: str, value: str) -> None:
        """Sets a header of the answer."""
        self._headers[key] = value

    def get_response_headers(self) -> dict[str, str]:
        """Returns the headers of the answer."""
        return self._headers

    def get_response_header(self, key: str) -> str | None:
        """Returns a header of the answer; None if it is not set."""
        return self._headers.get(key)


class HandlerContext:
    """The context of one handler. Requests are numbered by their places in the batch.

    Attributes:
        manifest: the archive's manifest, as it was written.
        model_yaml_config: the archive's YAML file; empty if it has none.
        metrics: takes the handler's own metrics.
        request_ids: ids of the batch's requests, by place.
        cl_socket: takes intermediate answers from `send_intermediate_predict_response`.
    """

    def __init__(
        self,
        model_name: str,
        folder: str,
        manifest: Mapping[str, Any],
        config: Mapping[str, Any],
        *,
        batch_size: int,
        metrics: HandlerMetrics,
        gpu: int | None,
        limits_image_pixels: bool = True,
    ) -> None:
        self.model_name = model_name
        self.manifest = manifest
        self.model_yaml_config = config
        self.metrics = metrics
        self.system_properties: dict[str, Any] = {
            "model_dir": folder,
            "gpu_id": gpu,
            "batch_size": batch_size,
            "server_name": "MMS",
            "server_version": SERVER_VERSION,
            "limit_max_image_pixels": limits_image_pixels,
        }
        self.request_ids: dict[int, str] | None = None
        self.request_processor: Sequence[RequestProcessor] = ()
        self.stopping_criteria = None
        self.cl_socket: Any = None
        self.header_key_sequence_id = "ts_request_sequence_id"
        self.header_key_sequence_start = "ts_request_sequence_start"
        self.header_key_sequence_end = "ts_request_sequence_end"

    @property  # type: ignore[misc]  # for isinstance
    def __class__(self) -> type:
        """TorchServe's own class where its package is imported: handlers may ask for it."""
        module = sys.modules.get("ts.context")
        return HandlerContext if module is None else cast(type, module.Context)

    @property
    def _system_properties(self) -> dict[str, Any]:
        """As handlers of TorchServe's documentation reach for it."""
        return self.system_properties

    @property
    def _request_processor(self) -> Sequence[RequestProcessor]:
        return self.request_processor

    def begin_batch(self, requests: Sequence[HandlerRequest]) -> None:
        """Takes the requests of the next batch."""
        self.request_ids = {place: request.id for place, request in enumerate(requests)}
        self.request_processor = [RequestProcessor(request) for request in requests]
        self.metrics.set_request_ids(self.request_ids)

    def get_request_id(self, idx: int = 0) -> str | None:
        """Returns the id of a request; None before the first batch."""
        return None if self.request_ids is None else self.request_ids.get(idx)

    def get_request_header(self, idx: int, key: str) -> Any:
        """Returns a header of a request; None if it has none."""
        return self.request_processor[idx].get_request_property(key)

    def get_all_request_header(self, idx: int) -> dict[str, Any]:
        """Returns the headers of a request."""
        return self.request_processor[idx].get_request_properties()

    def get_sequence_id(self, idx: int) -> Any:
        """Returns the id of the sequence that a request belongs to; None if to none."""
        return self.get_request_header(idx, self.header_key_sequence_id)

    def set_response_content_type(self, idx: int, value: str) -> None:
        """Sets the content type of an answer."""
        self.set_response_header(idx, CONTENT_TYPE, value)

    def get_response_content_type(self, idx: int) -> str | None:
        """Returns the content type of an answer; None if it is not set."""
        return self.get_response_headers(idx).get(CONTENT_TYPE)

    def set_response_header(self, idx: int, key: str, value: str) -> None:
        """Sets a header of an answer."""
        self.request_processor[idx].add_response_property(key, value)

    def get_response_headers(self, idx: int) -> dict[str, str]:
        """Returns the headers of an answer."""
        return self.request_processor[idx].get_response_headers()

    def set_response_status(self, code: int = 200, phrase: str = "", idx: int = 0) -> None:
        """Sets the status of an answer."""
        if self.request_processor:
            self.request_processor[idx].report_status(code, reason_phrase=phrase)

    def set_all_response_status(self, code: int = 200, phrase: str = "") -> None:
        """Sets the status of all answers of the batch."""
        for one in self.request_processor:
            one.report_status(code, reason_phrase=phrase)

    def has_defaults(self, idx: int) -> bool:
        """Returns True if neither the status nor a header of an answer is set."""
        return self.request_processor[idx].has_defaults

    def get_response_status(self, idx: int) -> tuple[int, str]:
        """Returns the status of an answer, and its phrase."""
        one = self.request_processor[idx]
        return one.get_response_status_code(), one.get_response_status_phrase()
