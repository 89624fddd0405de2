"""Requests of different lengths share batches, and each gets the same outputs as alone."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flambeau.protocol.signature import Padding
from tests.e2e.held_workers import held_worker
from tests.e2e.rest_calls import infer, tensor
from tests.e2e.tensor_values import Array
from tests.fixtures.onnx_models import masked_sum, publish
from tests.fixtures.servers import ServerProcess, running_server
from tests.fixtures.triton_client import Inputs, TritonClient, TritonError

PADDING = Padding(
    inputs={"tokens": 1},
    outputs={"doubled": 1},
    buckets=(4, 8),
    values={"tokens": 100},
    mask="mask",
)
Asked = tuple[Array, Array | None]
"""The tokens, and the mask, or None if it is omitted."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Runs `sums`, which pads; `plain` is the same model without padding."""
    store = str(tmp_path_factory.mktemp("store"))
    publish(store, "sums", masked_sum(), padding=PADDING)
    publish(store, "plain", masked_sum())
    with running_server(Path(store), isolate=True, access_log=True) as server:
        yield server


def tokens(length: int, rows: int = 1) -> Array:
    """Returns tokens that identify lengths and positions."""
    return (np.arange(rows * length).reshape(rows, length) + 10 * length).astype(np.int64)


def by_tritonclient(
    server: ServerProcess, protocol: str, asked: Asked, id: str
) -> dict[str, Array]:
    """Returns the outputs of one request on a client of its own."""
    kind, address = ("http", server.http) if protocol == "REST" else ("grpc", server.grpc)
    named = zip(("tokens", "mask"), asked, strict=True)
    inputs: Inputs = {name: array for name, array in named if array is not None}
    with TritonClient(kind, address) as client:
        return client.infer("sums", inputs, request_id=id).outputs


def expected(asked: Asked) -> dict[str, Array]:
    """Returns the model's outputs for it alone."""
    given, mask = asked
    return {"total": (given if mask is None else given * mask).sum(axis=1), "doubled": 2 * given}


def assert_same(found: dict[str, Array], right: dict[str, Array]) -> None:
    for name, array in right.items():
        assert (found[name].dtype, found[name].tolist()) == (array.dtype, array.tolist())


REQUESTS: dict[str, Asked] = {
    "one": (tokens(1), None),
    "three": (tokens(3), np.array([[1, 0, 1]])),
    "full bucket": (tokens(4), None),
    "two rows": (tokens(2, rows=2), np.array([[1, 1], [0, 1]])),
    "five": (tokens(5), None),
    "eight": (tokens(8), np.array([[0, 1, 1, 1, 1, 1, 1, 0]])),
}
BATCHES = {"one": 5, "three": 5, "full bucket": 5, "two rows": 5, "five": 2, "eight": 2}
"""Rows of the expected batch of each request: requests of one bucket share it."""


@pytest.mark.parametrize("protocol", ["REST", "gRPC"])
def test_lengths_of_a_bucket_share_a_batch_and_answers_stay(
    server: ServerProcess, protocol: str
) -> None:
    for name, asked in REQUESTS.items():
        alone = by_tritonclient(server, protocol, asked, f"{protocol} {name} alone")
        assert_same(alone, expected(asked))
    with ThreadPoolExecutor(len(REQUESTS)) as threads:
        with held_worker(server, "sums", tensor("tokens", "INT64", [1, 2], [7, 8])):
            answers = {
                name: threads.submit(by_tritonclient, server, protocol, asked, f"{protocol} {name}")
                for name, asked in REQUESTS.items()
            }
            server.wait_for_metric(len(REQUESTS), "flambeau_queue_depth", model="sums")
        for name, answer in answers.items():
            assert_same(answer.result(), expected(REQUESTS[name]))
    for name, rows in BATCHES.items():
        log = server.wait_for_log(message="request", request_id=f"{protocol} {name}")
        assert (name, log["batch_rows"]) == (name, rows)


def test_json_needs_no_mask_either(server: ServerProcess) -> None:
    reply = infer(server, "sums", tensor("tokens", "INT64", [2, 3], [[1, 2, 3], [4, 5, 6]]))
    assert reply.outputs() == {"total": [6, 15], "doubled": [2, 4, 6, 8, 10, 12]}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((tokens(9), None), "the inputs have length 9; at most 8 fit, so shorten them"),
        (
            (tokens(3), np.ones((1, 2), np.int64)),
            "inputs differ in length: {'tokens': 3, 'mask': 2}",
        ),
        ((tokens(3), np.ones((2, 3), np.int64)), "inputs differ in batch size"),
    ],
)
def test_what_no_bucket_holds_is_refused(server: ServerProcess, given: Asked, message: str) -> None:
    for protocol, status in (("REST", "400"), ("gRPC", "StatusCode.INVALID_ARGUMENT")):
        with pytest.raises(TritonError) as caught:
            by_tritonclient(server, protocol, given, "refused")
        assert caught.value.status == status
        assert message in caught.value.message


def test_without_padding_lengths_do_not_mix_and_nothing_is_filled_in(server: ServerProcess) -> None:
    def ask(length: int, id: str) -> Any:
        given = tensor("tokens", "INT64", [1, length], [1] * length)
        ones = tensor("mask", "INT64", [1, length], [1] * length)
        return infer(server, "plain", given, ones, id=id)

    refused = infer(server, "plain", tensor("tokens", "INT64", [1, 2], [1, 2]))
    assert (refused.status, "input 'mask' is missing" in refused.error()) == (400, True)
    hold = [tensor(name, "INT64", [1, 2], [1, 1]) for name in ("tokens", "mask")]
    lengths = (3, 4, 3, 4)
    with ThreadPoolExecutor(len(lengths)) as threads:
        with held_worker(server, "plain", *hold):
            replies = [threads.submit(ask, n, f"plain {i}") for i, n in enumerate(lengths)]
            server.wait_for_metric(len(lengths), "flambeau_queue_depth", model="plain")
        for length, reply in zip(lengths, replies, strict=True):
            assert reply.result().outputs() == {"total": [length], "doubled": [2] * length}
    for i in range(len(lengths)):
        log = server.wait_for_log(message="request", request_id=f"plain {i}")
        assert log["batch_rows"] == 2
