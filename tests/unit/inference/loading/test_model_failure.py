"""Work on the files of one model: its threads and its failures."""

import contextvars
import threading

import pytest

from services.inference.loading.loader import LoadError
from services.inference.loading.model_failure import in_thread


async def test_a_server_that_stops_waits_for_no_load() -> None:
    """Only daemon threads are left behind: the lowest priority can take minutes on busy cores."""
    assert await in_thread(lambda: threading.current_thread().daemon)


async def test_work_sees_the_context_of_its_caller() -> None:
    variable = contextvars.ContextVar("variable", default=0)
    variable.set(1)
    assert await in_thread(variable.get) == 1


async def test_a_model_that_ends_its_thread_is_a_load_error() -> None:
    def leave() -> None:
        raise SystemExit(3)

    with pytest.raises(LoadError, match="ended the thread that reads it"):
        await in_thread(leave)
