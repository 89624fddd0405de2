"""Sizes that the signature leaves free and the model does not take are the caller's fault."""

from services.errors import BackendError, InputRefusedError
from services.queueing.records import PYTHON_PLATFORM
from tests.fixtures.fake_backends import DoublingBackend
from tests.fixtures.running_worker import MAX_ROWS, running
from tests.fixtures.signatures import one_to_one

MISMATCH = RuntimeError("The size of tensor a (5) must match the size of tensor b (6)")


async def test_sizes_that_a_model_does_not_take_are_the_callers_fault() -> None:
    backend = DoublingBackend(MISMATCH)
    async with running(backend, signature=one_to_one((-1,), rows=MAX_ROWS)) as made:
        refused = await made.infer(1.0).error()
        assert await made.infer(2.0).values() == [4.0]
        backend.failures.append(MISMATCH)
        failed = await made.infer(3.0).error()
    assert type(refused) is InputRefusedError
    assert str(refused) == (
        "model 'm' version 1 does not accept this combination of sizes, 'x' [1,1]: "
        f"{MISMATCH}; send sizes that fit the model and each other"
    )
    assert type(failed) is BackendError, "these sizes have run before"


async def test_where_the_signature_fixes_sizes_a_mismatch_is_the_models_fault() -> None:
    async with running(DoublingBackend(MISMATCH)) as made:
        assert type(await made.infer(1.0).error()) is BackendError


async def test_a_python_models_error_about_sizes_is_its_own() -> None:
    backend = DoublingBackend(MISMATCH)
    backend.platform = PYTHON_PLATFORM
    async with running(backend, signature=one_to_one((-1,), rows=MAX_ROWS)) as made:
        assert type(await made.infer(1.0).error()) is BackendError
