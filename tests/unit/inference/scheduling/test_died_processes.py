"""A worker process that ends is replaced, and the requests that it ran are tried once more."""

from services.errors import BackendError, WorkerProcessDiedError
from tests.fixtures.fake_backends import DoublingBackend, GatedBackend
from tests.fixtures.running_worker import ran, running


async def test_a_process_that_died_is_replaced_and_each_request_tried_once_more() -> None:
    dying, next_one = DoublingBackend(WorkerProcessDiedError("died")), DoublingBackend()
    async with running(dying, reopened=[next_one]) as made:
        calls = [made.infer(1.0), made.infer(2.0)]
        assert [await call.values() for call in calls] == [[2.0], [4.0]]
        assert made.counted("flambeau_worker_restarts_total", reason="died") == 1
    assert (ran(dying), ran(next_one)) == ([[1.0, 2.0]], [[1.0], [2.0]])


async def test_a_request_that_kills_twice_is_at_fault_and_its_neighbours_live() -> None:
    dying = [DoublingBackend(WorkerProcessDiedError("died", "exit code 3")) for _ in range(2)]
    async with running(dying[0], reopened=[dying[1], DoublingBackend()]) as made:
        killer, neighbour = made.infer(1.0), made.infer(2.0)
        error = await killer.error()
        assert type(error) is BackendError  # no retry helps
        assert str(error).endswith("ended its process on this input (exit code 3)")
        assert await neighbour.values() == [4.0]
        assert made.counted("flambeau_worker_restarts_total", reason="died") == 2


async def test_a_request_that_finds_no_process_is_not_at_fault() -> None:
    dying = [DoublingBackend(WorkerProcessDiedError("died")) for _ in range(2)]
    reopened: list[GatedBackend | Exception] = [
        dying[1], OSError("no memory"), DoublingBackend(),
    ]  # fmt: skip
    async with running(dying[0], reopened=reopened) as made:
        killer, neighbour = made.infer(1.0), made.infer(2.0)
        assert type(await killer.error()) is BackendError
        assert isinstance(await neighbour.error(), WorkerProcessDiedError)
        assert await made.infer(2.0).values() == [4.0]


async def test_a_process_that_cannot_be_started_is_tried_again_with_the_next_batch() -> None:
    dying, next_one = DoublingBackend(WorkerProcessDiedError("died")), DoublingBackend()
    async with running(dying, reopened=[OSError("no memory"), next_one]) as made:
        assert isinstance(await made.infer(1.0).error(), WorkerProcessDiedError)
        assert await made.infer(2.0).values() == [4.0]
