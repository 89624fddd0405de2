"""Models that callers load and unload: each act ends after a pass that began behind it."""

import asyncio

import pytest

from services.errors import ServingError, TooManyInFlightError, UnknownModelError
from services.inference.model_control import ModelControl
from services.queueing.model_control.act_limit import MAX_ACTS


def passed(control: ModelControl, outcome: ServingError | bool = True) -> None:
    control.begin_pass()
    control.end_pass(lambda _: outcome)


async def test_an_act_ends_with_a_pass_that_began_after_it() -> None:
    control = ModelControl("explicit", ("a",))
    control.begin_pass()
    load = asyncio.ensure_future(control.act("load", "b"))
    await asyncio.sleep(0)
    control.end_pass(lambda _: True)
    await asyncio.sleep(0)
    assert not load.done(), "that pass may not have seen it"
    passed(control, False)
    await asyncio.sleep(0)
    assert not load.done(), "it is not decided yet"
    passed(control)
    await load
    assert [*control.asked] == ["a", "b"]
    assert control.take_anew() == {"b"}
    assert control.take_anew() == set()


async def test_callers_of_one_act_share_its_outcome() -> None:
    control = ModelControl("explicit")
    acts = [asyncio.ensure_future(control.act("load", "b")) for _ in range(3)]
    await asyncio.sleep(0)
    acts[0].cancel()
    passed(control, UnknownModelError("no such model"))
    for act in acts[1:]:
        with pytest.raises(UnknownModelError, match="no such model"):
            await act


async def test_a_load_that_was_overtaken_by_an_unload_ends() -> None:
    control = ModelControl("explicit")
    acts = [asyncio.ensure_future(control.act(act, "b")) for act in ("load", "unload")]
    await asyncio.sleep(0)
    passed(control, False)
    await asyncio.gather(*acts)
    assert not control.asked


async def test_dependents_are_unloaded_where_asked() -> None:
    control = ModelControl("explicit", ("pipe", "part", "other"))
    control.parts_of = {"pipe": ["part"]}.__getitem__
    unload = asyncio.ensure_future(control.act("unload", "pipe", True))
    await asyncio.sleep(0)
    assert [*control.asked] == ["other"]
    passed(control)
    await unload


async def test_acts_have_a_limit() -> None:
    control = ModelControl("explicit")
    acts = [asyncio.ensure_future(control.act("load", f"m{n}")) for n in range(MAX_ACTS)]
    await asyncio.sleep(0)
    with pytest.raises(TooManyInFlightError):
        await control.act("load", "one more")
    passed(control)
    await asyncio.gather(*acts)
    assert "one more" not in control.asked


async def test_an_act_ends_the_pause() -> None:
    control, stop = ModelControl("explicit"), asyncio.Event()
    control.begin_pass()
    pause = asyncio.ensure_future(control.pause(stop, 3600))
    await asyncio.sleep(0)
    act = asyncio.ensure_future(control.act("load", "b"))
    await pause
    assert "b" in control.asked
    passed(control)
    await act
    stop.set()
    await control.pause(stop, 3600)
