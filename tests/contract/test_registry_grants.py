"""The registry over a store in a folder: grants on parts of pipelines, uploads, removed aliases."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request

from model_store.approvals.asked_move import AskedMove
from model_store.approvals.request_store import approve
from model_store.records.deletion import delete_version
from model_store.records.events import EventScan, event_document
from model_store.store import ModelStore
from model_store.uploads.uploads import Uploads
from services.access.caller import Principal
from services.access.grants import parse_aliases
from services.errors import (
    ConflictError,
    ForbiddenError,
    InvalidRequestError,
    OverloadedError,
    UnknownModelError,
    UnknownVersionError,
)
from services.registry import alias_routes
from services.registry.alias_moves import AliasMoves
from services.registry.grpc_messages import event_message, uploads_message
from services.registry.registry import Registry
from services.registry.registry_access import RegistryAccess
from tests.fixtures.pipelines import publish_graph, publish_parts
from tests.fixtures.principals import principal
from tests.fixtures.store_versions import publish_in
from tests.fixtures.uploads import declared, version_bytes


@pytest.fixture
def access() -> RegistryAccess:
    """Returns the access of a registry where `digits@live` needs two persons."""
    return RegistryAccess(
        mode="granted", is_closed=False, two_person=parse_aliases(["digits@live"])
    )


async def begun(
    registry: Registry, who: Principal, files: dict[str, bytes], model: str, version: int = 1
) -> str:
    return str((await registry.begin(who, lambda _: declared(files, model, version)))["id"])


async def sent(
    registry: Registry, who: Principal, files: dict[str, bytes], model: str, version: int = 1
) -> str:
    upload = await begun(registry, who, files, model, version)
    for name, data in files.items():
        await registry.append(who, upload, name, 0, data)
    return upload


def events(store: ModelStore) -> list[dict[str, Any]]:
    found = (event_document(store, event) for event in EventScan(store).events())
    return [one for one in found if one is not None]


async def test_who_pushes_a_pipeline_may_read_its_models(
    place: ModelStore, registry: Registry, tmp_path: Path
) -> None:
    source = ModelStore(str(tmp_path / "source"))
    for store in (source, place):
        publish_parts(store.url)
    reader = publish_graph(source.url).model
    files = version_bytes(source, reader, 1)
    own = [f"{scope}:{reader}" for scope in ("read", "push", "promote")]
    for grants, refusal, said in (
        ((), UnknownModelError, "model 'finder' is not in the registry"),
        (("infer:*", "read:finder"), UnknownModelError, "model 'scorer' is not in the registry"),
        (("read:finder", "push:scorer"), ForbiddenError, "scope 'read' on model 'scorer'"),
    ):
        who = principal(*own, *grants)
        upload = await sent(registry, who, files, reader)
        with pytest.raises(refusal, match=said):
            await registry.finish(who, upload, "")
        assert place.models() == ["finder", "scorer"]
        await registry.abandon(who, upload)
    who = principal(*own, "read:finder", "read:scorer")
    upload = await sent(registry, who, files, reader)
    assert (await registry.finish(who, upload, ""))["is_published"]


async def test_a_push_is_told_with_who_and_why(
    place: ModelStore, registry: Registry, tmp_path: Path, folder: Path
) -> None:
    source = ModelStore(str(tmp_path / "source"))
    publish_in(source, folder)
    who = principal("read:digits", "push:digits", name="key:ci")
    upload = await sent(registry, who, version_bytes(source, "digits", 1), "digits")
    await registry.finish(who, upload, "nightly run 812")
    told = events(place)[-1]
    assert (told["kind"], told["who"], told["why"]) == ("pushed", "key:ci", "nightly run 812")
    assert event_message(told).who == "key:ci"
    delete_version(place, "digits", 1)
    assert list(place.storage.list("digits/1/")) == ["digits/1/claim.json"]


async def test_a_caller_sees_its_own_open_uploads(
    registry: Registry, uploads: Uploads, tmp_path: Path
) -> None:
    own = principal("push:digits", "push:other")
    files = {"manifest.json": b"{}", "weights.bin": b"12345"}
    ids = []
    for model in ("digits", "other"):
        ids.append(await begun(registry, own, files, model))
    await registry.append(own, ids[0], "weights.bin", 0, b"123")
    await registry.begin(principal("push:*", name="key:other"), lambda _: declared(files))
    found = json.loads(await registry.own_uploads(own))["uploads"]
    assert [one["id"] for one in found] == ids[::-1]
    first = found[1]
    assert (first["model"], first["version"], first["size_bytes"], first["received"]) == (
        "digits", 1, 7, 3,
    )  # fmt: skip
    assert len(uploads_message({"uploads": found})) > 100
    narrowed = principal("push:other")
    assert json.loads(await registry.own_uploads(narrowed))["uploads"] == found
    await registry.abandon(narrowed, ids.pop(0))
    (left,) = json.loads(await registry.own_uploads(own))["uploads"]
    assert left["id"] == ids[0]
    with pytest.raises(ForbiddenError):
        await registry.own_uploads(Principal(None, "::1"))
    for version in range(2, 17):
        await begun(registry, own, files, "digits", version)
    with pytest.raises(OverloadedError, match="GET /v1/registry/uploads"):
        await registry.begin(own, lambda _: declared(files, "digits", 99))


async def test_an_alias_is_removed(place: ModelStore, registry: Registry, folder: Path) -> None:
    publish_in(place, folder)
    for alias in ("production", "canary", "live"):
        place.promote("digits", 1, alias)
    ops, moves = principal("promote:digits", name="key:ops"), AliasMoves(registry)

    def removal(alias: str) -> AskedMove:
        return AskedMove(act="remove alias", alias=alias, why="over")

    with pytest.raises(ForbiddenError):
        await moves.move(principal("promote:digits@live"), "digits", removal("canary"))
    with pytest.raises(ConflictError, match="is not removed; promote another version"):
        await moves.move(ops, "digits", removal("production"))
    with pytest.raises(UnknownVersionError, match="no alias 'canery'"):
        await moves.move(ops, "digits", removal("canery"))
    moved = await moves.move(ops, "digits", removal("canary"))
    assert moved["aliases"] == {"production": 1, "live": 1}
    told = events(place)[-1]
    assert (told["kind"], told["version"], told["who"]) == ("alias_removed", None, "key:ops")
    assert told["changes"] == [{"alias": "canary", "from": 1, "to": None}]
    assert event_message(told).changes[0].after == 0
    asked = (await moves.move(ops, "digits", removal("live")))["request"]
    assert (asked["state"], asked["move"]["act"]) == ("open", "remove alias")
    assert "target" not in asked
    made = await asyncio.to_thread(approve, place, "digits", asked["number"], "key:ben")
    assert made.aliases == {"production": 1}


async def test_a_first_move_is_refused_once_the_alias_names_a_version(
    place: ModelStore, registry: Registry, folder: Path
) -> None:
    for _ in range(2):
        publish_in(place, folder)
    promote = alias_routes.alias_calls()["aliases/{alias}"]["POST"]
    for version in (1, 1):
        body = f'{{"version": {version}, "first": true}}'.encode()
        answer = await promote(registry, request_with(body), principal("promote:*"))
        assert answer.status_code == 200
    other = request_with(b'{"version": 2, "first": true}')
    with pytest.raises(ConflictError, match="'canary' of 'digits' names version 1 already"):
        await promote(registry, other, principal("promote:*"))
    pointers = place.pointers("digits")
    assert pointers is not None
    assert (pointers.generation, pointers.aliases) == (1, {"canary": 1})


def request_with(body: bytes) -> Request:
    """Returns a request that moves `canary` of `digits`."""
    scope = {
        "type": "http",
        "method": "POST",
        "headers": [(b"content-type", b"application/json")],
        "path_params": {"model": "digits", "alias": "canary"},
    }

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body}

    return Request(scope, receive)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"version": true}', "'version' is True: write a whole number"),
        (b'{"version": "2"}', "'version' is '2': write a whole number"),
        (b'{"version": 2.0}', "'version' is 2.0: write a whole number"),
        (b'{"version": 2, "allow_breaking": "yes"}', "'allow_breaking' is 'yes': write true"),
        (b'{"version": 2, "first": 1}', "'first' is 1: write true"),
        (b'{"version": 2, "why": 3}', "'why' is 3: write text"),
    ],
)
async def test_values_of_other_types_move_no_alias(
    place: ModelStore, registry: Registry, folder: Path, body: bytes, said: str
) -> None:
    for _ in range(2):
        publish_in(place, folder)
    promote = alias_routes.alias_calls()["aliases/{alias}"]["POST"]
    with pytest.raises(InvalidRequestError, match=said):
        await promote(registry, request_with(body), principal("promote:*"))
    assert place.pointers("digits") is None
