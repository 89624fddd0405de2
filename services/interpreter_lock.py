"""The interpreter's lock, lent by a busy event loop to the threads that wait for it.

A thread that wants the lock asks for it only if nobody has given it up for 5 ms. A busy event loop
gives it up in every turn, for the few µs in which it looks at its sockets, and has it again before
the other thread is awake: inferences beside it waited for 180 ms one time in a hundred, and once
for 7 s. So between turns without an end it stays away a little longer.
"""

import time

LENT_S = 50e-6
"""As long as a thread may take to wake, and 5 % of a turn. With it, no inference took longer than
45 ms on two cores that six processes wanted."""


def lend_lock() -> None:
    """Lets a thread that waits for the lock have it; called once in a turn that others follow."""
    time.sleep(LENT_S)
