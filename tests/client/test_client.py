"""The synchronous client against a real server: what is sent, what comes back, what goes wrong."""

import re
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer

import grpc
import numpy as np
import pytest

from flambeau.calling.attempts import DEFAULT_RETRIES
from flambeau.client import AsyncClient, Client
from flambeau.errors import (
    AddressError,
    ClientError,
    DeadlineError,
    InvalidRequestError,
    MessageTooLargeError,
    NotFoundError,
    OverloadedError,
    ServerError,
    UnavailableError,
)
from flambeau.jobs import JobClient
from flambeau.protocol.messages import inference as pb
from flambeau.training_jobs import TrainingClient
from tests.client.scripted_server import ScriptedServer, fail

IMAGES = np.arange(12, dtype=np.float32).reshape(2, 2, 3)


def test_infer_sends_what_it_was_given(server: ScriptedServer, client: Client) -> None:
    labels = np.array([b"a\0", b""], np.object_)
    outputs = client.infer(
        "digits",
        {"image": IMAGES, "label": labels},
        version="3",
        outputs=["label"],
        request_id="r-1",
    )

    assert list(outputs) == ["label"]
    assert outputs["label"].tolist() == [b"a\0", b""]
    request = server.received[0].request
    assert (request.model_name, request.model_version, request.id) == ("digits", "3", "r-1")
    assert list(request.inputs[0].shape) == [2, 2, 3]
    assert request.raw_input_contents[0] == IMAGES.tobytes()


def test_every_call_has_a_deadline(server: ScriptedServer, client: Client) -> None:
    assert client.is_live()
    assert client.is_ready()
    assert client.is_ready("digits")
    assert not client.is_ready("letters")
    client.model("digits")(image=IMAGES)

    remaining = [received.time_remaining_s for received in server.received]
    assert len(remaining) == 6
    # gRPC rounds a deadline up on its way; without one this would be None.
    assert all(seconds is not None and 0 < seconds < 11 for seconds in remaining)


def test_a_late_answer_is_a_deadline_error(server: ScriptedServer, client: Client) -> None:
    server.behaviours["ModelInfer"] = server.hang
    with pytest.raises(DeadlineError, match=r"no answer within 0\.1 s"):
        client.infer("digits", {"image": IMAGES}, timeout_s=0.1)
    assert server.attempts() == 1


def test_a_deadline_of_the_servers_own_keeps_its_words(
    server: ScriptedServer, client: Client
) -> None:
    server.behaviours["ModelInfer"] = fail("DEADLINE_EXCEEDED", "queued for 5 s")
    with pytest.raises(DeadlineError, match=r"^queued for 5 s$"):
        client.infer("digits", {"image": IMAGES})


def test_unavailable_is_retried_until_it_works(server: ScriptedServer, client: Client) -> None:
    server.behaviours["ModelInfer"] = fail("UNAVAILABLE", "draining", times=2)
    assert client.infer("digits", {"image": IMAGES})["image"].shape == IMAGES.shape
    assert server.attempts() == 3


def test_unavailable_is_retried_a_limited_number_of_times(
    server: ScriptedServer, client: Client
) -> None:
    server.behaviours["ModelInfer"] = fail("UNAVAILABLE", "draining")
    with pytest.raises(UnavailableError, match="draining"):
        client.infer("digits", {"image": IMAGES})
    assert server.attempts() == 1 + DEFAULT_RETRIES == 4


def test_retries_end_with_the_deadline(server: ScriptedServer, client: Client) -> None:
    server.behaviours["ModelInfer"] = fail("UNAVAILABLE", "draining")
    with pytest.raises(ClientError):
        client.infer("digits", {"image": IMAGES}, timeout_s=0.25)
    assert 1 <= server.attempts() < 4


def test_a_large_request_is_retried_as_well(server: ScriptedServer, client: Client) -> None:
    server.behaviours["ModelInfer"] = fail("UNAVAILABLE", "draining", times=1)
    megabytes = np.zeros((1, 4 * 1024 * 1024), np.uint8)
    assert client.infer("digits", {"image": megabytes})["image"].nbytes == megabytes.nbytes
    assert server.attempts() == 2


@pytest.mark.parametrize(
    ("code", "error", "retryable"),
    [
        ("INVALID_ARGUMENT", InvalidRequestError, False),
        ("NOT_FOUND", NotFoundError, False),
        ("RESOURCE_EXHAUSTED", OverloadedError, True),
        ("INTERNAL", ServerError, False),
        ("UNKNOWN", ServerError, False),
        ("UNIMPLEMENTED", ServerError, False),
        ("ABORTED", ServerError, False),
    ],
)
def test_each_code_is_an_error_with_the_servers_words_and_no_retry(
    server: ScriptedServer,
    client: Client,
    code: str,
    error: type[ClientError],
    retryable: bool,
) -> None:
    server.behaviours["ModelInfer"] = fail(code, "what, which value, what to do")
    with pytest.raises(error, match=r"^what, which value, what to do$") as caught:
        client.infer("digits", {"image": IMAGES})
    assert caught.value.grpc_code == code
    assert caught.value.retryable is retryable
    assert isinstance(caught.value.__cause__, grpc.RpcError)
    assert server.attempts() == 1


def test_an_empty_message_still_says_something(server: ScriptedServer, client: Client) -> None:
    server.behaviours["ModelInfer"] = fail("INTERNAL", "")
    with pytest.raises(ServerError, match="the server answered INTERNAL without a message"):
        client.infer("digits", {"image": IMAGES})


def test_nobody_there_until_somebody_is() -> None:
    with ScriptedServer() as server:
        port = server.port
    with Client(f"127.0.0.1:{port}") as client:
        assert not client.is_live()
        with pytest.raises(UnavailableError, match=r"failed to connect .*; check the address"):
            client.metadata("digits")
        with ScriptedServer(port):
            assert client.is_live()


def test_limits_on_bytes_are_named(server: ScriptedServer, client: Client) -> None:
    with Client(server.address, max_message_bytes=1_000) as small:
        with pytest.raises(MessageTooLargeError, match=r"CLIENT: Sent .*max_message_bytes"):
            small.infer("digits", {"image": np.zeros(1_000)})
        assert server.attempts() == 0

        server.behaviours["ModelInfer"] = lambda request, context: pb.ModelInferResponse(
            model_name="x" * 2_000
        )
        with pytest.raises(MessageTooLargeError, match=r"CLIENT: Received .*max_message_bytes"):
            small.infer("digits", {"image": IMAGES})
    with pytest.raises(MessageTooLargeError, match="SERVER: Received"):
        client.infer("digits", {"image": np.zeros(2_000_000)})


@pytest.mark.parametrize("timeout_s", [0, -1, float("inf"), float("nan")])
def test_a_timeout_must_end(client: Client, timeout_s: float) -> None:
    with pytest.raises(ValueError, match=r"timeout_s is .*; give a positive number of seconds"):
        Client("127.0.0.1:1", timeout_s=timeout_s)
    with pytest.raises(ValueError, match="timeout_s is"):
        client.infer("digits", {"image": IMAGES}, timeout_s=timeout_s)


@pytest.mark.parametrize("limit", [0, 2**31])
def test_a_limit_on_bytes_must_be_one(limit: int) -> None:
    with pytest.raises(ValueError, match=re.escape(f"max_message_bytes is {limit}; give 1 to")):
        Client("127.0.0.1:1", max_message_bytes=limit)


@pytest.mark.parametrize("open_client", [Client, AsyncClient, JobClient, TrainingClient])
@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("http://127.0.0.1:8001", "is a URL"),
        ("HTTPS://models.example", "is a URL"),
        ("127.0.0.1", "has no port"),
        ("", "has no port"),
        ("models.example:", "has no port"),
        ("models.example:grpc", "has no port"),
    ],
)
def test_an_address_that_is_none_of_grpc_is_refused(
    open_client: Callable[[str], object], target: str, why: str
) -> None:
    with pytest.raises(AddressError, match="give HOST:PORT of gRPC, usually 8001") as raised:
        open_client(target)
    assert f"'{target}' {why}" in str(raised.value)


@pytest.mark.parametrize("target", ["dns:///h:1", "unix:/run/s", "[::1]:8001", "h:8001"])
def test_an_address_that_grpc_knows_is_taken(target: str) -> None:
    with Client(target):
        pass


def test_a_port_of_rest_is_told_from_one_of_grpc() -> None:
    server = HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        with (
            Client(f"127.0.0.1:{server.server_port}") as client,
            pytest.raises(UnavailableError, match="not a gRPC port: give HOST:PORT of gRPC"),
        ):
            client.metadata("digits")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
