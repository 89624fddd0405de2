"""Compares a server's responses with torch: only servers with equal outputs are measured.

In: a started server and a model's rows. Out: nothing, or an error that shows both outputs.
"""

import http.client

import grpc
import numpy as np

from bench.peers.peer import Ask, Floats, Form, Launch, Peer, PeerError
from bench.peers.served_model import ServedModel

TIMEOUT_S = 30
SAME_NETWORK = 1e-3
"""Largest difference from torch's output, as a share of that output's spread."""
QUANTISED = 0.1
"""The same for an artifact of lower precision, which was verified when it was published."""


class WrongAnswerError(PeerError):
    """A server whose output differs from torch's."""


def check(peer: Peer, launch: Launch, model: ServedModel) -> dict[Form, int]:
    """Sends each row in every form of the peer; returns the size of each response in bytes.

    Raises:
        WrongAnswerError: an output differs from torch's.
        PeerError: the server does not respond.
    """
    lengths: dict[Form, int] = {}
    for form in peer.forms:
        for row, expected in zip(model.rows, model.expected, strict=True):
            ask = peer.request(model, form, row[np.newaxis])
            got, lengths[form] = _answer(launch, form, ask)
            compare(got, expected[np.newaxis], SAME_NETWORK if peer.exact else QUANTISED)
    return lengths


def ask_once(peer: Peer, launch: Launch, model: ServedModel) -> str:
    """Sends one row; returns the reason for a missing response, or nothing if the output is right.

    Raises:
        WrongAnswerError: the output differs from torch's.
    """
    ask = peer.request(model, Form.JSON, model.rows[:1])
    try:
        got, _ = _answer(launch, Form.JSON, ask)
    except PeerError as error:
        return str(error)
    compare(got, model.expected[:1], SAME_NETWORK if peer.exact else QUANTISED)
    return ""


def compare(got: Floats, expected: Floats, tolerance: float) -> None:
    """Compares an output with torch's.

    Args:
        got: output of the server, [rows, classes].
        expected: output of torch, [rows, classes].
        tolerance: largest difference, as a share of the spread of the expected output.

    Raises:
        WrongAnswerError: the shape differs, or a difference exceeds the tolerance.
    """
    if got.shape != expected.shape:
        raise WrongAnswerError(f"it answered {got.shape} where torch gives {expected.shape}")
    difference = float(np.abs(got - expected).max()) / float(np.ptp(expected))
    if not difference <= tolerance:
        raise WrongAnswerError(
            f"it answered {got.round(3).tolist()} where torch gives {expected.round(3).tolist()}: "
            f"{difference:.2g} of their spread apart, more than {tolerance:g}"
        )


def _answer(launch: Launch, form: Form, ask: Ask) -> tuple[Floats, int]:
    """Returns the output, and the response size in bytes; for gRPC including its prefix of 5."""
    if form is Form.GRPC:
        with grpc.insecure_channel(launch.grpc) as channel:
            try:
                body: bytes = channel.unary_unary(ask.path, None, None)(
                    ask.body, timeout=TIMEOUT_S, wait_for_ready=True
                )
            except grpc.RpcError as error:
                raise PeerError(f"{form}: {error.code()}: {error.details()}") from error
        return ask.read({}, body), len(body) + 5
    connection = http.client.HTTPConnection(launch.http, timeout=TIMEOUT_S)
    try:
        connection.request("POST", ask.path, ask.body, dict(ask.headers))
        answer = connection.getresponse()
        body = answer.read()
    except (OSError, http.client.HTTPException) as error:
        raise PeerError(f"{form}: {error!r}") from error
    finally:
        connection.close()
    if answer.status != 200:
        raise PeerError(f"{form}: HTTP {answer.status}: {body[:300]!r}")
    return ask.read({name.lower(): value for name, value in answer.getheaders()}, body), len(body)
