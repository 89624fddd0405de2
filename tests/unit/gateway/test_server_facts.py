"""Metadata and health of the models that a directory serves."""

from typing import Any

import pytest

from services.gateway.admission import Admission
from services.gateway.server_facts import ServerFacts
from services.queueing.directory import Directory
from services.queueing.memory_queue import MemoryQueue
from services.queueing.records import Lane, ServedArtifact, ServedVersion
from services.readiness import Look, Readiness
from services.telemetry.metrics import Metrics
from tests.fixtures.signatures import one_to_one

MISSING = Look(missing={"secret": "the store has no such model"})


def facts_of(directory: Directory) -> ServerFacts:
    admission = Admission(
        directory, MemoryQueue(8), Metrics("0"), max_in_flight_requests=8, request_timeout_s=60
    )
    return ServerFacts("0", directory, admission, Readiness())


def version(number: int, **fields: Any) -> ServedVersion:
    found = {"state": "ready", "signature": one_to_one((3,)), "artifact": "onnx", **fields}
    return ServedVersion(lane=Lane("m", number), **found)


@pytest.mark.parametrize(("live", "named"), [(None, ""), (1, "1"), (2, "2")])
def test_metadata_names_the_live_version(live: int | None, named: str) -> None:
    directory = Directory()
    for number in (1, 2):
        directory.announce(version(number))
    if live is not None:
        directory.make_live(Lane("m", live))
    facts = facts_of(directory).model("m", "2")
    assert facts.versions == ["1", "2"]
    assert (facts.properties["version"], facts.properties["live_version"]) == ("2", named)


def test_metadata_lists_the_loaded_artifacts() -> None:
    directory = Directory()
    loaded = [
        ServedArtifact(
            name=name, precision="fp32", accuracy_loss=0.0, row_ms=1.0, lane=Lane("m", 1)
        )
        for name in ("onnx", "onnx-int8")
    ]
    directory.announce(version(1, artifacts=tuple(loaded)))
    properties = facts_of(directory).model("m", "1").properties
    assert (properties["artifact"], properties["artifacts"]) == ("onnx", "onnx, onnx-int8")


LABELLED = one_to_one((3,), labels={"y": ("no", "maybe", "yes")})


@pytest.mark.parametrize(
    ("fields", "further"),
    [
        ({}, {}),
        ({"semver": "1.2.0"}, {"semver": "1.2.0"}),
        ({"signature": LABELLED}, {"labels": '{"y": ["no", "maybe", "yes"]}'}),
    ],
)
def test_metadata_has_further_properties_where_they_are_known(
    fields: dict[str, Any], further: dict[str, str]
) -> None:
    directory = Directory()
    directory.announce(version(1, **fields))
    properties = facts_of(directory).model("m", "1").properties
    always = {"artifact", "artifacts", "live_version", "max_batch_size", "version"}
    assert {name: text for name, text in properties.items() if name not in always} == further


@pytest.mark.parametrize(
    ("look", "leaving", "discreet", "reason"),
    [
        (Look(), False, False, ""),
        (Look(), True, False, "shutting down"),
        (MISSING, False, False, "model 'secret': the store has no such model"),
        (MISSING, False, True, "1 model cannot be served"),
        (MISSING, True, True, "shutting down"),
    ],
)
def test_server_is_ready_unless_it_has_a_reason(
    look: Look, leaving: bool, discreet: bool, reason: str
) -> None:
    directory = Directory()
    directory.is_discreet = discreet
    facts = facts_of(directory)
    facts.readiness.see(look)
    facts.leaving = leaving
    assert facts.is_ready() is not bool(reason)
    assert facts.why_not_served().startswith(reason)
    assert bool(facts.why_not_served()) is bool(reason)
