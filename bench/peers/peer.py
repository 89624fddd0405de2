"""What a server is to this benchmark: something to install, to start and to ask.

One small file a peer implements `Peer`; everything else here treats all servers alike, ours
included. A peer gets one model at a time, in a folder of its own, and serves it with one worker,
one torch thread, batches of at most `MAX_BATCH` rows and `WAIT_MS` to gather them, as far as it
has these settings; `asked` says in words what it was given.
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
    """How a request travels."""

    JSON = "REST JSON"
    BINARY = "REST binary"
    GRPC = "gRPC"


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A server about to be started."""

    argv: tuple[str, ...]
    folder: Path
    """Where it runs, and where its log goes."""
    http: str
    """host:port."""
    grpc: str = ""
    """host:port; empty: it speaks none."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Beyond what every server gets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One request, the same bytes each time, and how to read what comes back."""

    path: str
    """Of the URL; the full name of the method for gRPC."""
    body: bytes
    """Of the HTTP request; the message, without its gRPC prefix."""
    read: Callable[[Mapping[str, str], bytes], Floats]
    """Answer's headers (names in lower case) and body to the output, [rows, ...]."""
    headers: Mapping[str, str] = field(default_factory=dict)


class Peer(ABC):
    """A server to be measured."""

    name: str
    """As `--peers` takes it and the tables show it."""
    asked: str
    """What it was given to do, in words, for the report."""
    forms: Mapping[Form, str]
    """How it can be asked, and what the body is."""
    warm_up_s: int = 3
    """Load before anything is measured, once a start and form; more for who compiles meanwhile."""
    exact: bool = True
    """Whether it runs the FP32 weights; False: what it serves was quantised and may differ."""

    @abstractmethod
    def install(self) -> str:
        """Makes it ready to start; returns its version.

        Raises:
            PeerError: it cannot be installed here.
        """

    @abstractmethod
    def start(self, model: ServedModel) -> Launch:
        """Writes what it needs to serve one model, and says how to start it.

        Raises:
            PeerError: it cannot serve this model.
        """

    @abstractmethod
    def request(self, model: ServedModel, form: Form, rows: Array) -> Ask:
        """Asks for the outputs of some rows; `form` is one of `forms`."""


class PeerError(Exception):
    """A server that cannot be measured; the message says why. The others go on."""
