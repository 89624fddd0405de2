"""Recent requests by caller: what is kept of them, and which of them a version breaks."""

import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flambeau.protocol.signature import Signature, SignatureError, TensorSpec
from services.registry.callers.broken_callers import MOST_TOLD, callers_text
from services.registry.callers.recent_callers import (
    ANONYMOUS,
    LOOK_EVERY_S,
    MAX_CALLERS,
    MAX_KINDS,
    MAX_MODELS,
    OTHERS,
    WINDOW_S,
    RecentCallers,
    SeenCaller,
)

STEP_S = 2 * LOOK_EVERY_S
"""Time between requests that are all looked at."""


def tensor(name: str, *sizes: int, datatype: str = "FP32", optional: bool = False) -> TensorSpec:
    return TensorSpec.model_validate(
        {"name": name, "datatype": datatype, "shape": (-1, *sizes), "optional": optional}
    )


def signed(
    *inputs: TensorSpec, outputs: Sequence[TensorSpec] = (), rows: int = 64, **more: Any
) -> Signature:
    outputs = tuple(outputs) or (tensor("y", 4),)
    return Signature(
        inputs=inputs or (tensor("x", 4),), outputs=tuple(outputs), max_batch_size=rows, **more
    )


LIVE = signed(tensor("x", 4), tensor("z", -1, optional=True), outputs=(tensor("y", 4), tensor("p")))


class Sender:
    """Sends requests that fit a signature, each of which is looked at."""

    def __init__(self, signature: Signature = LIVE) -> None:
        self.callers = RecentCallers()
        self.now = 1_000.0
        self.signature = signature

    def send(
        self,
        caller: str = "key:ci",
        *,
        x: tuple[int, ...] = (1, 4),
        z: tuple[int, ...] | None = None,
        outputs: Sequence[str] = (),
        model: str = "m",
        times: int = 1,
        is_step: bool = False,
    ) -> None:
        self.now += STEP_S
        inputs = [("x", "FP32", x)] + ([] if z is None else [("z", "FP32", z)])
        for _ in range(times):
            if self.callers.is_due(model, caller, self.now):
                self.callers.look(
                    model, caller, inputs, outputs, is_step=is_step, signature=self.signature,
                    now=self.now,
                )  # fmt: skip

    def seen(self, model: str = "m") -> dict[str, SeenCaller]:
        return {one.name: one for one in self.callers.seen(model, self.now)}

    def told(self, version: Signature) -> str:
        seen = self.callers.seen("m", self.now)
        return callers_text(seen, self.signature, version, "at this server")


def test_every_request_counts_and_one_in_some_time_is_looked_at() -> None:
    sender = Sender()
    looks = 0
    for number in range(100):
        if sender.callers.is_due("m", "", sender.now + number * LOOK_EVERY_S / 10):
            looks += 1
            sender.callers.look(
                "m", "", [("x", "FP32", (number + 1, 4))], (), is_step=False, signature=LIVE,
                now=sender.now + number * LOOK_EVERY_S / 10,
            )  # fmt: skip
    assert 10 <= looks <= 12
    [kind] = sender.seen()[ANONYMOUS].kinds
    assert kind.times == 100
    [smallest], [largest] = kind.smallest, kind.largest
    assert (smallest, largest[0] > 80) == ((1, 4), True)


def test_a_request_is_forgotten_after_the_window() -> None:
    sender = Sender()
    sender.send(times=3)
    sender.now += WINDOW_S / 2
    sender.send(times=2)
    assert [kind.times for kind in sender.seen()["key:ci"].kinds] == [5]
    sender.now += WINDOW_S * 2 / 3
    assert [kind.times for kind in sender.seen()["key:ci"].kinds] == [2]
    sender.now += WINDOW_S
    assert sender.seen() == {}
    assert sender.told(signed(rows=1)) == ""


def test_callers_beyond_the_limit_share_an_entry_until_others_leave() -> None:
    sender = Sender()
    for number in range(10 * MAX_CALLERS):
        sender.send(f"key:{number}")
    seen = sender.seen()
    assert len(seen) == MAX_CALLERS + 1
    assert seen[OTHERS].kinds[0].times >= 9 * MAX_CALLERS
    sender.now += WINDOW_S
    sender.send("key:late")
    assert sender.seen().keys() == {"key:late"}


def test_a_new_kind_beyond_the_limit_replaces_the_oldest() -> None:
    sender = Sender(signed(*(tensor(f"i{n}", optional=n > 0) for n in range(2 * MAX_KINDS))))
    for number in range(2 * MAX_KINDS):
        sender.now += STEP_S
        given_inputs = [(f"i{n}", "FP32", (1,)) for n in range(number + 1)]
        assert sender.callers.is_due("m", "key:ci", sender.now)
        sender.callers.look(
            "m", "key:ci", given_inputs, (), is_step=False, signature=sender.signature,
            now=sender.now,
        )  # fmt: skip
    kinds = sender.seen()["key:ci"].kinds
    assert [len(kind.inputs) for kind in kinds] == [*range(MAX_KINDS + 1, 2 * MAX_KINDS + 1)]


def test_models_beyond_the_limit_are_not_counted_until_others_are_idle() -> None:
    sender = Sender()
    for number in range(MAX_MODELS + 1):
        sender.send(model=f"m{number}")
    assert (len(sender.seen("m0")), sender.seen(f"m{MAX_MODELS}")) == (1, {})
    sender.now += WINDOW_S + 1
    sender.send(model="m")
    assert (len(sender.seen()), sender.seen("m0")) == (1, {})


@pytest.mark.parametrize(
    ("version", "said"),
    [
        (signed(tensor("w", 4)), "unknown input 'x'"),
        (signed(tensor("x", 5)), "input 'x' has shape [8,4]"),
        (signed(tensor("x", 4, datatype="INT64")), "input 'x' has datatype FP32; expected INT64"),
        (signed(tensor("x", 4), tensor("new")), "input 'new' is missing"),
        (signed(rows=4), "the batch has 8 rows; at most 4 fit, so split it"),
        (signed(outputs=[tensor("q")]), "the answers lack output 'y'"),
        (signed(outputs=[tensor("p"), tensor("y", 4)]), "are in a different order"),
        (
            signed(outputs=[tensor("y", 5), tensor("p")]),
            "output 'y' of the answers changes from FP32 [-1, 4] to FP32 [-1, 5]",
        ),
        (
            signed(outputs=LIVE.outputs, labels={"y": ("a", "b", "c", "d")}),
            "labels of output 'y' of the answers change",
        ),
        (
            signed(outputs=LIVE.outputs, sequence={}, rows=1),
            "the requests belong to no sequence",
        ),
    ],
)  # fmt: skip
def test_what_breaks_is_told(version: Signature, said: str) -> None:
    sender = Sender()
    sender.send(x=(8, 4), times=1_204)
    text = sender.told(version)
    assert "at this server whose requests break: key:ci (about 1,204 requests): " in text
    assert said in text


def test_only_callers_whose_own_requests_break_are_told() -> None:
    sender = Sender()
    sender.send("key:small", outputs=["y"])
    sender.send("key:big", x=(9, 4), outputs=["y"])
    sender.send("key:all")
    sender.send("key:p", outputs=["p"])
    sender.send("key:z", z=(1, 70), outputs=["y"])
    for version, broken in (
        (signed(*LIVE.inputs, outputs=LIVE.outputs, rows=8), {"key:big"}),
        (signed(*LIVE.inputs), {"key:all", "key:p"}),
        (signed(tensor("x", 4), outputs=LIVE.outputs), {"key:z"}),
        (signed(tensor("x", 4), tensor("z", 70, optional=True), outputs=LIVE.outputs), set()),
    ):
        text = sender.told(version)
        named = {name for name in sender.seen() if f"{name} (about" in text}
        assert named == broken, text
    assert text == "no request of the last hour seen at this server breaks, of 5 callers"


def test_a_message_names_the_most_frequent_callers() -> None:
    sender = Sender()
    for number in range(MAX_CALLERS):
        sender.send(f"jwt:{'x' * 500}{number}" if number else "key:often", times=40 - number)
    text = sender.told(signed(tensor("w", 4)))
    assert "break: key:often (about 40 requests): " in text
    assert text.endswith(f"; and {MAX_CALLERS - MOST_TOLD} more")
    assert len(text) < 3_000


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=12),
    st.tuples(st.integers(1, 40), st.integers(1, 40)).filter(lambda ends: ends[0] < ends[1]),
    st.randoms(use_true_random=False),
)
def test_a_caller_is_told_exactly_if_one_of_its_requests_is_refused(
    sizes: list[int], limits: tuple[int, int], order: random.Random
) -> None:
    version = signed(tensor("x", -1), dynamic={"x": {1: limits}}, rows=16)

    def refused(shape: tuple[int, int]) -> bool:
        try:
            version.check_inputs({"x": ("FP32", shape)})
        except SignatureError:
            return True
        return False

    sender = Sender(signed(tensor("x", -1)))
    shapes = [(order.randint(1, 20), size) for size in sizes]
    for shape in shapes:
        sender.send(x=shape)
    assert ("key:ci (about" in sender.told(version)) == any(map(refused, shapes))
