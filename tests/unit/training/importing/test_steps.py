"""Steps of an import that take long are told again."""

import threading

from training.importing.steps import told_step


def test_a_step_that_takes_long_is_told_again_with_its_limit() -> None:
    told: list[str] = []
    again = threading.Event()

    def say(text: str) -> None:
        told.append(text)
        if len(told) == 2:
            again.set()

    with told_step(say, "verifying onnx", 600.0, after_s=0.0):
        assert again.wait(10)

    assert told == ["verifying onnx", "still verifying onnx after 0 s; the limit is 600 s"]


def test_a_step_that_ends_is_told_once() -> None:
    told: list[str] = []
    before = threading.active_count()

    with told_step(told.append, "verifying onnx", 600.0, after_s=3600.0):
        (timer,) = [one for one in threading.enumerate() if isinstance(one, threading.Timer)]

    timer.join(10)  # it waits no longer
    assert (told, threading.active_count()) == (["verifying onnx"], before)
