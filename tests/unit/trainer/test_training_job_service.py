"""The training job service: what it accepts and refuses, and its answers over REST and gRPC."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from google.protobuf.message_factory import GetMessageClass

from flambeau.errors import NotFoundError
from flambeau.training_jobs import SERVICE, AsyncTrainingClient, TrainingClient
from protos.flambeau.v1 import training_pb2 as pb
from services.access import audit
from services.access.api_keys import digest_of
from services.access.authenticator import Authenticator
from services.access.caller import Principal
from services.access.tenants import Tenants
from services.errors import (
    CodeNotAllowedError,
    ConflictError,
    ForbiddenError,
    InvalidRequestError,
    PayloadTooLargeError,
    QueueFullError,
    ShuttingDownError,
    UnknownJobError,
)
from services.trainer.config import TrainerConfig
from services.trainer.edges.grpc_calls import TrainingGrpcEdge
from services.trainer.edges.rest import TrainingRoutes
from services.trainer.metrics import TrainerMetrics
from services.trainer.records import TrainingJob
from services.trainer.server import forget_old
from services.trainer.stores import transitions
from services.trainer.stores.job_store import change
from services.trainer.stores.sqlite_store import SqliteJobStore
from services.trainer.training_job_service import CODE, RECIPE, Submission, TrainingJobService
from services.wire.http1.port import HttpPort
from tests.fixtures import training_jobs
from tests.fixtures.redis_servers import until
from tests.fixtures.training_jobs import BEARER, KEYS, TOKEN, config
from tests.unit.trainer.test_code_bundle import tar_of
from tests.unit.wire.http_wire import Wire, make_budget, make_limits, request
from training.recipe.file import parse_recipe

GIVEN = Submission(recipe=training_jobs.RECIPE, name="tiny.yaml")
OWN_CODE = replace(GIVEN, recipe=training_jobs.RECIPE.replace("training.networks:", "nets.py:"))
BUNDLE = tar_of(("nets.py", b"class SmallCnn: ..."))


MANY_KEYS = "\n".join(f"k{number}: 1" for number in range(20_000))
"""A second to read."""


class Place:
    """A training job service with its store and settings."""

    def __init__(self, folder: Path, **settings: object) -> None:
        (folder / "keys.yaml").write_text(KEYS)
        found: dict[str, Any] = {"api_keys_file": str(folder / "keys.yaml"), "max_queued_jobs": 3}
        self.config: TrainerConfig = config(folder, **(found | settings))
        self.store = SqliteJobStore(Path(self.config.jobs), 1000)
        self.service = TrainingJobService(self.store, self.config)
        self.authenticator: Authenticator | None = None
        self.principal = Principal(None, "here")
        if self.config.asks_for_credentials:
            metrics = TrainerMetrics("0").access
            self.authenticator = Authenticator(self.config, metrics, Tenants(metrics))
            self.principal = Principal(self.authenticator.admit(TOKEN), "here")

    async def submit(self, wanted: Submission) -> TrainingJob:
        return await self.service.submit(wanted, self.principal)

    @property
    def folders(self) -> list[str]:
        runs = self.config.runs_folder
        return sorted(path.name for path in runs.iterdir()) if runs.exists() else []


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    place = Place(tmp_path)
    yield place
    await place.store.close()


async def test_a_recipe_that_takes_long_to_read_holds_up_nobody(place: Place) -> None:
    reading = asyncio.create_task(place.submit(replace(GIVEN, recipe=MANY_KEYS)))
    turns = 0
    while not reading.done():
        await asyncio.sleep(0)
        turns += 1
    with pytest.raises(InvalidRequestError, match="of its keys and values are wrong"):
        await reading
    assert turns > 20, "on the loop it took two"


@pytest.fixture
async def open_place(tmp_path: Path) -> AsyncIterator[Place]:
    """One without keys."""
    place = Place(tmp_path, api_keys_file="", targets=("my_models.nets:SmallCnn",))
    yield place
    await place.store.close()


async def test_a_job_is_kept_with_its_code_and_every_default(place: Place) -> None:
    wanted = replace(OWN_CODE, bundle=BUNDLE, overrides=("train.epochs=7",))
    found = await place.submit(wanted)
    assert (found.state, found.submitter, found.name, found.model) == (
        "queued", "key:ann", "tiny", "tiny",
    )  # fmt: skip
    recipe = parse_recipe(found.recipe, "kept")
    assert recipe.train.epochs == 7
    folder = place.config.runs_folder / found.id
    assert (folder / RECIPE).read_text() == found.recipe
    assert (folder / CODE / "nets.py").exists()
    assert await place.service.find(found.id, place.principal) == found


async def test_a_recipe_is_refused_in_the_words_of_the_command_line(place: Place) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        await place.submit(replace(GIVEN, overrides=("optmi.clip=1",)))
    assert str(refused.value) == "tiny.yaml: unknown key 'optmi' (did you mean 'optim'?)"
    with pytest.raises(InvalidRequestError, match="here a version is published into the store"):
        await place.submit(replace(GIVEN, overrides=("publish.to=https://models.example",)))
    for broken in ("[", "7", "name: a\nname: b\n", "x" * 1_000_001):
        with pytest.raises(InvalidRequestError):
            await place.submit(replace(GIVEN, recipe=broken))
    assert place.folders == []


async def test_a_bundle_that_is_refused_leaves_nothing(place: Place) -> None:
    refusals = ((b"no archive", InvalidRequestError), (bytes(17 * 2**20), PayloadTooLargeError))
    for bundle, error in refusals:
        with pytest.raises(error):
            await place.submit(replace(GIVEN, bundle=bundle))
    assert place.folders == []
    assert (await place.store.counts())["queued"] == 0


@pytest.mark.parametrize(
    ("pattern", "alias", "is_refused"),
    [("tiny@production", "production", True), ("t*", "production", True),
     ("tiny@production", "canary", False), ("tiny@production", "null", False),
     ("other@production", "production", False)],
)  # fmt: skip
async def test_recipes_move_no_alias_that_needs_two_persons(
    tmp_path: Path, pattern: str, alias: str, is_refused: bool
) -> None:
    place = Place(tmp_path, registry_two_person=[pattern])
    wanted = replace(GIVEN, overrides=(f"publish.alias={alias}",))
    if is_refused:
        with pytest.raises(ForbiddenError, match="needs two persons"):
            await place.submit(wanted)
    else:
        assert (await place.submit(wanted)).model == "tiny"


async def test_what_a_caller_may_not_train_is_not_there(place: Place, tmp_path: Path) -> None:
    found = await place.submit(GIVEN)
    assert place.authenticator is not None
    mine = {"name": "bob", "sha256": digest_of("other").hex(), "grants": ["train:others*", "infer"]}
    (tmp_path / "keys.yaml").write_text(json.dumps({"keys": [mine]}))
    await place.authenticator.look()
    bob = Principal(place.authenticator.admit("other"), "")
    with pytest.raises(ForbiddenError, match="'train' on model 'tiny'"):
        await place.service.submit(GIVEN, bob)
    assert await place.service.newest("", 0, bob) == []
    for call in (
        place.service.find(found.id, bob),
        place.service.cancel(found.id, bob),
        place.service.resume(found.id, bob),
        place.service.watch(found.id, 0, False, bob),
    ):
        with pytest.raises(UnknownJobError):
            await call
    assert (await place.store.find(found.id)).state == "queued"


async def test_changes_are_written_down(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "flambeau.audit"):
        found = await place.submit(GIVEN)
        with pytest.raises(UnknownJobError):
            await place.service.cancel("0" * 16, place.principal)
    acts = [(x.act, x.target, x.who, x.peer, x.outcome) for x in caplog.records]  # type: ignore[attr-defined]
    assert acts == [
        ("submit", "tiny", "key:ann", "here", "done"),
        ("cancel", "0" * 16, "key:ann", "here", "refused"),
    ]
    assert found.submitter == "key:ann"


async def test_without_keys_only_shipped_code_runs(open_place: Place) -> None:
    await open_place.submit(GIVEN)
    mine = training_jobs.RECIPE.replace("training.networks:", "my_models.nets:")
    await open_place.submit(replace(GIVEN, recipe=mine))
    with pytest.raises(CodeNotAllowedError, match="code bundle runs only for callers allowed"):
        await open_place.submit(replace(GIVEN, bundle=BUNDLE))
    with pytest.raises(CodeNotAllowedError, match=r"\(model.target: nets.py:SmallCnn\)"):
        await open_place.submit(OWN_CODE)
    hidden = replace(GIVEN, overrides=('data.args={a: [{target: "os:system"}]}',))
    with pytest.raises(CodeNotAllowedError, match=r"data\.args\.a\.0\.target: os:system"):
        await open_place.submit(hidden)
    shell = replace(GIVEN, overrides=("model.target=training.distributed.launcher:torchrun",))
    with pytest.raises(
        CodeNotAllowedError, match=r"model\.target: training\.distributed\.launcher"
    ):
        await open_place.submit(shell)
    blank = replace(GIVEN, overrides=('data.target="/tmp/a b.py:Net"',))
    with pytest.raises(CodeNotAllowedError, match=r"data\.target: /tmp/a b\.py:Net"):
        await open_place.submit(blank)


@pytest.mark.parametrize(
    "part",
    [
        "data.augment=[{function: {target: TARGET}}]",
        "data.sampler={weighted: {target: TARGET}}",
        "loss={target: TARGET}",
        "model.target=TARGET",
        "preprocess=[{module: {target: TARGET}}]",
        "preprocess=[{python: {target: TARGET}}]",
    ],
)
async def test_every_part_that_names_code_is_looked_at(open_place: Place, part: str) -> None:
    for target in ("/tmp/a b.py:Net", "training.recipe.targets:call_target"):
        named = replace(GIVEN, overrides=(part.replace("TARGET", f'"{target}"'),))
        with pytest.raises(CodeNotAllowedError, match=f"target: {target}"):
            await open_place.submit(named)


async def test_the_same_key_is_the_same_job(place: Place) -> None:
    keyed = replace(GIVEN, idempotency_key="k")
    first = await place.submit(keyed)
    assert await place.submit(keyed) == first
    with pytest.raises(ConflictError, match=first.id):
        await place.submit(replace(keyed, overrides=("train.epochs=9",)))
    with pytest.raises(InvalidRequestError, match="without blanks"):
        await place.submit(replace(keyed, idempotency_key="a b"))
    assert place.folders == [first.id]


async def test_so_many_jobs_may_wait(place: Place) -> None:
    for _ in range(3):
        await place.submit(GIVEN)
    with pytest.raises(QueueFullError, match="max_queued_jobs"):
        await place.submit(GIVEN)


async def test_jobs_are_cancelled_and_resumed(place: Place) -> None:
    found = await place.submit(GIVEN)
    assert (await place.service.cancel(found.id, place.principal)).state == "cancelled"
    assert [x.id for x in await place.service.newest("cancelled", 0, place.principal)] == [found.id]
    assert (await place.service.resume(found.id, place.principal)).state == "queued"
    with pytest.raises(InvalidRequestError, match="the states are queued, running"):
        await place.service.newest("qeued", 0, place.principal)
    for name in ("0123456789abcdef", "../..", ""):
        with pytest.raises(UnknownJobError):
            await place.service.find(name, place.principal)


async def test_a_watch_begins_at_an_event_that_may_exist(place: Place) -> None:
    found = await place.submit(GIVEN)
    for after in (10**18, 2**64 - 1):
        with pytest.raises(InvalidRequestError, match=f"{10**18 - 1} or less, and is {after}"):
            await place.service.watch(found.id, after, False, place.principal)
    pages = await place.service.watch(found.id, 10**18 - 1, False, place.principal)
    assert [page async for page in pages] == []


async def test_a_watch_ends_with_the_job_or_the_service(place: Place) -> None:
    found = await place.submit(GIVEN)

    async def watched() -> list[int]:
        return [
            x.seq
            async for batch in await place.service.watch(found.id, 0, True, place.principal)
            for x in batch
        ]

    assert [
        len(batch) async for batch in await place.service.watch(found.id, 0, False, place.principal)
    ] == [1]
    watching = asyncio.create_task(watched())
    await place.service.cancel(found.id, place.principal)
    assert await asyncio.wait_for(watching, 10) == [1, 2]
    await place.service.resume(found.id, place.principal)
    watching = asyncio.create_task(watched())
    await asyncio.sleep(0)
    place.service.stop()
    assert await asyncio.wait_for(watching, 10) == [1, 2, 3]


async def test_old_jobs_are_forgotten_with_their_folders(place: Place) -> None:
    old, new = await place.submit(GIVEN), await place.submit(GIVEN)
    await change(place.store, old.id, partial(transitions.cancelled, now=100.0))
    await place.service.cancel(new.id, place.principal)
    await forget_old(place.config, place.store)
    assert [x.id for x in await place.store.newest(None, 10)] == [new.id]
    assert place.folders == [new.id]


class Rest:
    """Calls the routes on a port without a network."""

    def __init__(self, place: Place) -> None:
        route = TrainingRoutes(place.service, place.authenticator).route
        self._port = HttpPort(route, make_limits(), TrainerMetrics(""), make_budget())
        self._port.tick()

    async def __call__(
        self, method: str, path: str, body: bytes = b"", **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        wire = Wire(self._port)
        wire.send(request(path, body, method, connection="close", **headers))
        await until(lambda: wire.closed)
        (answer,) = wire.answers([method])
        return answer.status, dict(answer.headers), answer.body


async def test_jobs_over_rest(place: Place) -> None:
    rest = Rest(place)
    body = {
        "recipe": parse_recipe(training_jobs.RECIPE, "x").document(),
        "overrides": ["train.epochs=3"],
        "bundle_base64": base64.b64encode(BUNDLE).decode(),
    }
    status, headers, found = await rest(
        "POST", "/v1/jobs", json.dumps(body).encode(), authorization=BEARER, idempotency_key="k"
    )
    job = json.loads(found)
    assert (status, headers["location"]) == (202, f"/v1/jobs/{job['id']}")
    assert (job["state"], job["submitter"], job["error"]) == ("queued", "key:ann", "")
    assert "holder" not in job
    status, _, found = await rest("GET", "/v1/jobs?state=queued&limit=5", authorization=BEARER)
    assert [x["id"] for x in json.loads(found)["jobs"]] == [job["id"]]
    assert "recipe" not in json.loads(found)["jobs"][0]
    assert json.loads((await rest("GET", f"/v1/jobs/{job['id']}", authorization=BEARER))[2]) == job
    status, _, found = await rest("POST", f"/v1/jobs/{job['id']}/cancel", authorization=BEARER)
    assert (status, json.loads(found)["state"]) == (200, "cancelled")
    path = f"/v1/jobs/{job['id']}/events?after=1&follow=true"
    status, headers, found = await rest("GET", path, authorization=BEARER)
    assert (status, headers["content-type"]) == (200, "application/x-ndjson")
    (event,) = map(json.loads, found.splitlines())
    assert (event["seq"], event["kind"], event["state"]) == (2, "state", "cancelled")
    _, _, found = await rest("GET", path, authorization=BEARER, accept="text/event-stream")
    assert found.startswith(b'id: 2\ndata: {"')
    assert (
        await rest("GET", path, authorization=BEARER, accept="text/event-stream", last_event_id="2")
    )[2] == b""
    assert json.loads((await rest("GET", "/v1/recipe.schema.json"))[2])["title"] == "Recipe"


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "error"),
    [
        ("POST", "/v1/jobs", b"{", 400, "the body is not a job"),
        ("POST", "/v1/jobs", b'{"recipe": "", "x": 1}', 400, "unknown field `x`"),
        ("POST", "/v1/jobs", b'{"recipe": {"a":%b%b}}' % (b"[" * 9999, b"]" * 9999), 400, "depth"),
        ("POST", "/v1/jobs", b'{"recipe": "", "bundle_base64": "*"}', 400, "is not base64"),
        ("POST", "/v1/jobs", b'{"recipe": "nmae: x"}', 400, "unknown key 'nmae'"),
        ("GET", "/v1/jobs?limit=-1", b"", 400, "'limit' must be a whole number"),
        ("GET", "/v1/jobs?state=x", b"", 400, "there is no state 'x'"),
        ("GET", "/v1/jobs/x/events", b"", 404, "job 'x' does not exist"),
        ("POST", "/v1/jobs/0123456789abcdef/cancel", b"", 404, "does not exist"),
        ("GET", "/v2/jobs", b"", 404, "jobs are at /v1/jobs"),
        ("DELETE", "/v1/jobs/x", b"", 405, "DELETE is not allowed on"),
    ],
)
async def test_what_rest_refuses(
    place: Place, method: str, path: str, body: bytes, status: int, error: str
) -> None:
    found, _, text = await Rest(place)(method, path, body, authorization=BEARER)
    assert found == status
    assert error in json.loads(text)["error"]
    if path.startswith("/v1/") and method != "DELETE":
        for wrong in ("", "Bearer nonsense-nonsense", "Basic abc"):
            found, headers, _ = await Rest(place)(method, path, body, authorization=wrong)
            assert (found, headers["www-authenticate"]) == (401, "Bearer")


async def call(channel: grpc.aio.Channel, name: str, **fields: Any) -> None:
    """Calls a method without a token."""
    method = pb.DESCRIPTOR.services_by_name["Training"].methods_by_name[name]
    kind = GetMessageClass(method.input_type)
    ask = channel.unary_unary(f"/{SERVICE}/{name}", kind.SerializeToString, bytes)
    await ask(kind(**fields))


async def test_calls_that_change_something_are_written_down_whatever_refuses_them(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    audit.open_audit_log("")
    rest, job = Rest(place), "0123456789abcdef"
    with caplog.at_level("INFO", "flambeau.audit"):
        await rest("GET", "/v1/jobs")
        await rest("POST", "/v1/jobs", b"{", authorization="Bearer who")
        await rest("POST", f"/v1/jobs/{job}/cancel")
        await rest("POST", f"/v1/jobs/{job}/resume")
        for body in (b"{", b'{"recipe": "nmae: x"}', bytes(24 * 2**20)):
            await rest("POST", "/v1/jobs", body, authorization=BEARER)
        edge = TrainingGrpcEdge(place.service, place.config.max_bundle_bytes, place.authenticator)
        port = await edge.start("127.0.0.1", 0)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            for name in ("CancelJob", "GetJob"):
                with pytest.raises(grpc.aio.AioRpcError):
                    await call(channel, name, id=job)
        await edge.stop(1)
        place.service.stop()
        with pytest.raises(ShuttingDownError):
            await place.submit(GIVEN)
    found = [r for r in caplog.records if r.name == "flambeau.audit"]
    assert [(x.act, x.target, x.who, x.outcome) for x in found] == [  # type: ignore[attr-defined]
        ("submit", "", "anonymous", "refused"),
        ("cancel", job, "anonymous", "refused"),
        ("resume", job, "anonymous", "refused"),
        *[("submit", "", "key:ann", "refused")] * 3,
        ("cancel", job, "anonymous", "refused"),
        ("submit", "", "key:ann", "refused"),
    ]
    assert "Bearer who" not in str([vars(x) for x in found])


async def test_jobs_over_grpc(place: Place) -> None:
    edge = TrainingGrpcEdge(place.service, place.config.max_bundle_bytes, place.authenticator)
    port = await edge.start("127.0.0.1", 0)

    def talk() -> None:
        with TrainingClient(f"127.0.0.1:{port}", token=TOKEN) as client:
            first = client.submit(OWN_CODE.recipe, bundle=BUNDLE, overrides=["train.epochs=3"])
            assert (first.state, first.submitter, first.version) == ("queued", "key:ann", None)
            assert client.get(first.id) == first
            assert [x.id for x in client.list("queued", 5)] == [first.id]
            assert client.cancel(first.id).state == "cancelled"
            assert client.resume(first.id).state == "queued"
            assert [x.state for x in client.watch(first.id, after=1)] == ["cancelled", "queued"]
            client.cancel(first.id)
            with pytest.raises(NotFoundError):
                client.get("x")
            assert [x.seq for x in client.watch(first.id, follow=True)] == [1, 2, 3, 4]

    async def talk_async() -> None:
        async with AsyncTrainingClient(f"127.0.0.1:{port}", token=TOKEN) as client:
            first = await client.submit(OWN_CODE.recipe, bundle=BUNDLE)
            assert await client.get(first.id) == first
            assert [x.id for x in await client.list("queued", 5)] == [first.id]
            assert (await client.cancel(first.id)).state == "cancelled"
            assert (await client.resume(first.id)).state == "queued"
            await client.cancel(first.id)
            with pytest.raises(NotFoundError):
                await client.get("x")
            assert [x.seq async for x in client.watch(first.id, follow=True)] == [1, 2, 3, 4]

    try:
        await asyncio.to_thread(talk)
        await talk_async()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            refusals: list[tuple[str, dict[str, Any], str]] = [
                ("SubmitJob", {"recipe": "x: 1"}, "UNAUTHENTICATED"),
                ("GetJob", {"id": "x"}, "UNAUTHENTICATED"),
                ("ListJobs", {"state": 77}, "UNAUTHENTICATED"),
                ("SubmitJob", {"overrides": ["a=b"] * 1001}, "INVALID_ARGUMENT"),
            ]
            for name, request, code in refusals:
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await call(channel, name, **request)
                assert refused.value.code().name == code
    finally:
        await edge.stop(1)
