"""Messages of the registry over gRPC (protos/flambeau/v1/registry.proto): documents to messages.

In: the documents of `documents.py` and `Registry`. Out: serialised messages.

Rule: as for JSON (`encoding.py`), a page is serialised entry by entry, and lends the interpreter
lock. Source: Protocol Buffers, encoding: the concatenation of two messages is both, merged.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Any

import orjson
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from model_store.records.moves import zoned
from protos.flambeau.v1 import registry_pb2 as pb
from services.interpreter_lock import lend_lock
from services.registry.encoding import SLICE_BYTES


def models_message(page: dict[str, Any]) -> bytes:
    """Serialises a `ListModelsResponse`."""
    lines = (pb.ListModelsResponse(models=[pb.ModelSummary(**one)]) for one in page["models"])
    return _joined(pb.ListModelsResponse(next=page["next"]), lines)


def model_message(document: dict[str, Any]) -> bytes:
    """Serialises a `RegistryModel` with a page of its versions."""
    rest = {key: value for key, value in document.items() if key != "versions"}
    lines = (pb.RegistryModel(versions=[_summary(one)]) for one in document["versions"])
    return _joined(pb.RegistryModel(**rest), lines)


def _summary(line: dict[str, Any]) -> pb.VersionSummary:
    created_at = _moment(line.get("created_at"))
    return pb.VersionSummary(**{**line, "created_at": created_at})


def version_message(document: dict[str, Any]) -> bytes:
    """Serialises a `RegistryVersion`."""
    rest = {key: value for key, value in document.items() if key not in ("manifest", "report")}
    report = document["report"]
    message = pb.RegistryVersion(
        **rest,
        manifest_json=document["manifest"].data,
        report_json=report.data if report else "",
    )
    return bytes(message.SerializeToString())


def history_message(page: dict[str, Any]) -> bytes:
    """Serialises a `ListMovesResponse`."""
    moves = (pb.ListMovesResponse(moves=[move_message(one)]) for one in page["moves"])
    return _joined(pb.ListMovesResponse(name=page["name"], next=page["next"]), moves)


def aliases_message(document: dict[str, Any]) -> bytes:
    """Serialises the `AliasMove` that was in force at a time."""
    return bytes(move_message(document).SerializeToString())


def move_message(document: dict[str, Any]) -> pb.AliasMove:
    """Converts a generation of pointers, or a move that waits for a second person."""
    if "request" in document:
        return pb.AliasMove(request=request_message(document["request"]))
    return pb.AliasMove(
        generation=document["generation"],
        aliases=document["aliases"],
        who=document["who"],
        when=_moment(document["when"]),
        why=document["why"],
        changes=_changes(document),
        traffic_json=_json(document.get("traffic")),
        evidence_json=_json(document.get("evidence")),
        approval=pb.MoveApproval(**document["approval"]) if document.get("approval") else None,
        ended=document.get("ended"),
    )


def requests_message(page: dict[str, Any]) -> bytes:
    """Serialises a `ListMoveRequestsResponse`."""
    lines = (
        pb.ListMoveRequestsResponse(requests=[request_message(one)]) for one in page["requests"]
    )
    return _joined(pb.ListMoveRequestsResponse(), lines)


def request_message(document: dict[str, Any]) -> pb.MoveRequest:
    """Converts a request for a move."""
    if "error" in document:
        return pb.MoveRequest(**document)
    move, decision = document["move"], document["decision"] or {}
    return pb.MoveRequest(
        number=document["number"],
        model=document["model"],
        act=move["act"],
        alias=move["alias"],
        version=document.get("target"),
        move_json=_json(move),
        who=document["who"],
        when=_moment(document["when"]),
        why=move["why"],
        until=_moment(document["until"]),
        generation=document["generation"],
        state=f"STATE_{document['state'].upper()}",
        decided_by=decision.get("who"),
        decided_when=_moment(decision.get("when")),
        decided_why=decision.get("why"),
        ends=document.get("ends"),
    )


def _changes(document: dict[str, Any]) -> list[pb.AliasChange]:
    return [
        pb.AliasChange(alias=one["alias"], before=one["from"], after=one["to"])
        for one in document.get("changes", ())
    ]


def event_message(document: dict[str, Any]) -> pb.RegistryEvent:
    """Converts an event."""
    kind = pb.RegistryEvent.Kind.Value(f"KIND_{document['kind'].upper()}")
    times = {name: _moment(document.get(name)) for name in ("at", "until")}
    own = {"kind": kind, **times, "changes": _changes(document)}
    return pb.RegistryEvent(**{**document, **own})


def annotations_message(document: dict[str, Any]) -> pb.Annotations:
    """Converts annotations."""
    return pb.Annotations(
        description=document["description"],
        tags=document["tags"],
        who=document["who"],
        when=_moment(document["when"]),
    )


def tombstone_message(document: dict[str, Any]) -> pb.Tombstone:
    """Converts the record of a deleted version."""
    facts = {key: value for key, value in document.items() if key != "schema_version"}
    return pb.Tombstone(**{**facts, "when": _moment(document["when"])})


def uploads_message(document: dict[str, Any]) -> bytes:
    """Serialises a `ListUploadsResponse`."""
    found = [
        pb.OpenUpload(**{**one, "begun_at": _moment(one["begun_at"])})
        for one in document["uploads"]
    ]
    return bytes(pb.ListUploadsResponse(uploads=found).SerializeToString())


def upload_message(document: dict[str, Any]) -> pb.Upload:
    """Converts the state of an upload."""
    return pb.Upload(**document)


def _joined(whole: Message, entries: Iterable[Message]) -> bytes:
    """Serialises a message and its entries, and lends the interpreter lock between them."""
    parts, unlent = [whole.SerializeToString()], 0
    for entry in entries:
        parts.append(entry.SerializeToString())
        unlent += len(parts[-1])
        if unlent >= SLICE_BYTES:
            lend_lock()
            unlent = 0
    return b"".join(parts)


def _moment(text: str | None) -> Timestamp | None:
    """Converts a time in ISO 8601; one without a zone is in UTC."""
    if text is None:
        return None
    found = Timestamp()
    found.FromDatetime(zoned(datetime.fromisoformat(text)))
    return found


def _json(value: Any) -> str:
    return orjson.dumps(value).decode() if value else ""
