"""Waiting for a process of our own."""

import signal
import threading

import pytest

from flambeau.local.own_process import OwnProcess


@pytest.mark.timeout(30)
def test_an_interrupt_that_does_not_end_the_wait_is_raised_soon_after() -> None:
    waits = threading.Event()

    def interrupt() -> None:  # in this thread: the system goes on waiting in the other one
        waits.wait()
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)

    sender = threading.Thread(target=interrupt)
    sender.start()
    with OwnProcess("timeit", "-n1", "-r1", "print(1, flush=True); input()") as process:
        lines = process.lines()
        assert next(lines) == "1\n"

        def go_on() -> None:
            waits.set()
            next(lines)

        with pytest.raises(KeyboardInterrupt):
            go_on()
    sender.join()
