"""Jobs as TrainJobs: the object keeps the schema, and its status is read back over HTTP."""

import asyncio
import json
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from services.kubernetes.object_api import KubernetesError
from services.settings import ConfigError
from services.trainer.executors.executor import Failed, Outcome, Stopped, Succeeded
from services.trainer.executors.kubeflow import KubeflowExecutor
from services.trainer.executors.train_job import EVENTS, condition_of, train_job, train_job_name
from services.trainer.executors.train_job_api import TrainJobApi
from services.trainer.metrics import TrainerMetrics
from services.trainer.stores import transitions
from services.trainer.stores.job_store import change
from services.trainer.stores.sqlite_store import SqliteJobStore
from services.trainer.training_job_service import CODE
from services.trainer.worker import TrainingWorker
from tests.fixtures import kubernetes_api as recorded
from tests.fixtures.kubernetes_api import NAMESPACE, TOKEN, RecordedApi, recorded_api
from tests.fixtures.training_jobs import config, job
from tests.unit.trainer.executors.test_local import Heard

SCHEMA = yaml.safe_load((Path(__file__).parents[3] / "fixtures/train_job_schema.yaml").read_text())
NAME = train_job_name(job())
BEGUN = {"kind": "begun", "folder": "/runs/tiny"}
METRIC = {"kind": "metric", "epoch": 1, "metrics": {"val/loss": 0.5}}
PUBLISHED = {"kind": "published", "model": "tiny", "version": 3}


@settings(max_examples=30)
@given(
    job_id=st.text("0123456789abcdef", min_size=16, max_size=16),
    name=st.text(min_size=1, max_size=80),
    nodes=st.integers(1, 1024),
    image=st.sampled_from(["", "registry/flambeau:1"]),
    claim=st.sampled_from(["", "runs"]),
    limit_s=st.floats(0.01, 1e6),
)
def test_every_job_makes_a_train_job_that_keeps_the_schema(
    job_id: str, name: str, nodes: int, image: str, claim: str, limit_s: float
) -> None:
    found = config(
        Path("/data"), kubeflow_nodes=nodes, kubeflow_image=image, kubeflow_volume_claim=claim,
        time_limit_s=limit_s,
    )  # fmt: skip
    made = train_job(job(job_id, name=name), found)
    jsonschema.Draft202012Validator(SCHEMA).validate(made)
    trainer = made["spec"]["trainer"]
    assert ("torchrun" in trainer["command"]) == (nodes > 1)
    assert ("image" in trainer) == bool(image)
    assert ("runtimePatches" in made["spec"]) == bool(claim)


def test_a_train_job_runs_the_recipe_where_it_lies() -> None:
    made = train_job(job(), config(Path("/data"), kubeflow_volume_claim="runs"))
    folder = f"/data/runs/{job().id}"
    trainer = made["spec"]["trainer"]
    safe = "PYTHONSAFEPATH=1"  # its code is not looked into first
    assert trainer["command"] == ["env", "--chdir", f"{folder}/{CODE}", safe, "python", "-m"]
    assert trainer["args"][:3] == ["training.job", "--recipe", f"{folder}/recipe.yaml"]
    assert trainer["args"][-2:] == ["--events", f"{folder}/{EVENTS}"]
    (patch,) = made["spec"]["runtimePatches"]
    (replicated,) = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    pod = replicated["template"]["spec"]["template"]["spec"]
    assert pod["volumes"][0]["persistentVolumeClaim"] == {"claimName": "runs"}
    assert pod["containers"][0]["volumeMounts"][0]["mountPath"] == "/data/runs"


def test_the_schema_refuses_what_the_api_does_not_know() -> None:
    made = train_job(job(), config(Path("/data")))
    for spoil in (
        {"spec": {**made["spec"], "nodes": 2}},
        {"metadata": {"name": "7-up"}},
        {"spec": {**made["spec"], "activeDeadlineSeconds": 0}},
    ):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.Draft202012Validator(SCHEMA).validate({**made, **spoil})


@pytest.mark.parametrize(
    ("status", "condition", "why"),
    [
        (recorded.CREATED, "waiting", ""),
        (recorded.RUNNING, "running", ""),
        (recorded.COMPLETE, "complete", "AllJobsCompleted: jobset completed successfully"),
        (recorded.BROKEN, "failed", "FailedJobs: jobset failed due to one or more job failures"),
        ({"conditions": [{"type": "Failed", "status": "False"}]}, "waiting", ""),
        (None, "waiting", ""),
    ],
)
def test_what_a_status_says(status: Any, condition: str, why: str) -> None:
    assert condition_of({"status": status}) == (condition, why)


class Cluster:
    """A service that runs its jobs on a recorded API."""

    def __init__(self, api: RecordedApi, folder: Path) -> None:
        account = folder / "account"
        account.mkdir()
        (account / "token").write_text(f"{TOKEN}\n")
        (account / "namespace").write_text(NAMESPACE)
        self.config = config(
            folder, kubernetes_url=api.url, kubernetes_account=str(account), kubeflow_poll_s=0.01
        )
        self.folder = self.config.runs_folder / job().id
        self.folder.mkdir(parents=True)
        self.api = TrainJobApi(self.config)
        self.executor = KubeflowExecutor(self.config, self.api)
        self.heard, self.stopping = Heard(), asyncio.Event()

    async def run(self, **fields: Any) -> Outcome:
        running = self.executor.run(job(**fields), self.heard, self.stopping)
        return await asyncio.wait_for(running, 20)

    def tell(self, *events: object) -> None:
        """Writes events as the pod does."""
        with (self.folder / EVENTS).open("a") as file:
            file.writelines(json.dumps(event) + "\n" for event in events)


def pod_tells(cluster: Cluster, api: RecordedApi, *events: object) -> None:
    """Has the pod write once the object was created."""
    answer: Callable[..., Any] = api.answer

    def telling(method: str, *call: Any) -> Any:
        if method == "POST":
            cluster.tell(*events)
        return answer(method, *call)

    api.answer = telling  # type: ignore[assignment,method-assign]


async def test_a_job_is_created_watched_and_published(tmp_path: Path) -> None:
    statuses = (recorded.CREATED, recorded.RUNNING, recorded.RUNNING, recorded.COMPLETE)
    with recorded_api(*statuses) as api:
        cluster = Cluster(api, tmp_path)
        cluster.tell({"kind": "failed", "text": "of an attempt before"})
        pod_tells(cluster, api, BEGUN, METRIC, PUBLISHED)
        assert await cluster.run() == Succeeded(3)
        made = train_job(job(), cluster.config)
        assert api.objects[NAME]["spec"] == made["spec"]
        assert made["metadata"].items() <= api.objects[NAME]["metadata"].items()
    assert cluster.heard.folder == "/runs/tiny"
    assert cluster.heard.metrics == [(1, {"val/loss": 0.5})]
    assert [line.split(" is ")[-1].strip() for line in cluster.heard.lines] == [
        f"created TrainJob {NAME}", "waiting", "running",
        "complete AllJobsCompleted: jobset completed successfully",
    ]  # fmt: skip


async def test_another_worker_goes_on_looking(tmp_path: Path) -> None:
    with recorded_api(recorded.RUNNING, recorded.COMPLETE) as api:
        cluster = Cluster(api, tmp_path)
        api.put(train_job(job(), cluster.config))
        cluster.tell(BEGUN, METRIC, PUBLISHED)
        assert await cluster.run(epoch=1) == Succeeded(3)
    assert cluster.heard.metrics == [], "told by the worker before"
    assert "POST" not in {method for method, _ in api.calls}


@pytest.mark.parametrize(
    ("events", "status", "error"),
    [
        ([{"kind": "failed", "text": "no data"}], recorded.BROKEN, "no data"),
        ([], recorded.BROKEN, f"TrainJob {NAME} failed: FailedJobs: jobset failed"),
        ([BEGUN], recorded.COMPLETE, "is runs_dir the same volume here and in its pods?"),
    ],
    ids=["told", "silent", "nothing published"],
)
async def test_why_a_train_job_failed_is_said(
    tmp_path: Path, events: list[Any], status: Any, error: str
) -> None:
    with recorded_api(recorded.RUNNING, status) as api:
        cluster = Cluster(api, tmp_path)
        cluster.tell({"kind": "failed", "text": "of an attempt before"})
        pod_tells(cluster, api, *events)
        outcome = await cluster.run()
    assert isinstance(outcome, Failed)
    assert error in outcome.error


async def test_a_stop_leaves_the_train_job_alone(tmp_path: Path) -> None:
    with recorded_api(recorded.RUNNING) as api:
        cluster = Cluster(api, tmp_path)
        running = asyncio.create_task(cluster.run())
        await asyncio.wait_for(cluster.heard.said.wait(), 10)
        cluster.stopping.set()
        assert await running == Stopped()
        assert NAME in api.objects
        assert await cluster.executor.discard(job())
        assert api.objects == {}
        assert await cluster.executor.discard(job()), "it is gone"


@pytest.mark.parametrize("refusals", [[503], [0, 403], [0, 0, 500]])
async def test_what_cannot_be_deleted_is_not_discarded(tmp_path: Path, refusals: list[int]) -> None:
    """At the reading, the deleting, or the reading behind it."""
    with recorded_api(recorded.RUNNING) as api:
        cluster = Cluster(api, tmp_path)
        api.put(train_job(job(), cluster.config))
        api.refusals = refusals
        assert not await cluster.executor.discard(job())
        assert await cluster.executor.discard(job())
        assert api.objects == {}


async def test_what_is_discarded_is_gone_when_its_pods_are(tmp_path: Path) -> None:
    with recorded_api(recorded.RUNNING) as api:
        cluster = Cluster(api, tmp_path)
        api.put(train_job(job(), cluster.config))
        api.readings_until_gone = 3
        assert not await cluster.executor.discard(job())
        assert not await cluster.executor.discard(job())
        assert await cluster.executor.discard(job())
    assert [method for method, _ in api.calls].count("DELETE") == 1


async def test_what_came_in_the_place_of_a_train_job_is_not_deleted(tmp_path: Path) -> None:
    with recorded_api(recorded.RUNNING) as api:
        cluster = Cluster(api, tmp_path)
        old = api.put(train_job(job(), cluster.config))
        api.put(train_job(job(), cluster.config))
        assert await TrainJobApi(cluster.config).delete(old)
        assert NAME in api.objects


async def test_who_is_cancelled_while_a_train_job_is_made_leaves_it_to_be_found(
    tmp_path: Path,
) -> None:
    with recorded_api(recorded.RUNNING) as api:
        cluster = Cluster(api, tmp_path)
        asked, answered = threading.Event(), threading.Event()
        answer: Callable[..., Any] = api.answer

        def slow(method: str, *call: Any) -> Any:
            if method == "POST":
                asked.set()
                assert answered.wait(10)
            return answer(method, *call)

        api.answer = slow  # type: ignore[assignment,method-assign]
        running = asyncio.create_task(cluster.run())
        assert await asyncio.to_thread(asked.wait, 10)
        running.cancel()
        for _ in range(10):
            await asyncio.sleep(0)
        assert not running.done(), "what is made could not be found yet"
        answered.set()
        await asyncio.wait({running}, timeout=10)
        assert running.cancelled()
        assert NAME in api.objects


@pytest.mark.parametrize("before", [recorded.BROKEN, recorded.RUNNING, recorded.COMPLETE])
async def test_what_a_person_resumes_is_made_anew(tmp_path: Path, before: Any) -> None:
    """Whatever became of the one before."""
    with recorded_api(before, recorded.RUNNING, recorded.COMPLETE) as api:
        cluster = Cluster(api, tmp_path)
        api.put(train_job(job(), cluster.config))
        cluster.tell({"kind": "failed", "text": "of the one before"})
        api.readings_until_gone = 1
        pod_tells(cluster, api, BEGUN, PUBLISHED)
        assert await cluster.run(resumptions=1) == Succeeded(3)
    methods = [method for method, _ in api.calls]
    assert methods.index("DELETE") < methods.index("POST")
    assert any("is still being deleted" in line for line in cluster.heard.lines)


@pytest.mark.parametrize("resumptions", [0, 3])
async def test_what_failed_while_nobody_looked_has_failed(tmp_path: Path, resumptions: int) -> None:
    """A worker takes over: it is told, and not run again."""
    with recorded_api(recorded.BROKEN) as api:
        cluster = Cluster(api, tmp_path)
        api.put(train_job(job(resumptions=resumptions), cluster.config))
        cluster.tell(BEGUN, METRIC, {"kind": "failed", "text": "no data"})
        outcome = await cluster.run(attempts=2, resumptions=resumptions)
    assert outcome == Failed("no data")
    assert cluster.heard.metrics == [(1, {"val/loss": 0.5})]
    assert {method for method, _ in api.calls} == {"GET"}


@pytest.mark.parametrize("worker_is", ["drained", "dead", "attending"])
async def test_a_cancelled_job_leaves_no_train_job(tmp_path: Path, worker_is: str) -> None:
    """Although Kubernetes refuses to delete it twice."""
    with recorded_api(recorded.RUNNING) as api:
        cluster = Cluster(api, tmp_path)
        store = SqliteJobStore(tmp_path / "jobs.db", 1000)
        await store.create(*transitions.submitted(job()))
        first = Looking(store, cluster, "first")
        await _until(store, "created TrainJob")
        if worker_is == "drained":
            first.worker.stop()
            await asyncio.wait({first.task}, timeout=10)
        if worker_is == "dead":
            await first.die()
        now = await store.now()
        asked, _ = await change(store, job().id, partial(transitions.cancelled, now=now))
        assert not asked.is_over, "it may still publish"
        api.refusals = [0] * 4 + [403, 500]
        second = Looking(store, cluster, "second")
        await _until(store, "cancelled")
        assert api.objects == {}
        assert (await store.find(job().id)).state == "cancelled"
        for looking in (first, second):
            await looking.die()
        await store.close()


class Looking:
    """A worker that looks on at TrainJobs."""

    def __init__(self, store: SqliteJobStore, cluster: Cluster, name: str) -> None:
        executor = KubeflowExecutor(cluster.config, TrainJobApi(cluster.config))
        self.worker = TrainingWorker(store, executor, cluster.config, TrainerMetrics("test"), name)
        self.task = asyncio.create_task(self.worker.run())

    async def die(self) -> None:
        """No word to anybody."""
        self.task.cancel()
        await asyncio.wait([self.task])


async def _until(store: SqliteJobStore, text: str) -> None:
    """Waits until the job tells of an event whose text begins so."""
    with store.bell.heard(job().id) as rung:
        async with asyncio.timeout(20):
            while not any(x.text.startswith(text) for x in await store.events(job().id, 0, 1000)):
                rung.clear()
                await rung.wait()


async def test_an_api_that_falters_is_asked_again(tmp_path: Path) -> None:
    with recorded_api(recorded.COMPLETE) as api:
        cluster = Cluster(api, tmp_path)
        pod_tells(cluster, api, PUBLISHED)
        api.refusals = [503, 429, 500]
        assert await cluster.run() == Succeeded(3)
        assert sum("asked again" in line for line in cluster.heard.lines) == 3
        api.refusals = [403]
        outcome = await cluster.run()
    assert isinstance(outcome, Failed)
    assert "Kubernetes answered 403 to GET" in outcome.error


async def test_an_api_that_is_not_there_is_no_final_answer(tmp_path: Path) -> None:
    with recorded_api(recorded.COMPLETE) as api:
        cluster = Cluster(api, tmp_path)
    with pytest.raises(KubernetesError, match="no response from Kubernetes") as refused:
        await TrainJobApi(cluster.config).read(NAME)
    assert not refused.value.is_final


def test_outside_a_cluster_the_namespace_must_be_given(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="give kubernetes_namespace"):
        TrainJobApi(config(tmp_path, kubernetes_account=str(tmp_path)))
    with pytest.raises(ConfigError, match="https:// address"):
        TrainJobApi(config(tmp_path, kubernetes_url="file:///etc", kubernetes_namespace="x"))
    TrainJobApi(config(tmp_path, kubernetes_account=str(tmp_path), kubernetes_namespace="x"))
