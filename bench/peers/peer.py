"""Interface of a measured server: installs it, starts it and builds requests for it.

Each peer implements `Peer` in one small file; all other code treats all servers alike, ours
included. A peer gets one model at a time, in a folder of its own, and serves it with one worker,
one torch thread, batches of at most `MAX_BATCH` rows and `WAIT_MS` to form them, as far as it has
these settings; `asked` describes its configuration.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.peers.served_model import ServedModel

MAX_BATCH = 32
WAIT_MS = 2

Array = NDArray[np.generic]
Floats = NDArray[np.float32]


class Form(StrEnum):
    """Protocol and body of a request."""

    JSON = "REST JSON"
    BINARY = "REST binary"
    GRPC = "gRPC"


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Configuration of a server start."""

    argv: tuple[str, ...]
    folder: Path
    """Working folder of the server and its log."""
    http: str
    """host:port."""
    grpc: str = ""
    """host:port; empty for a server without gRPC."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables in addition to those of every server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One request with constant bytes, and the parser of its response."""

    path: str
    """Path of the URL; the full method name for gRPC."""
    body: bytes
    """Body of the HTTP request; for gRPC the message without its prefix."""
    read: Callable[[Mapping[str, str], bytes], Floats]
    """Maps the response's headers (names in lower case) and body to the output, [rows, ...]."""
    headers: Mapping[str, str] = field(default_factory=dict)


class Peer(ABC):
    """A server to measure."""

    name: str
    """Name for `--peers` and in the tables."""
    asked: str
    """Description of its configuration, for the report."""
    forms: Mapping[Form, str]
    """Supported forms, each with a description of the body."""
    warm_up_s: int = 3
    """Seconds of warm-up load of each start and form; longer for servers that compile meanwhile."""
    exact: bool = True
    """True if it runs the FP32 weights; False if it serves a quantised model, which may differ."""

    @abstractmethod
    def install(self) -> str:
        """Installs the peer; returns its version.

        Raises:
            PeerError: the installation failed.
        """

    @abstractmethod
    def start(self, model: ServedModel) -> Launch:
        """Writes the files that serve one model, and returns the start configuration.

        Raises:
            PeerError: the peer cannot serve this model.
        """

    @abstractmethod
    def request(self, model: ServedModel, form: Form, rows: Array) -> Ask:
        """Builds a request for the outputs of some rows; `form` is one of `forms`."""


class PeerError(Exception):
    """A server that cannot be measured; the message states the reason. Other servers still are."""
