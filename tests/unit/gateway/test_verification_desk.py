"""Verifications at the desk: who may ask, who shares one, and what is refused."""

import asyncio

import pytest

from services.errors import (
    ForbiddenError,
    InvalidRequestError,
    OverloadedError,
    ServingError,
    UnknownJobError,
    UnknownModelError,
)
from services.gateway.verification_desk import (
    KEPT,
    Progress,
    VerificationDesk,
    Verified,
    VerifyFor,
)

DONE = Verified(certificate=b"{}", recorded_as="m/certificates/1/0.json")


class Slow:
    """Verifies when it is told to."""

    def __init__(self) -> None:
        self.begun: list[tuple[str, int | None]] = []
        self.progress: Progress = lambda *_: None
        self.outcome: asyncio.Future[Verified] = asyncio.get_running_loop().create_future()

    async def __call__(self, model: str, version: int | None, progress: Progress) -> Verified:
        self.begun.append((model, version))
        self.progress = progress
        return await asyncio.shield(self.outcome)


@pytest.fixture
async def slow() -> Slow:
    return Slow()


@pytest.fixture
async def desk(slow: Slow) -> VerificationDesk:
    return VerificationDesk(slow, "this_machine")


@pytest.mark.parametrize(
    ("allowed", "peer", "may"),
    [
        ("this_machine", "ipv4:127.0.0.1:5000", True),
        ("this_machine", "ipv6:%5B::1%5D:5000", True),
        ("this_machine", "unix:/run/socket", True),
        ("this_machine", "ipv4:10.0.0.1:5000", False),
        ("this_machine", "ipv6:%5B2001:db8::1%5D:5000", False),
        ("this_machine", "", False),
        ("nobody", "ipv4:127.0.0.1:5000", False),
        ("everybody", "ipv4:10.0.0.1:5000", True),
    ],
)
async def test_strangers_are_refused(slow: Slow, allowed: VerifyFor, peer: str, may: bool) -> None:
    desk = VerificationDesk(slow, allowed)
    if may:
        desk.check(peer)
        return
    with pytest.raises(ForbiddenError, match=r"verify_for"):
        desk.check(peer)


async def test_the_same_version_is_verified_once(desk: VerificationDesk, slow: Slow) -> None:
    first = desk.begin("m", "1")
    assert desk.begin("m", "1") is first
    slow.outcome.set_result(DONE)
    await desk.wait(first, 5)
    assert first.outcome == DONE
    assert slow.begun == [("m", 1)]
    assert desk.find(first.id) is first
    assert desk.begin("m", "1") is not first, "what is over is begun anew"


async def test_another_version_waits_its_turn(desk: VerificationDesk, slow: Slow) -> None:
    desk.begin("m", "")
    with pytest.raises(OverloadedError, match=r"'m' version in production is being verified"):
        desk.begin("m", "2")


async def test_who_waits_is_woken_by_every_step(desk: VerificationDesk, slow: Slow) -> None:
    begun = desk.begin("m", "1")
    waiting = asyncio.create_task(desk.wait(begun, 5))
    await asyncio.sleep(0)  # both tasks begin
    slow.progress("onnx", 1, 3)
    await waiting
    assert (begun.artifact, begun.done, begun.total, begun.outcome) == ("onnx", 1, 3, None)


async def test_an_error_is_kept_for_whoever_asks(desk: VerificationDesk, slow: Slow) -> None:
    begun = desk.begin("m", "1")
    slow.outcome.set_exception(UnknownModelError("no m"))
    await desk.wait(begun, 5)
    assert isinstance(begun.outcome, ServingError)
    assert str(begun.outcome) == "no m"
    desk.begin("m", "2")


async def test_those_long_over_are_forgotten(slow: Slow) -> None:
    async def at_once(model: str, version: int | None, progress: Progress) -> Verified:
        return DONE

    desk = VerificationDesk(at_once, "everybody")
    ids = []
    for version in range(1, KEPT + 2):
        begun = desk.begin("m", str(version))
        await desk.wait(begun, 5)
        ids.append(begun.id)
    with pytest.raises(UnknownJobError, match="begin again"):
        desk.find(ids[0])
    assert desk.find(ids[1]).outcome == DONE


@pytest.mark.parametrize("version", ["one", "-1", "٣", "1" * 10])
async def test_versions_are_numbers(desk: VerificationDesk, version: str) -> None:
    with pytest.raises(InvalidRequestError, match="is no version number"):
        desk.begin("m", version)
