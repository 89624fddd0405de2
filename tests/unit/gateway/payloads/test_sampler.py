"""Payload sampling: the chosen requests, the recorded parts, and the fate of the rest."""

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from flambeau.protocol.tensors import Array
from model_store.samples.payload_sample import PayloadSample
from model_store.samples.payload_samples import read_samples
from model_store.storage.storage import Storage
from services.errors import (
    BackendError,
    DeadlineExceededError,
    QueueFullError,
    ServingError,
    ShuttingDownError,
)
from services.gateway.admission import InferCall, InputTensor
from services.gateway.config import GatewayConfig
from services.gateway.payload_settings import make_sample_folder, open_sampler
from services.gateway.payloads import sampler as payload_sampler
from services.gateway.payloads.rule import PayloadRule, rule_of
from services.gateway.payloads.sampler import SAMPLED_ANSWERS, PayloadSampler
from services.gateway.payloads.tensors import NamedTensor, take
from services.gateway.request_accounting import RequestAccounting
from services.queueing.directory import Directory
from services.queueing.memory_queue import Outcome
from services.queueing.records import InferReply, Lane, ServedArtifact, ServedVersion
from services.settings import ConfigError, checked
from services.telemetry.metrics import UNSAMPLED, Metrics
from tests.fixtures.inferences import open_inference
from tests.fixtures.queue_ends import reply_of

LANE = Lane("digits", 3)
EXACT = Lane("digits", 3, "exact")
X = np.arange(4, dtype=np.float32).reshape(1, 4)
ALL = {"share": 1.0, "max_per_minute": 600_000}


def text(*elements: bytes) -> Array:
    array = np.empty(len(elements), np.object_)
    array[:] = elements
    return array


def reply(lane: Lane = LANE, **outputs: Array) -> InferReply:
    datatypes = {name: "BYTES" if x.dtype == object else "FP32" for name, x in outputs.items()}
    return reply_of(outputs, lane, datatypes=datatypes)


class Place:
    """A sampler of a gateway that serves `digits`, and its stored samples."""

    def __init__(self, folder: Path, **rule: Any) -> None:
        self.metrics = Metrics("test")
        self.directory = Directory()
        exact = ServedArtifact(
            name="onnx-exact", precision="fp32", accuracy_loss=0.0, row_ms=1.0, lane=EXACT
        )
        served = ServedVersion(lane=LANE, state="ready", artifact="onnx", artifacts=(exact,))
        self.directory.announce(served)
        self.directory.make_live(LANE)
        self.storage = Storage(str(folder))
        self.sampler = PayloadSampler(
            {"dig*": PayloadRule(**{**ALL, **rule})},
            self.storage,
            self.directory,
            self.metrics.payload_samples,
            self.metrics.dropped_payload_samples,
        )
        self.accounting = RequestAccounting(self.metrics, self.directory, access_log=False)
        self.answers: list[Outcome] = []

    def ask(
        self,
        outcome: Outcome,
        inputs: Mapping[str, Array] | None = None,
        model: str = "digits",
        protocol: str = "rest",
        request_id: str = "mine",
    ) -> None:
        """Runs a request to its only outcome."""
        self.ask_for_many([outcome], inputs, model, protocol, request_id)

    def ask_for_many(
        self,
        outcomes: Iterable[Outcome],
        inputs: Mapping[str, Array] | None = None,
        model: str = "digits",
        protocol: str = "rest",
        request_id: str = "mine",
    ) -> None:
        """Runs a request to its outcomes."""
        tensors = [
            InputTensor(name=name, datatype="BYTES" if x.dtype == object else "FP32", array=x)
            for name, x in (inputs or {"x": X}).items()
        ]
        call = InferCall(request_id=request_id, model=model, version="", inputs=tensors)
        inference = open_inference(self.accounting, protocol, request_id, model)
        told = self.sampler.watch(call, inference, self.answers.append)
        for outcome in outcomes:
            told(outcome)

    def kept(self) -> list[PayloadSample]:
        """Returns the content of the store once the sampler has ended."""
        with self.sampler.writing():
            pass
        return list(read_samples(self.storage, "digits"))

    def dropped(self, reason: str) -> float | None:
        return self.metrics.registry.get_sample_value(
            "flambeau_dropped_payload_samples_total", {"reason": reason}
        )


@pytest.fixture
def opened(tmp_path: Path) -> Callable[..., Place]:
    return lambda **rule: Place(tmp_path, **rule)


def test_a_sample_says_what_was_asked_and_answered(opened: Callable[..., Place]) -> None:
    place = opened()
    place.ask(reply(y=X * 2))
    (found,) = place.kept()
    assert (found.request_id, found.model, found.version) == ("mine", "digits", 3)
    assert (found.artifact, found.protocol, found.status) == ("onnx", "rest", "200")
    assert found.error == ""
    ((x,), (y,)) = found.inputs, found.outputs
    np.testing.assert_array_equal(x.array(), X)
    np.testing.assert_array_equal(y.array(), X * 2)
    labels = {"model": "digits", "version": "3"}
    counted = place.metrics.registry.get_sample_value("flambeau_payload_samples_total", labels)
    assert counted == 1
    assert [place.dropped(reason) for reason in UNSAMPLED] == [0] * len(UNSAMPLED)


def part(number: int, array: Array) -> InferReply:
    """Returns one of several answers."""
    return msgspec.structs.replace(reply(y=array), number=number, is_last=False)


def test_several_answers_are_one_sample(opened: Callable[..., Place]) -> None:
    place = opened()
    count = 2 * SAMPLED_ANSWERS
    place.ask_for_many([*(part(n, X + n) for n in range(count)), reply()])
    place.ask_for_many([part(0, X), BackendError("broken")])
    place.ask_for_many([reply()])
    many, failed, none = place.kept()
    assert (many.status, many.answers, len(many.outputs)) == ("200", count, SAMPLED_ANSWERS)
    for number, tensor in enumerate(many.outputs):
        np.testing.assert_array_equal(tensor.array(), X + number)
    assert (failed.error, failed.answers, len(failed.outputs)) == ("BackendError", 1, 1)
    assert (none.status, none.answers, none.outputs, len(none.inputs)) == ("200", 0, (), 1)
    assert len(place.answers) == count + 1 + 2 + 1


def test_values_of_several_answers_share_the_room_of_a_sample(opened: Callable[..., Place]) -> None:
    place = opened(max_sample_bytes=1024)
    large = np.zeros((1, 100), np.float32)
    place.ask_for_many([*(part(n, large) for n in range(4)), reply()])
    (found,) = place.kept()
    assert [tensor.left_out for tensor in found.outputs] == [None, None, "too large", "too large"]


def test_it_is_counted_under_the_artifact_that_answered(opened: Callable[..., Place]) -> None:
    place = opened()
    place.ask(reply(EXACT, y=X), protocol="grpc")
    (found,) = place.kept()
    assert (found.artifact, found.protocol, found.status) == ("onnx-exact", "grpc", "OK")


def test_what_failed_in_the_model_is_sampled_without_the_words(
    opened: Callable[..., Place],
) -> None:
    place = opened()
    place.ask(BackendError("'4711' is no index"))
    place.ask(DeadlineExceededError("late"), protocol="grpc")
    first, second = place.kept()
    assert (first.status, first.error, first.outputs) == ("500", "BackendError", ())
    assert (second.status, second.error) == ("DEADLINE_EXCEEDED", "DeadlineExceededError")
    assert b"4711" not in first.to_line()


@pytest.mark.parametrize(
    "outcome", [QueueFullError("full"), ShuttingDownError("bye"), ServingError("odd")]
)
def test_what_never_ran_is_not_sampled(opened: Callable[..., Place], outcome: ServingError) -> None:
    place = opened()
    place.ask(outcome)
    assert place.answers == [outcome]
    assert place.kept() == []


def test_other_models_are_not_sampled(opened: Callable[..., Place]) -> None:
    place = opened()
    place.ask(reply(Lane("letters", 1), y=X), model="letters")
    place.ask(BackendError("gone meanwhile"), model="digital")
    assert place.kept() == []
    assert place.storage.list() == {}


def test_the_first_pattern_that_fits_decides() -> None:
    rules = {"digits-eu": PayloadRule(share=0.5), "digits*": PayloadRule(share=0.1)}
    found = [rule_of(rules, model) for model in ("digits-eu", "digits-us", "letters")]
    assert [rule and rule.share for rule in found] == [0.5, 0.1, None]


def test_a_share_is_sampled(opened: Callable[..., Place]) -> None:
    place = opened(share=0.25, max_sample_bytes=32 * 1024)
    for _ in range(800):
        place.ask(reply())
    assert 130 < len(place.kept()) < 280


def test_no_more_than_the_rate_allows(
    opened: Callable[..., Place], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    place = opened(max_per_minute=60)
    for _ in range(10):
        place.ask(reply())
    now += 1.0
    place.ask(reply())
    assert place.dropped("rate_limited") == 8  # two seconds of the rate may come at once
    monkeypatch.undo()
    assert len(place.kept()) == 3


def test_what_the_writer_cannot_keep_up_with_is_dropped(
    opened: Callable[..., Place], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(payload_sampler, "MAX_WAITING", 4)
    place = opened()
    for number in range(6):
        place.ask(reply(), request_id=str(number))
    assert len(place.answers) == 6
    assert place.dropped("queue_full") == 2
    assert [found.request_id for found in place.kept()] == ["0", "1", "2", "3"]


def test_what_waits_is_never_more_than_its_bytes(opened: Callable[..., Place]) -> None:
    place = opened(max_sample_bytes=4 * 2**20, kept_mib=1024)
    for _ in range(payload_sampler.MAX_WAITING_BYTES // (4 * 2**20) + 1):
        place.ask(reply())
    assert place.dropped("queue_full") == 1


def test_a_writer_that_falls_behind_is_woken(
    opened: Callable[..., Place], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(payload_sampler, "WRITE_EVERY_S", 3600.0)
    monkeypatch.setattr(payload_sampler, "MAX_WAITING", 5)
    written = threading.Event()
    place = opened()
    append = place.storage.append_private

    def noticed(*given: Any) -> None:
        append(*given)
        written.set()

    monkeypatch.setattr(place.storage, "append_private", noticed)
    with place.sampler.writing():
        place.ask(reply())
        place.ask(reply())
        assert written.wait(20)


def test_a_store_that_fails_costs_samples_and_no_answers(
    opened: Callable[..., Place], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    place = opened()
    (Path(place.storage.url) / "digits").write_text("no folder")
    for _ in range(2):
        place.ask(reply())
        with place.sampler.writing():
            pass
    assert len(place.answers) == 2
    assert place.dropped("store_failed") == 2
    assert [record.message for record in caplog.records] == ["samples cannot be stored"]
    (Path(place.storage.url) / "digits").unlink()
    place.ask(reply())
    assert len(place.kept()) == 1


def test_the_caller_comes_first_and_an_odd_request_harms_nobody(
    opened: Callable[..., Place], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    place = opened(keep="everything")
    answered: list[int] = []

    def fails(*_: object) -> None:
        answered.append(len(place.answers))
        raise RuntimeError("odd")

    monkeypatch.setattr(payload_sampler, "take", fails)
    place.ask(reply())
    assert answered == [1]
    assert place.dropped("failed") == 1
    monkeypatch.undo()
    odd = np.empty(1, np.object_)
    odd[0] = [1]  # which has no raw form
    place.ask(reply(y=odd))
    place.ask(reply())
    assert len(place.kept()) == 1
    assert place.dropped("failed") == 2
    assert [record.message for record in caplog.records] == [
        "a request could not be sampled", "a sample could not be written"
    ]  # fmt: skip


def test_a_copy_is_taken(opened: Callable[..., Place]) -> None:
    place, x = opened(), X.copy()
    place.ask(reply(y=x), {"x": x})
    x[:] = -1
    (found,) = place.kept()
    for tensor in (*found.inputs, *found.outputs):
        np.testing.assert_array_equal(tensor.array(), X)


SECRET = b"Anna Example, born 1970"
TENSORS = {
    "age": np.full((1, 20), 4711.0, np.float32),
    "name": text(*[SECRET] * 20),
    "pixels": np.full((1, 20), 0.5, np.float32),
}


@pytest.mark.parametrize(
    ("rule", "told"),
    [
        ({}, {"age": "values", "name": "text", "pixels": "values"}),
        ({"keep": "everything"}, {"age": "values", "name": "values", "pixels": "values"}),
        ({"keep": "statistics"}, dict.fromkeys(TENSORS, "not kept")),
        ({"keep": "shapes"}, dict.fromkeys(TENSORS, "not kept")),
        (
            {"keep": "everything", "redact": ("name", "a*")},
            {"age": "redacted", "name": "redacted", "pixels": "values"},
        ),
        (
            {"keep": "statistics", "redact": ("*",)},
            dict.fromkeys(TENSORS, "redacted"),
        ),
    ],
    ids=["numbers", "everything", "statistics", "shapes", "redacted by name", "all redacted"],
)  # fmt: skip
def test_no_more_is_told_than_the_rule_allows(
    opened: Callable[..., Place], rule: dict[str, Any], told: dict[str, str]
) -> None:
    place = opened(**rule)
    place.ask(reply(LANE, **TENSORS), TENSORS)
    (found,) = place.kept()
    for tensors in (found.inputs, found.outputs):
        assert {x.name: x.left_out or "values" for x in tensors} == told
        for tensor in tensors:
            assert tensor.shape == TENSORS[tensor.name].shape
            assert (tensor.raw is not None) is (told[tensor.name] == "values")
            says_figures = (
                told[tensor.name] in ("text", "not kept") and rule.get("keep") != "shapes"
            )
            assert (tensor.statistics is not None) is says_figures
    (path,) = place.storage.list()
    written = place.storage.get(path, 2**20)
    assert SECRET not in written
    if told["age"] == "redacted" or rule.get("keep") == "shapes":
        assert b"4711" not in written


def test_what_is_too_large_leaves_statistics_and_the_rest_its_values() -> None:
    rule = PayloadRule(max_sample_bytes=1024)
    large = np.arange(100_000, dtype=np.float32)
    tensors = [
        NamedTensor("image", "FP32", large),
        NamedTensor("scale", "FP32", X),
        NamedTensor("strided", "FP32", large[::2]),
        NamedTensor("texts", "BYTES", text(*[b"x"] * 1000)),
        NamedTensor("long", "BYTES", text(b"x" * 2000)),
        NamedTensor("many", "BYTES", text(*[b""] * 20_000)),
    ]
    image, scale, strided, texts, long, many = (taken.sampled() for taken in take(rule, tensors))
    assert scale.array() is not None
    assert (image.left_out, strided.left_out) == ("too large", "too large")
    assert image.statistics is not None
    assert image.statistics.elements <= 4096
    assert image.statistics.mean == pytest.approx(50_000, rel=0.01)
    assert strided.statistics is None
    assert [x.left_out for x in (texts, long, many)] == ["text"] * 3
    assert [x.statistics for x in (texts, long, many)] == [None] * 3
    kept = sum(x.elements.nbytes for x in take(rule, tensors[:2]) if x.elements is not None)
    assert kept <= rule.max_sample_bytes + 4096 * 4


def test_a_line_is_never_larger_than_a_part_of_what_is_kept(
    opened: Callable[..., Place],
) -> None:
    place = opened(max_sample_bytes=64 * 1024, kept_mib=1)
    full = np.zeros((1, 8 * 1024), np.float32)
    for _ in range(30):
        place.ask(reply(y=full), {"x": full})
    assert place.kept()
    assert sum(place.storage.list().values()) <= 2**20


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        ({"shares": 0.1}, "unknown key 'shares'.*did you mean 'share'"),
        ({"share": 2}, "'payload_samples.digits.share' is 2"),
        ({"keep": "number"}, "did you mean 'numbers'"),
        ({"max_sample_bytes": 2**20, "kept_mib": 8}, "kept_mib is 8.*at least 16"),
    ],
)
def test_a_wrong_rule_stops_the_start(rule: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        checked(GatewayConfig, {"queue": "redis://here", "payload_samples": {"digits": rule}})


def test_nothing_is_sampled_unless_told_and_a_gateway_must_know_where(tmp_path: Path) -> None:
    metrics, directory = Metrics("test"), Directory()
    off = checked(GatewayConfig, {"queue": "redis://here"})
    assert open_sampler(off, directory, metrics, Storage(str(tmp_path))) is None
    rules = {"queue": "redis://here", "payload_samples": {"*": {}}}
    with pytest.raises(ConfigError, match="set payload_sample_store"):
        open_sampler(checked(GatewayConfig, rules), directory, metrics)
    (tmp_path / "file").write_text("no folder")
    wrong = {**rules, "payload_sample_store": str(tmp_path / "file/below")}
    with pytest.raises(ConfigError, match="payload_sample_store: cannot open the store"):
        open_sampler(checked(GatewayConfig, wrong), directory, metrics)
    right = {**rules, "payload_sample_store": str(tmp_path / "samples")}
    elsewhere = Storage(str(tmp_path))
    assert open_sampler(checked(GatewayConfig, right), directory, metrics, elsewhere) is not None


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_first_process_makes_the_folder_of_samples(tmp_path: Path, scheme: str) -> None:
    folder = tmp_path / "samples"
    settings = {"payload_samples": {"*": {}}, "payload_sample_store": f"{scheme}{folder}"}
    make_sample_folder(checked(GatewayConfig, {"queue": "redis://here", **settings}), None)
    assert folder.is_dir()
