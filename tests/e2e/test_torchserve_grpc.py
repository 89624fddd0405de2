"""TorchServe's gRPC: predictions, streams, sequences, management, tokens, and bad input."""

import json
import queue
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from services.gateway.torchserve.refusals import NOT_AUTHORIZED
from tests.conformance_torchserve.archives import write_archives
from tests.conformance_torchserve.servers import Server, running_ours
from tests.fixtures.torchserve_messages import TorchServeStub, pb
from tests.fixtures.torchserve_server import silent_site

TIMEOUT_S = 60.0
ERROR = "org.pytorch.serve.http.InternalServerException"
NAMES = ("tell", "kinds", "faults", "stream", "slow")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("archives")
    write_archives(folder)
    return folder


@pytest.fixture(scope="module")
def server(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_ours(store, tmp_path_factory.mktemp("home"), NAMES) as server:
        yield server


class Stubs:
    """Stubs of both services.

    Args:
        server: its addresses.
        key: tokens by service; empty for none.
    """

    def __init__(self, server: Server, keys: dict[str, str] | None = None) -> None:
        self._keys = keys or {}
        addresses = {"inference": server.grpc_inference, "management": server.grpc_management}
        self._channels = {name: grpc.insecure_channel(at) for name, at in addresses.items()}
        self._stubs = {name: TorchServeStub(at, name) for name, at in self._channels.items()}

    def __enter__(self) -> "Stubs":
        return self

    def __exit__(self, *_: object) -> None:
        for channel in self._channels.values():
            channel.close()

    def call(self, service: str, name: str, message: Any, **how: Any) -> Any:
        """Makes a call."""
        how.setdefault("timeout", TIMEOUT_S)
        if service in self._keys:
            key = self._keys[service]
            how["metadata"] = [("protocol", "gRPC"), ("authorization", f"Bearer {key}")]
        return getattr(self._stubs[service], name)(message, **how)

    def predict(self, model: str, data: bytes = b"abc", **fields: Any) -> Any:
        """Returns a prediction, parsed if it is JSON."""
        message = pb.PredictionsRequest(model_name=model, input={"data": data}, **fields)
        told: bytes = self.call("inference", "Predictions", message).prediction
        try:
            return json.loads(told)
        except ValueError:
            return told

    def manage(self, name: str, **fields: Any) -> Any:
        """Returns the answer to a call of management, parsed if it is JSON."""
        message = getattr(pb, f"{name}Request")(**fields)
        told: str = self.call("management", name, message).msg
        return json.loads(told) if told[:1] in "[{" else told


@pytest.fixture
def stubs(server: Server) -> Iterator[Stubs]:
    with Stubs(server) as found:
        yield found


def failed(call: Any) -> tuple[str, str]:
    """Returns the status and the message of a call that must fail."""
    with pytest.raises(grpc.RpcError) as caught:
        call()
    error: Any = caught.value
    return error.code().name, error.details()


def test_ping(stubs: Stubs) -> None:
    health = stubs.call("inference", "Ping", pb.Empty()).health
    assert json.loads(health) == {"status": "Healthy"}


def test_inputs_reach_the_handler_by_name(stubs: Stubs) -> None:
    message = pb.PredictionsRequest(model_name="tell", input={"a": b"\0\xff", "b": b"two"})
    told = json.loads(stubs.call("inference", "Predictions", message).prediction)
    assert told["row"] == {"a": ["bytes", "\0\xff"], "b": ["bytes", "two"]}
    assert stubs.predict("tell", model_version="1.0")["version"] == "1.0"


def test_many_at_once_get_their_own_answers(stubs: Stubs) -> None:
    bodies = [f"row {number}".encode() for number in range(200)]
    with ThreadPoolExecutor(32) as threads:
        assert list(threads.map(lambda body: stubs.predict("slow", body), bodies)) == bodies


def test_a_large_value_there_and_back(stubs: Stubs) -> None:
    body = bytes(range(256)) * 4096
    assert stubs.predict("slow", body) == body


@pytest.mark.parametrize(
    ("fields", "code", "message"),
    [
        ({"model_name": "nope"}, "INTERNAL", "Model not found: nope"),
        (
            {"model_name": "tell", "model_version": "9"},
            "INTERNAL",
            "Model version: 9 does not exist for model: tell",
        ),
        ({}, "INTERNAL", "Parameter model_name is required."),
    ],
)
def test_unknown_models(stubs: Stubs, fields: Any, code: str, message: str) -> None:
    for call in ("Predictions", "StreamPredictions"):
        request = pb.PredictionsRequest(**fields)
        found = failed(lambda: list(_answers(stubs.call("inference", call, request))))  # noqa: B023
        assert (found[0], found[1].partition("\n")[0]) == (code, message)


def _answers(answer: Any) -> list[Any]:
    return list(answer) if hasattr(answer, "__iter__") else [answer]


def test_failures_of_handlers_have_their_codes(stubs: Stubs) -> None:
    expected = {
        b"raise": ("UNAVAILABLE", "Prediction failed"),
        b"few": ("UNAVAILABLE", "number of batch response mismatched"),
        b"memory": ("INTERNAL", "Out of resources"),
        b"no list": ("UNAVAILABLE", "Invalid model predict output"),
        b"surrogate": ("INTERNAL", "fault ?"),
    }
    for asked, (code, words) in expected.items():
        assert failed(lambda: stubs.predict("faults", asked)) == (code, f"{words}\n{ERROR}")  # noqa: B023
    assert stubs.predict("faults", b"fine") == b"fine"


def test_a_stream_has_all_answers_and_a_prediction_the_first(stubs: Stubs) -> None:
    message = pb.PredictionsRequest(model_name="stream", input={"data": b"5"})
    found = [one.prediction for one in stubs.call("inference", "StreamPredictions", message)]
    assert found == [*(f"part {n} ".encode() for n in range(5)), b"the end"]
    assert stubs.predict("stream", b"3") == b"part 0 "
    message.model_name = "tell"
    assert len(list(stubs.call("inference", "StreamPredictions", message))) == 1


def test_a_slow_reader_of_a_long_stream_gets_it_all(stubs: Stubs) -> None:
    message = pb.PredictionsRequest(model_name="stream", input={"data": b"500"})
    count = sum(1 for _ in stubs.call("inference", "StreamPredictions", message))
    assert count == 501


class Sequence:
    """One open call of StreamPredictions2."""

    def __init__(self, stubs: Stubs) -> None:
        self._asked: queue.Queue[Any] = queue.Queue()
        self.answers = stubs.call("inference", "StreamPredictions2", iter(self._asked.get, None))

    def ask(self, model: str, data: bytes = b"abc", **fields: Any) -> None:
        """Sends a request."""
        self._asked.put(pb.PredictionsRequest(model_name=model, input={"data": data}, **fields))

    def end(self) -> None:
        """Says that there are no more."""
        self._asked.put(None)


def test_a_sequence_is_answered_in_order_and_errors_are_answers(stubs: Stubs) -> None:
    sequence = Sequence(stubs)
    for number in range(20):
        sequence.ask("slow", str(number).encode(), sequence_id="s")
    sequence.ask("nope", sequence_id="s")
    sequence.ask("slow")
    sequence.ask("faults", b"surrogate", sequence_id="s")
    sequence.ask("slow", b"last", sequence_id="s")
    sequence.end()
    found = list(sequence.answers)
    assert [one.prediction for one in found[:20]] == [str(n).encode() for n in range(20)]
    unknown, unnamed, unwritable, last = found[20:]
    assert (unknown.status.code, unknown.status.message) == (13, "Model not found: nope")
    assert (unnamed.status.code, unnamed.status.message) == (
        13, "Parameter sequenceId is required.",
    )  # fmt: skip
    assert (unwritable.status.code, unwritable.status.message) == (13, "fault ?")
    assert unknown.status.details[0].type_url == "type.googleapis.com/google.rpc.ErrorInfo"
    assert last.prediction == b"last"


def test_a_sequence_waits_for_its_caller(stubs: Stubs) -> None:
    sequence = Sequence(stubs)
    for number in (1, 2):
        sequence.ask("tell", str(number).encode(), sequence_id="s")
        told = json.loads(next(sequence.answers).prediction)
        assert told["row"]["data"] == ["bytes", str(number)]
    sequence.answers.cancel()
    assert stubs.predict("slow") == b"abc"


def test_thousands_of_wrong_requests_of_a_sequence_end(stubs: Stubs) -> None:
    sequence = Sequence(stubs)
    for _ in range(3000):
        sequence.ask("nope", sequence_id="s")
    sequence.end()
    assert {one.status.code for one in sequence.answers} == {13}


def test_management(stubs: Stubs) -> None:
    registered = stubs.manage(
        "RegisterModel", url="second.mar", initial_workers=1, synchronous=True
    )
    assert registered == 'Model "tell" Version: 2.0 registered with 1 initial workers'
    try:
        assert stubs.predict("tell")["version"] == "1.0"
        assert stubs.predict("tell", model_version="2.0")["version"] == "2.0"
        said = stubs.manage("SetDefault", model_name="tell", model_version="2.0")
        assert said == 'Default version successfully updated for model "tell" to "2.0"'
        assert stubs.predict("tell")["version"] == "2.0"
        described = stubs.manage("DescribeModel", model_name="tell", model_version="all")
        assert sorted(one["modelVersion"] for one in described) == ["1.0", "2.0"]
        scaled = stubs.manage(
            "ScaleWorker", model_name="tell", model_version="2.0", min_worker=2, synchronous=True
        )
        assert scaled == "Workers scaled to 2 for model: tell, version: 2.0"
        (one,) = stubs.manage("DescribeModel", model_name="tell")
        assert [worker["status"] for worker in one["workers"]] == ["READY"] * 2
    finally:
        stubs.manage("SetDefault", model_name="tell", model_version="1.0")
        said = stubs.manage("UnregisterModel", model_name="tell", model_version="2.0")
    assert said == 'Model "tell" unregistered'
    names = [one["modelName"] for one in stubs.manage("ListModels", limit=100)["models"]]
    assert names == sorted(NAMES)


@pytest.mark.parametrize(
    ("call", "fields", "code", "message"),
    [
        ("DescribeModel", {"model_name": "nope"}, "NOT_FOUND", "Model not found: nope"),
        ("RegisterModel", {}, "INVALID_ARGUMENT", "Parameter url is required."),
        (
            "DescribeModel",
            {"model_name": "nope", "customized": True},
            "INTERNAL",
            "Model not found: nope",
        ),
        ("UnregisterModel", {"model_name": "nope"}, "NOT_FOUND", "Model not found: nope"),
        ("UnregisterModel", {}, "INVALID_ARGUMENT", "Parameter url is required."),
        (
            "ScaleWorker",
            {"model_name": "tell", "min_worker": 3, "max_worker": 2},
            "INVALID_ARGUMENT",
            "max_worker cannot be less than min_worker.",
        ),
    ],
)
def test_wrong_management(stubs: Stubs, call: str, fields: Any, code: str, message: str) -> None:
    found = failed(lambda: stubs.manage(call, **fields))
    assert (found[0], found[1].partition("\n")[0]) == (code, message)


def test_bytes_that_are_no_message(server: Server) -> None:
    path = "/org.pytorch.serve.grpc.inference.InferenceAPIsService"
    with grpc.insecure_channel(server.grpc_inference) as channel:
        for call, asked, code in (
            ("Predictions", b"\xff\xff", "INVALID_ARGUMENT"),
            ("Ping", b"\xff\xff", "INVALID_ARGUMENT"),
            ("Nothing", b"", "UNIMPLEMENTED"),
        ):
            made = channel.unary_unary(f"{path}/{call}", None, None)
            assert failed(lambda: made(asked, timeout=TIMEOUT_S))[0] == code  # noqa: B023
        stream = channel.stream_stream(f"{path}/StreamPredictions2", None, None)
        answers = iter(stream(iter([b"\xff\xff"]), timeout=TIMEOUT_S))
        assert failed(lambda: next(answers))[0] == "INVALID_ARGUMENT"


def test_a_deadline_is_kept(stubs: Stubs) -> None:
    message = pb.PredictionsRequest(model_name="slow", input={"data": b"abc"})
    for _ in range(2):  # the second time, the server knows that it would miss the deadline
        found = failed(lambda: stubs.call("inference", "Predictions", message, timeout=0.01))
        assert found[0] == "DEADLINE_EXCEEDED", found
        assert stubs.predict("slow") == b"abc"


def test_metrics_have_the_names_of_torchserve(server: Server, stubs: Stubs) -> None:
    for _ in range(3):
        stubs.predict("kinds", b"text", model_version="1.0")
    with urllib.request.urlopen(f"http://{server.metrics}/metrics", timeout=30) as reply:
        text = reply.read().decode()
    found = dict(line.rpartition(" ")[::2] for line in text.splitlines() if line[:1] != "#")
    host = next(name for name in found if name.startswith("MemoryUsed{"))
    host = host.partition('Hostname="')[2].partition('"')[0]
    labels = f'{{hostname="{host}",model_name="kinds",model_version="1.0"}}'
    assert float(found[f"ts_inference_requests_total{labels}"]) == 3
    assert float(found[f"ts_inference_latency_microseconds{labels}"]) > 0
    assert f"ts_queue_latency_microseconds{labels}" in found
    prediction = f'PredictionTime{{Hostname="{host}",Level="Model",ModelName="kinds"}}'
    assert float(found[prediction]) >= 0


def test_calls_need_a_token_and_registrations_a_setting(store: Path, tmp_path: Path) -> None:
    settings = {"disable_token_authorization": "false", "enable_model_api": "false"}
    with running_ours(store, tmp_path, ("tell",), **settings) as server:
        document = json.loads((tmp_path / "key_file.json").read_text())
        keys = {name: document[name]["key"] for name in ("inference", "management")}
        swapped = {"inference": keys["management"], "management": keys["inference"]}
        with Stubs(server, keys) as right, Stubs(server, swapped) as wrong, Stubs(server) as none:
            assert right.predict("tell")["version"] == "1.0"
            assert right.manage("ListModels", limit=1)["models"]
            for name, fields in (
                ("RegisterModel", {"url": "second.mar"}),
                ("UnregisterModel", {"model_name": "tell"}),
            ):
                code, message = failed(lambda: right.manage(name, **fields))  # noqa: B023
                assert (code, message.partition("\n")[0]) == (
                    "PERMISSION_DENIED", "Model API disabled",
                )  # fmt: skip
            for stubs in (wrong, none):
                for call in (
                    lambda: stubs.predict("tell"),  # noqa: B023
                    lambda: stubs.call("inference", "Ping", pb.Empty()),  # noqa: B023
                    lambda: stubs.manage("ListModels"),  # noqa: B023
                    lambda: next(Sequence(stubs).answers),  # noqa: B023
                ):
                    code, message = failed(call)
                    assert (code, message) == ("PERMISSION_DENIED", NOT_AUTHORIZED)


def test_a_download_ends_when_its_caller_leaves(server: Server) -> None:
    with silent_site() as (url, asked), grpc.insecure_channel(server.grpc_management) as channel:
        message = pb.RegisterModelRequest(url=url)
        call = TorchServeStub(channel, "management").RegisterModel.future(message)
        with asked() as line:
            call.cancel()
            assert line.recv(1) == b""


def test_a_large_message_of_management_is_refused(stubs: Stubs) -> None:
    _, words = failed(lambda: stubs.manage("DescribeModel", model_name="x" * 9000))
    assert words.endswith("over 8192 bytes, the limit of what this path or call reads; send less")
