"""Tests of the simulated event loop: a call may take time, and others fall due meanwhile."""

from tests.fixtures.simulated_loop import SimulatedLoop


def test_a_moment_is_quiet_after_all_calls_that_fell_due_during_a_long_call() -> None:
    loop, events = SimulatedLoop(), list[str]()

    def run() -> None:
        events.append("run")
        loop.now_s += 2.0

    loop.when_quiet = lambda: events.append("quiet")
    loop.call_soon(run)
    loop.call_later(1.0, events.append, "due")
    loop.call_later(3.0, events.append, "later")
    loop.simulate()
    assert events == ["run", "due", "quiet", "later", "quiet"]


def test_calls_that_follow_each_other_do_not_delay_what_is_due() -> None:
    loop, events = SimulatedLoop(), list[str]()

    def run(left: int) -> None:
        events.append("run")
        loop.now_s += 2.0
        if left:
            loop.call_soon(run, left - 1)

    loop.call_soon(run, 3)
    loop.call_later(1.0, events.append, "due")
    loop.simulate()
    assert events == ["run", "run", "due", "run", "run"]


def test_a_loop_that_is_never_quiet_ends_at_its_time() -> None:
    loop, quiet = SimulatedLoop(), list[float]()

    def run() -> None:
        loop.now_s += 2.0
        loop.call_at(loop.now_s - 1.0, run)

    loop.when_quiet = lambda: quiet.append(loop.now_s)
    loop.call_soon(run)
    loop.simulate(1007.0)
    assert loop.now_s == 1010.0
    assert not quiet
