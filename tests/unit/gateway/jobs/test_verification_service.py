"""The verification service: permissions, sharing, and refusals."""

import asyncio

import pytest
from google.protobuf.duration_pb2 import Duration

from protos.flambeau.v1 import verification_pb2 as pb
from services.access.caller import Principal
from services.errors import (
    ForbiddenError,
    InvalidRequestError,
    OverloadedError,
    QueueUnavailableError,
    ServingError,
    UnknownJobError,
    UnknownModelError,
)
from services.gateway.edges.grpc_verification import GrpcVerification
from services.gateway.jobs.verification_service import KEPT, VerificationService, VerifyFor
from services.queueing.verification_records import Progress, Verified
from tests.fixtures.slow_proof import DONE, SlowProof


@pytest.fixture
async def slow() -> SlowProof:
    return SlowProof()


@pytest.fixture
async def service(slow: SlowProof) -> VerificationService:
    return VerificationService(slow, "this_machine")


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
    ],
)
async def test_strangers_are_refused(
    slow: SlowProof, allowed: VerifyFor, peer: str, may: bool
) -> None:
    service = VerificationService(slow, allowed)
    if may:
        service.check(peer)
        return
    with pytest.raises(ForbiddenError) as refused:
        service.check(peer)
    assert str(refused.value) == "this server takes no verifications from you; ask its operator"
    if allowed == "this_machine":
        service.check(peer, is_known=True)


async def test_the_same_version_is_verified_once(
    service: VerificationService, slow: SlowProof
) -> None:
    first = service.begin("m", "1")
    assert service.begin("m", "1") is first
    slow.outcome.set_result(DONE)
    await service.wait(first, 5)
    assert first.outcome == DONE
    assert slow.begun == [("m", 1)]
    assert service.find(first.id) is first
    assert service.begin("m", "1") is not first, "what is over is begun anew"


async def test_another_version_waits_its_turn(
    service: VerificationService, slow: SlowProof
) -> None:
    service.begin("m", "")
    with pytest.raises(OverloadedError, match=r"'m' version in production is being verified"):
        service.begin("m", "2")


async def test_who_waits_is_woken_by_every_step(
    service: VerificationService, slow: SlowProof
) -> None:
    begun = service.begin("m", "1")
    waiting = asyncio.create_task(service.wait(begun, 5))
    await asyncio.sleep(0)  # both tasks begin
    slow.progress("onnx", 1, 3)
    await waiting
    assert (begun.artifact, begun.done, begun.total, begun.outcome) == ("onnx", 1, 3, None)


async def test_an_error_is_kept_for_whoever_asks(
    service: VerificationService, slow: SlowProof
) -> None:
    begun = service.begin("m", "1")
    slow.outcome.set_exception(UnknownModelError("no m"))
    await service.wait(begun, 5)
    assert isinstance(begun.outcome, ServingError)
    assert str(begun.outcome) == "no m"
    service.begin("m", "2")


async def test_what_may_succeed_later_is_a_status(slow: SlowProof) -> None:
    calls = GrpcVerification(VerificationService(slow, "this_machine")).calls()
    verify, message = calls["VerifyModel"]
    slow.outcome.set_exception(QueueUnavailableError("the worker died; try again"))
    with pytest.raises(QueueUnavailableError, match="the worker died"):
        await verify(
            message(model_name="m", wait=Duration(seconds=5)), Principal(None, "here"), int
        )
    slow.outcome = asyncio.get_running_loop().create_future()
    slow.outcome.set_exception(ServingError("the golden file is broken"))
    asked = message(model_name="m", wait=Duration(seconds=5))
    answer = pb.Verification.FromString(b"".join(await verify(asked, Principal(None, "here"), int)))
    assert (answer.over, answer.error) == (True, "the golden file is broken")


async def test_those_long_over_are_forgotten(slow: SlowProof) -> None:
    async def at_once(model: str, version: int | None, progress: Progress) -> Verified:
        return DONE

    service = VerificationService(at_once, "this_machine")
    ids = []
    for version in range(1, KEPT + 2):
        begun = service.begin("m", str(version))
        await service.wait(begun, 5)
        ids.append(begun.id)
    with pytest.raises(UnknownJobError, match="begin again"):
        service.find(ids[0])
    assert service.find(ids[1]).outcome == DONE


@pytest.mark.parametrize("version", ["one", "-1", "٣", "1" * 10])
async def test_versions_are_numbers(service: VerificationService, version: str) -> None:
    with pytest.raises(InvalidRequestError, match="is no version number"):
        service.begin("m", version)
