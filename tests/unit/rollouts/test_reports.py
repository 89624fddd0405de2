"""Reports of shadows and splits, from files that servers and strangers have written."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from flambeau.commands.text.rollouts import shadow_lines, split_lines
from model_store.rollouts import rollout_store
from model_store.rollouts.requests import ShadowRequest, SplitRequest
from model_store.rollouts.traffic import Arm, Traffic
from model_store.store import ModelStore
from services.rollouts.comparison_files import (
    MOST_PAIRS_BYTES,
    bytes_of_figures,
    figures_of,
    write_comparisons,
)
from services.rollouts.evidence.errors import InvalidEvidenceError
from services.rollouts.evidence.evidence import Evidence
from services.rollouts.reports import shadow_report, split_report
from services.rollouts.shadow_figures import MAX_PAIRS, KeptPair, ShadowFigures
from tests.fixtures.store_versions import draft_in, publish_in


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    """Returns a store with three versions of digits, the first in production."""
    found = ModelStore(str(tmp_path / "store"))
    for _ in range(3):
        publish_in(found, tmp_path / "draft")
    found.promote("digits", 1)
    return found


def split_of(store: ModelStore) -> Traffic:
    arms = tuple(Arm(version=n, share=share) for n, share in ((1, 0.5), (2, 0.25), (3, 0.25)))
    wanted = SplitRequest(name="colours", arms=arms)
    return rollout_store.start_split(store, "digits", wanted).traffic


def counted(failures: int) -> Evidence:
    """Returns 1,000 requests of both versions, all of one class, and as many latencies."""
    found = Evidence()
    for number in range(1000):
        found.count_request(0.5, "candidate", failed=number < failures, output=1)
        found.count_request(0.5, "live", output=2)
        found.count_latencies(0.02, 0.01, 1.2)
    return found


def test_a_split_is_reported_with_effects_and_intervals(store: ModelStore) -> None:
    traffic = split_of(store)
    for process in ("a", "b"):
        arms = {2: counted(0), 3: counted(100)}
        write_comparisons(store.storage, "digits", traffic, process, arms, None)
    document = split_report(store, "digits")
    first, second, third = document["arms"]
    assert (first["figures"]["requests"], second["figures"]["requests"]) == (2000, 2000)
    assert third["figures"]["error_rate"] == 0.1
    assert second["effects"]["outputs"]["difference"] in (1.0, -1.0)
    errors = third["effects"]["errors"]
    assert errors["candidate_rate_low"] < 0.1 < errors["candidate_rate_high"]
    assert errors["ratio_low"] > 1
    assert second["figures"]["p50_s"] == pytest.approx(0.02, rel=0.25)
    text = "\n".join(split_lines(document))
    assert "3 beside 1: errors: candidate 10%" in text
    assert "3 beside 1: NaN: candidate 0%" in text
    assert "2 beside 1: latency: p50 candidate" in text
    assert "2 beside 1: outputs: share of class 1 +100.00 points" in text
    assert ", the largest difference of all classes" in text
    assert "2        25%    2,000     0%" in text


def test_a_report_names_the_class(tmp_path: Path) -> None:
    store = ModelStore(str(tmp_path / "store"))
    for number in range(3):
        draft = draft_in(tmp_path / "draft", artifact=bytes([number]))
        names = tuple(f"digit {place}" for place in range(10))
        signature = draft.signature.model_copy(update={"labels": {"logits": names}})
        store.publish(draft.model_copy(update={"signature": signature}), tmp_path / "draft")
    store.promote("digits", 1)
    write_comparisons(store.storage, "digits", split_of(store), "a", {2: counted(0)}, None)
    text = "\n".join(split_lines(split_report(store, "digits")))
    assert "2 beside 1: outputs: share of class 'digit 1' +100.00 points" in text


def test_the_report_of_a_split_outlives_it(store: ModelStore) -> None:
    traffic = split_of(store)
    write_comparisons(store.storage, "digits", traffic, "a", {2: counted(0)}, None)
    rollout_store.end_split(store, "digits")
    document = split_report(store, "digits")
    assert (document["split"], document["last"]["name"]) == (None, "colours")
    assert document["arms"][1]["figures"]["requests"] == 1000


def pair(disagreement: float) -> KeptPair:
    return KeptPair(
        disagreement=disagreement, difference=2.5, request_id="r\x1b[2J", when=0.0, inputs=[],
        live=[], candidate=[],
    )  # fmt: skip


def shadow_of(store: ModelStore) -> Traffic:
    return rollout_store.start_shadow(store, "digits", ShadowRequest(version=2)).traffic


def test_a_shadow_is_reported_with_its_worst_pairs(store: ModelStore) -> None:
    traffic = shadow_of(store)
    for process in ("a", "b"):
        figures = ShadowFigures(keep=5)
        for number in range(10):
            figures.count_pair(pair(float(number == 0)), live_s=0.01, candidate_s=0.02)
        figures.drop("busy")
        write_comparisons(store.storage, "digits", traffic, process, {}, figures)
    document = shadow_report(store, "digits")
    assert document["figures"]["pairs"] == 20
    assert document["figures"]["agreement"] == 0.9
    assert len(document["figures"]["worst"]) == 2
    text = "\n".join(shadow_lines(document))
    assert "90%" in text
    assert "2 busy" in text
    assert "\x1b" not in text


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b"\xff", b"[" * 10**6, b"0" * 9 * 2**20])
def test_damaged_files_are_named_and_hide_nothing(store: ModelStore, data: bytes) -> None:
    traffic = split_of(store)
    write_comparisons(store.storage, "digits", traffic, "a", {2: counted(0)}, None)
    assert traffic.split is not None
    split = f"digits/rollouts/{traffic.split.id}/arms/2/evidence/evil.json"
    store.storage.replace(split, data)
    document = split_report(store, "digits")
    assert document["arms"][1]["figures"]["requests"] == 1000
    assert "left out" in document["note"]
    rollout_store.end_split(store, "digits")
    shadow = shadow_of(store).shadow
    assert shadow is not None
    store.storage.replace(f"digits/rollouts/{shadow.id}/shadow/evil.json", data)
    assert "left out" in shadow_report(store, "digits")["note"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("pairs", "x"), ("pairs", -1), ("pairs", 2**60), ("difference", "x"), ("worst", [{}]),
        ("worst", [{}] * 101), ("live_s", {"9999999": 1}), ("live_s", {"a": 1}), ("dropped", [1]),
        ("dropped", {"x" * 3000: 1}), ("keep", 101), ("more", 1),
    ],
)  # fmt: skip
def test_figures_that_cannot_be_are_left_out(store: ModelStore, field: str, value: object) -> None:
    traffic = shadow_of(store)
    figures = ShadowFigures(keep=5)
    figures.count_pair(pair(1.0), live_s=0.01, candidate_s=None)
    write_comparisons(store.storage, "digits", traffic, "a", {}, figures)
    assert traffic.shadow is not None
    data = json.dumps({**figures.as_plain(), field: value}).encode()
    store.storage.replace(f"digits/rollouts/{traffic.shadow.id}/shadow/evil.json", data)
    document = shadow_report(store, "digits")
    assert document["figures"]["pairs"] == 1
    assert "left out" in document["note"]


def test_an_infinite_difference_is_read_back(store: ModelStore) -> None:
    figures = ShadowFigures(keep=5)
    endless = replace(pair(1.0), difference=math.inf)
    figures.count_pair(endless, live_s=0.01, candidate_s=0.01)
    write_comparisons(store.storage, "digits", shadow_of(store), "a", {}, figures)
    found = shadow_report(store, "digits")["figures"]
    assert found["difference"] > 1e300
    assert found["worst"][0]["difference"] > 1e300


@pytest.mark.parametrize("text", ["\ufffd" * 500, "\x00" * 500, "\U0001f600" * 500])
def test_large_pairs_hide_no_figures(text: str) -> None:
    tensor = {"name": "text", "datatype": "BYTES", "shape": [64], "values": [text] * 64}
    figures = ShadowFigures(keep=MAX_PAIRS)
    for number in range(MAX_PAIRS):
        large = replace(
            pair(1.0), inputs=[tensor], candidate=[tensor], error=text * 9,
            request_id=f"{number}-\ud800" + text * 9,
        )  # fmt: skip
        figures.count_pair(large, live_s=0.01, candidate_s=0.01)
    data = bytes_of_figures(figures)
    assert len(data) < MOST_PAIRS_BYTES + 10_000
    found = figures_of(data, "a")
    assert (found.pairs, len(found.worst)) == (MAX_PAIRS, MAX_PAIRS)
    assert found.worst[0].inputs == []
    few = bytes_of_figures(replace(figures, worst=figures.worst[:9]))
    assert figures_of(few, "a").worst[0].inputs == [tensor]


def test_a_process_needs_a_name(store: ModelStore) -> None:
    with pytest.raises(InvalidEvidenceError, match="names no process"):
        write_comparisons(store.storage, "digits", split_of(store), "../x", {2: Evidence()}, None)


def test_nothing_is_counted_yet(store: ModelStore) -> None:
    assert split_report(store, "digits")["arms"] == []
    split_of(store)
    assert "nothing is counted yet" in split_report(store, "digits")["note"]
    rollout_store.end_split(store, "digits")
    assert split_report(store, "digits")["note"] == "nothing was counted before it ended"
    rollout_store.start_shadow(store, "digits", ShadowRequest(version=2))
    assert "nothing is counted yet" in shadow_report(store, "digits")["note"]
    rollout_store.stop_shadow(store, "digits")
    assert shadow_report(store, "digits")["note"] == "nothing was counted before it ended"
