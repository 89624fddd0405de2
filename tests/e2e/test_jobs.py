"""Jobs as clients see them: REST, gRPC, the command line, and webhooks."""

import base64
import gzip
import hashlib
import hmac
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from queue import Queue
from typing import Any

import grpc
import numpy as np
import pytest

from model_store.store import ModelStore
from protos.flambeau.v1 import jobs_pb2
from tests.e2e.rest_calls import Reply, call, infer, linear_input, lookup_inputs
from tests.fixtures.command_forker import run_flambeau
from tests.fixtures.onnx_models import echo, linear, publish, slow_lookup
from tests.fixtures.redis_servers import RedisProcess, redis_process
from tests.fixtures.servers import ServerProcess, running_server
from tests.fixtures.split_servers import SplitServer, running_gateway, running_worker

ROW = [1.0, 2.0, 3.0, 4.0]
DOUBLED = [2.0, 4.0, 6.0, 8.0]
SECRET = "whsec_" + base64.b64encode(b"a secret of thirty-two bytes ...").decode()


class Told:
    """A webhook receiver; its first responses may be errors."""

    def __init__(self, *statuses: int) -> None:
        self.calls: Queue[tuple[dict[str, str], bytes]] = Queue()
        statuses_left = list(statuses)
        calls = self.calls

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                calls.put(({k.lower(): v for k, v in self.headers.items()}, body))
                self.send_response(statuses_left.pop(0) if statuses_left else 204)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                """Does nothing: the test sees the calls."""

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/over"

    def __enter__(self) -> "Told":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> ModelStore:
    store = ModelStore(str(tmp_path_factory.mktemp("store")))
    publish(store.url, "linear", linear(2))
    publish(store.url, "lookup", slow_lookup())
    publish(store.url, "echo", echo("FP32", "FP16"))
    return store


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisProcess]:
    with redis_process() as redis:
        yield redis


@pytest.fixture(scope="module")
def server(
    store: ModelStore, redis: RedisProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SplitServer]:
    secret = tmp_path_factory.mktemp("secret") / "secret"
    secret.write_text(SECRET)
    with ExitStack() as stack:
        worker = stack.enter_context(running_worker(Path(store.url), redis.url))
        settings = {"webhook_hosts": ["127.0.0.1"], "webhook_secret_file": str(secret)}
        gateway = stack.enter_context(
            running_gateway(redis.url, shared_memory_objects="flambeau-test-*", **settings)
        )
        gateway.worker = worker
        yield gateway


def submit(server: ServerProcess, model: str = "linear", **headers: str) -> Reply:
    inputs = [linear_input(ROW)] if model == "linear" else list(lookup_inputs(3, 100_000))
    body = json.dumps({"inputs": inputs}).encode()
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return call(server, "POST", f"/v2/models/{model}/jobs", body, names)


def waited(server: ServerProcess, job_id: str) -> dict[str, Any]:
    found: dict[str, Any] = call(server, "GET", f"/v2/jobs/{job_id}?wait=30s").json()
    return found


def test_a_job_is_accepted_and_its_result_is_that_of_an_inference(server: SplitServer) -> None:
    reply = submit(server)
    assert reply.status == 202
    job = reply.json()
    assert reply.headers["location"] == f"/v2/jobs/{job['id']}"
    assert job["state"] in ("queued", "running", "done")
    done = waited(server, job["id"])
    assert done["state"] == "done"
    assert done["result"] == infer(server, "linear", linear_input(ROW)).json()
    assert done["created_at"] <= done["finished_at"] < done["deadline"]


def test_a_result_comes_in_json_or_in_bytes(server: SplitServer) -> None:
    job_id = submit(server).json()["id"]
    waited(server, job_id)
    path = f"/v2/jobs/{job_id}/result"
    assert call(server, "GET", path).outputs() == {"y": DOUBLED}
    reply = call(server, "GET", path, headers={"accept": "application/octet-stream"})
    head = int(reply.headers["inference-header-content-length"])
    assert np.frombuffer(reply.body[head:], np.float32).tolist() == DOUBLED


def test_a_large_result_comes_in_every_form(server: SplitServer) -> None:
    values = np.arange(300_000, dtype=np.float32).reshape(1, -1)
    inputs = [
        {"name": "in_FP32", "datatype": "FP32", "shape": list(values.shape),
         "data": values.tolist()},
        {"name": "in_FP16", "datatype": "FP16", "shape": [1, 2], "parameters":
         {"binary_data_size": 4}},
    ]  # fmt: skip
    outputs = [{"name": "out_FP32"}]
    text = json.dumps({"inputs": inputs, "outputs": outputs}).encode()
    fields = {"inference-header-content-length": str(len(text))}
    reply = call(server, "POST", "/v2/models/echo/jobs", text + bytes(4), fields)
    assert reply.status == 202, reply.body
    job_id = reply.json()["id"]
    assert waited(server, job_id)["result"]["outputs"][0]["data"] == values.ravel().tolist()
    path = f"/v2/jobs/{job_id}/result"
    plain = call(server, "GET", path)
    assert plain.outputs() == {"out_FP32": values.ravel().tolist()}
    zipped = call(server, "GET", path, headers={"accept-encoding": "gzip"})
    assert zipped.headers.get("content-encoding") == "gzip", zipped.status
    assert gzip.decompress(zipped.body) == plain.body
    binary = call(server, "GET", path, headers={"accept": "application/octet-stream"})
    head = int(binary.headers["inference-header-content-length"])
    assert binary.body[head:] == values.tobytes()


def test_a_result_that_json_cannot_say_is_asked_for_in_bytes(server: SplitServer) -> None:
    inputs = [
        {"name": f"in_{datatype}", "datatype": datatype, "shape": [1, 1],
         "parameters": {"binary_data_size": size}}
        for datatype, size in (("FP32", 4), ("FP16", 2))
    ]  # fmt: skip
    text = json.dumps({"inputs": inputs}).encode()
    data = np.array([1], "<f4").tobytes() + np.array([2], "<f2").tobytes()
    fields = {"inference-header-content-length": str(len(text))}
    job_id = call(server, "POST", "/v2/models/echo/jobs", text + data, fields).json()["id"]
    done = waited(server, job_id)
    assert done["result_url"] == f"/v2/jobs/{job_id}/result"
    refused = call(server, "GET", done["result_url"])
    assert refused.status == 400
    assert "'Accept: application/octet-stream'" in refused.error()
    found = call(server, "GET", done["result_url"], headers={"accept": "application/octet-stream"})
    head = int(found.headers["inference-header-content-length"])
    assert found.body[head:] == data


def test_a_submission_that_is_sent_again_is_the_same_job(server: SplitServer) -> None:
    first = submit(server, idempotency_key="the-same")
    again = submit(server, idempotency_key="the-same")
    assert (first.status, again.status) == (202, 200)
    assert first.json()["id"] == again.json()["id"]
    reply = submit(server, "lookup", idempotency_key="the-same")
    assert reply.status == 202  # keys are a model's own
    body = json.dumps({"inputs": [linear_input(DOUBLED)]}).encode()
    headers = {"idempotency-key": "the-same"}
    other = call(server, "POST", "/v2/models/linear/jobs", body, headers)
    assert other.status == 409
    assert "which is a different request" in other.error()
    call(server, "DELETE", f"/v2/jobs/{reply.json()['id']}")


def test_a_cancelled_job_stays_cancelled(server: SplitServer) -> None:
    job_id = submit(server, "lookup").json()["id"]
    assert call(server, "DELETE", f"/v2/jobs/{job_id}").json()["state"] == "cancelled"
    assert waited(server, job_id)["state"] == "cancelled"
    reply = call(server, "GET", f"/v2/jobs/{job_id}/result")
    assert reply.status == 409


def test_online_requests_go_before_jobs(server: SplitServer) -> None:
    ids = [submit(server, "lookup").json()["id"] for _ in range(3)]
    assert infer(server, "linear", linear_input(ROW)).outputs() == {"y": DOUBLED}
    states = [call(server, "GET", f"/v2/jobs/{job_id}").json()["state"] for job_id in ids]
    assert states.count("done") < 3
    assert [waited(server, job_id)["state"] for job_id in ids] == ["done"] * 3


def test_a_model_s_jobs_are_listed(server: SplitServer) -> None:
    job_id = submit(server).json()["id"]
    jobs = call(server, "GET", "/v2/models/linear/jobs").json()["jobs"]
    assert jobs[0]["id"] == job_id
    assert "result" not in jobs[0]


@pytest.mark.parametrize(
    ("method", "path", "body", "headers", "status", "says"),
    [
        ("POST", "/v2/models/unknown/jobs", b"{}", {}, 404, "not served"),
        ("POST", "/v2/models/linear/jobs", b"{}", {}, 400, "'inputs'"),
        ("POST", "/v2/models/linear/jobs", b'{"inputs":[]}', {}, 400, "x"),
        ("GET", "/v2/jobs/linear.0123456789abcdef", b"", {}, 404, "does not exist"),
        ("GET", "/v2/jobs/nonsense", b"", {}, 404, "is not a job id"),
        ("GET", "/v2/jobs/linear.0123456789abcdef?wait=long", b"", {}, 400, "'wait'"),
        ("PUT", "/v2/jobs/linear.0123456789abcdef", b"", {}, 405, "use "),
    ],
)
def test_what_is_wrong_is_said(
    server: SplitServer, method: str, path: str, body: bytes, headers: Any, status: int, says: str
) -> None:
    reply = call(server, method, path, body, headers)
    assert reply.status == status
    assert says in reply.error()


@pytest.mark.parametrize("where", ["inputs", "outputs"])
def test_tensors_in_shared_memory_are_refused(server: SplitServer, where: str) -> None:
    """Inferences of this server take them, jobs do not."""
    place = {"shared_memory_region": "r", "shared_memory_byte_size": 16}
    tensor = linear_input(ROW)
    output: dict[str, Any] = {"name": "y"}
    if where == "inputs":
        del tensor["data"]
    (tensor if where == "inputs" else output)["parameters"] = place
    body = json.dumps({"inputs": [tensor], "outputs": [output]}).encode()
    assert call(server, "POST", "/v2/models/linear/infer", body).status == 404  # no such region
    reply = call(server, "POST", "/v2/models/linear/jobs", body)
    assert (reply.status, "jobs never do" in reply.error()) == (501, True)
    asked = jobs_pb2.SubmitJobRequest()
    asked.request.model_name = "linear"
    given = asked.request.inputs.add(name="x", datatype="FP32", shape=[1, 4])
    wanted = asked.request.outputs.add(name="y")
    placed = (given if where == "inputs" else wanted).parameters
    placed["shared_memory_region"].string_param = "r"
    if where == "outputs":
        asked.request.raw_input_contents.append(np.array(ROW, np.float32).tobytes())
    with grpc.insecure_channel(server.grpc) as channel:
        submit_job = channel.unary_unary(
            "/flambeau.v1.JobService/SubmitJob",
            jobs_pb2.SubmitJobRequest.SerializeToString,
            jobs_pb2.SubmitJobResponse.FromString,
        )
        with pytest.raises(grpc.RpcError, match="jobs never do") as caught:
            submit_job(asked)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize(
    "url",
    [
        "http://elsewhere/",
        "ftp://127.0.0.1/",
        "127.0.0.1",
        "http://127.0.0.1:99999/",
        "http://a..example.org/",
        "http://127.0.0.1/" + "x" * 2048,
    ],
)
def test_only_hosts_that_are_named_may_be_told(server: SplitServer, url: str) -> None:
    reply = submit(server, webhook_url=url)
    assert reply.status == 400
    assert "webhook" in reply.error()


@pytest.mark.long
def test_a_webhook_is_signed_and_told_again_until_it_is_heard(
    server: SplitServer,
) -> None:
    with Told(500) as told:
        job_id = submit(server, webhook_url=told.url).json()["id"]
        told.calls.get(timeout=60)
        headers, body = told.calls.get(timeout=60)  # some seconds later
    assert json.loads(body)["id"] == headers["webhook-id"] == job_id
    assert json.loads(body)["state"] == "done"
    signed = b"%b.%b.%b" % (job_id.encode(), headers["webhook-timestamp"].encode(), body)
    key = base64.b64decode(SECRET.removeprefix("whsec_"))
    expected = base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()
    assert headers["webhook-signature"] == f"v1,{expected}"
    server.wait_for_log(message="webhook delivered", job=job_id)


OVER_GRPC = f"""
import sys
import numpy as np
from flambeau.errors import InvalidRequestError, NotFoundError
from flambeau.jobs import JobClient

def fails(error, call):
    try:
        call()
    except error:
        return True

inputs = {{"x": np.array([{ROW}], np.float32)}}
with JobClient(sys.argv[1]) as jobs:
    job = jobs.submit("linear", inputs, idempotency_key="over-grpc")
    assert jobs.submit("linear", inputs, idempotency_key="over-grpc").id == job.id
    done = jobs.wait(job.id)
    assert done.state == "done" and done.outputs["y"].tolist() == [{DOUBLED}], done
    assert done.created_at <= done.finished_at < done.deadline
    assert jobs.list("linear")[0].id == job.id
    large = np.arange(300_000, dtype=np.float32).reshape(1, -1)
    both = {{"in_FP32": large, "in_FP16": np.ones((1, 3), np.float16)}}
    echoed = jobs.wait(jobs.submit("echo", both, idempotency_key="large").id)
    assert (echoed.outputs["out_FP32"] == large).all()
    assert echoed.outputs["out_FP16"].tolist() == [[1, 1, 1]]
    again = jobs.submit("echo", both, idempotency_key="large")
    assert again.id == echoed.id and (again.outputs["out_FP32"] == large).all()
    assert jobs.cancel(job.id).state == "done"
    assert fails(NotFoundError, lambda: jobs.get("linear.0123456789abcdef"))
    assert fails(InvalidRequestError, lambda: jobs.submit("linear", {{"z": inputs["x"]}}))
"""
"""A user's script; runs as a process of its own."""


def test_jobs_over_grpc(server: SplitServer) -> None:
    done = subprocess.run(
        [sys.executable, "-c", OVER_GRPC, server.grpc], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


ASYNC_OVER_GRPC = f"""
import asyncio
import sys
import numpy as np
from flambeau.errors import NotFoundError
from flambeau.jobs import AsyncJobClient

async def main():
    inputs = {{"x": np.array([{ROW}], np.float32)}}
    async with AsyncJobClient(sys.argv[1]) as jobs:
        submitted = [await jobs.submit("linear", inputs, accuracy="fast") for _ in range(3)]
        done = await asyncio.gather(*(jobs.wait(job.id) for job in submitted))
        assert [job.outputs["y"].tolist() for job in done] == [[{DOUBLED}]] * 3, done
        assert (await jobs.cancel(done[0].id)).state == "done"
        assert {{job.id for job in submitted}} <= {{job.id for job in await jobs.list("linear")}}
        try:
            await jobs.get("linear.0123456789abcdef")
        except NotFoundError:
            print("not found")

asyncio.run(main())
"""


def test_jobs_over_grpc_with_asyncio(server: SplitServer) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ASYNC_OVER_GRPC, server.grpc],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (0, "not found\n"), done.stderr


def test_jobs_on_the_command_line(server: SplitServer) -> None:
    job_id = json.loads(run(server, "submit", "linear", f"--input=x={[ROW]}", "--json"))["id"]
    assert "class 3 (8)" in run(server, "wait", job_id)
    assert "done" in run(server, "get", job_id)
    assert run(server, "cancel", job_id) == f"{job_id} is done\n"
    assert json.loads(run(server, "cancel", job_id, "--json"))["state"] == "done"
    assert run(server, "submit", "linear", f"--input=x={[ROW]}").startswith("linear.")
    assert job_id in run(server, "list", "linear")


def test_a_batch_of_files_goes_on_where_it_was(server: SplitServer, tmp_path: Path) -> None:
    stack = np.arange(400, dtype=np.float32).reshape(100, 4)
    np.save(tmp_path / "stack.npy", stack)
    arguments = ["batch", "linear", f"--input-dir={tmp_path / 'stack.npy'}", "--rows=10"]
    arguments += [f"--output-dir={tmp_path / 'out'}"]
    assert "10 done" in run(server, *arguments)
    results = sorted((tmp_path / "out").iterdir())
    found = np.concatenate([np.load(path)["y"] for path in results])
    assert (found == 2 * stack).all()
    results[3].unlink()
    printed = run(server, *arguments)
    assert "9 of 10 were done before" in printed
    assert "1 done" in printed
    assert len(list((tmp_path / "out").iterdir())) == 10


def test_a_stack_that_is_cut_otherwise_is_refused(server: SplitServer, tmp_path: Path) -> None:
    np.save(tmp_path / "stack.npy", np.zeros((20, 4), np.float32))
    arguments = ["batch", "linear", f"--input-dir={tmp_path / 'stack.npy'}"]
    arguments += [f"--output-dir={tmp_path / 'out'}"]
    run(server, *arguments, "--rows=10")
    assert "has rows 0 to 9" in run(server, *arguments, "--rows=5", code=1)


def test_what_cannot_be_read_does_not_stop_a_batch(server: SplitServer, tmp_path: Path) -> None:
    work = [{"x": [ROW]}, {"y": [ROW]}, {"x": [ROW]}]
    lines = [*(json.dumps(line).encode() for line in work), b"\xff"]
    (tmp_path / "work.jsonl").write_bytes(b"\n".join(lines))
    printed = run(server, "batch", "linear", f"--input-dir={tmp_path / 'work.jsonl'}",
                  f"--output-dir={tmp_path / 'out'}", code=1)  # fmt: skip
    assert "work-000000002: " in printed
    assert "work-000000004: " in printed
    assert "2 done" in printed
    assert len(list((tmp_path / "out").iterdir())) == 2


def test_lines_of_json_are_a_batch_too(server: SplitServer, tmp_path: Path) -> None:
    lines = [json.dumps({"x": [[n, n, n, n]]}) for n in range(3)]
    (tmp_path / "work.jsonl").write_text("\n".join(lines))
    run(server, "batch", "linear", f"--input-dir={tmp_path / 'work.jsonl'}",
        f"--output-dir={tmp_path / 'out'}")  # fmt: skip
    found = [np.load(path)["y"].tolist() for path in sorted((tmp_path / "out").iterdir())]
    assert found == [[[2.0 * n] * 4] for n in range(3)]


def test_a_job_survives_every_process_but_redis(store: ModelStore, redis: RedisProcess) -> None:
    with running_gateway(redis.url) as gateway:
        with running_worker(Path(store.url), redis.url) as worker:
            job_id = submit(gateway, "lookup").json()["id"]
            worker.expected_code = -9
            worker.process.kill()
        gateway.expected_code = -9
        gateway.process.kill()
    with (
        running_worker(Path(store.url), redis.url),
        running_gateway(redis.url) as gateway,
    ):
        assert waited(gateway, job_id)["state"] == "done"


def test_one_process_alone_keeps_no_jobs(store: ModelStore) -> None:
    with running_server(Path(store.url)) as server:
        reply = submit(server)
        assert reply.status == 501
        assert "Redis" in reply.error()


def run(server: SplitServer, command: str, *arguments: str, code: int = 0) -> str:
    """Returns the output of `flambeau jobs`."""
    done = run_flambeau("jobs", command, *arguments, f"--server={server.grpc}")
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr if code else done.stdout
