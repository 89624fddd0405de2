"""Conformance, briefly: every call once, and some seconds of each fuzzer with a seed of its own.

`make conformance` runs the fuzzers for minutes, schemathesis, and a comparison with Triton.
"""

import random
from collections.abc import Callable, Iterator

import pytest

from tests.conformance.calls import Row, check_all
from tests.conformance.further_calls import EVERY
from tests.conformance.fuzzer import Found, fuzz_grpc, fuzz_rest
from tests.conformance.server import running
from tests.fixtures.servers import ServerProcess

SECONDS = 4.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with running(tmp_path_factory.mktemp("store")) as server:
        yield server


def test_every_call(server: ServerProcess) -> None:
    assert [row for row in check_all(server, EVERY) if row.fault] == list[Row]()


@pytest.mark.parametrize("fuzz", [fuzz_rest, fuzz_grpc])
def test_mutated_requests(
    server: ServerProcess, fuzz: Callable[[ServerProcess, int, float], Found]
) -> None:
    seed = random.randrange(2**32)
    found = fuzz(server, seed, SECONDS)
    assert found.faults == []
    assert found.requests > 20
