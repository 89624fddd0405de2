"""Work beside the event loop, for as long as a block lasts: looking at files, sending, sampling."""

import contextlib
import threading
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def background_thread(
    name: str, work: Callable[[threading.Event], None], end_within_s: float | None = None
) -> Iterator[None]:
    """Runs a function in a thread of its own within the block, and waits for its end behind it.

    Args:
        name: of the thread.
        work: returns soon after the event it is given is set; to pause, it waits for that event.
        end_within_s: how long it is waited for; None for as long as it takes.
    """
    over = threading.Event()
    thread = threading.Thread(target=work, args=(over,), name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(end_within_s)
