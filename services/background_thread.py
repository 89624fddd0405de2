"""Background threads beside the event loop, for the duration of a block: watching, exporting."""

import contextlib
import threading
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def background_thread(
    name: str, work: Callable[[threading.Event], None], end_within_s: float | None = None
) -> Iterator[None]:
    """Runs a function in a separate thread during the block, and joins the thread at its end.

    Args:
        name: name of the thread.
        work: function that returns soon after its event is set; it pauses by waiting for the event.
        end_within_s: timeout of the join; None for no timeout.
    """
    over = threading.Event()
    thread = threading.Thread(target=work, args=(over,), name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(end_within_s)
