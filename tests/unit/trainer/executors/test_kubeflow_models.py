"""Our requests to Kubeflow, and the recorded API's responses, have the shapes of the real API.

By the models that Kubeflow generates from it (`kubeflow-trainer-api`). A model drops what it does
not know, as the API server does, so a value has the shape if it comes back from the model whole.
"""

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from kubeflow_trainer_api import models
from pydantic import ValidationError

from services.kubernetes.object_api import KubernetesError
from services.trainer.executors.executor import Succeeded
from services.trainer.executors.train_job import train_job
from tests.fixtures import kubernetes_api as recorded
from tests.fixtures.kubernetes_api import recorded_api
from tests.fixtures.training_jobs import config, job
from tests.unit.trainer.executors.test_kubeflow import PUBLISHED, Cluster, pod_tells

TRAIN_JOB = models.TrainerV1alpha1TrainJob
STATUS = models.IoK8sApimachineryPkgApisMetaV1Status
DELETE_OPTIONS = models.IoK8sApimachineryPkgApisMetaV1DeleteOptions
STATUSES = (recorded.CREATED, recorded.RUNNING, recorded.COMPLETE, recorded.BROKEN)


def through(model: Any, value: Any) -> Any:
    """The value as the real API would keep it.

    Raises:
        ValidationError: it would be refused.
    """
    return json.loads(json.dumps(model.from_dict(value).to_dict(), default=_time))


def _time(found: datetime) -> str:
    return found.isoformat().replace("+00:00", "Z")


@pytest.mark.parametrize("nodes", [1, 8])
@pytest.mark.parametrize("image", ["", "registry/flambeau:1"])
@pytest.mark.parametrize("claim", ["", "runs"])
def test_a_train_job_has_the_shape_of_the_api(nodes: int, image: str, claim: str) -> None:
    resources = {"cpu": "4", "memory": "16Gi", "nvidia.com/gpu": "1"}
    found = config(
        Path("/data"), kubeflow_nodes=nodes, kubeflow_image=image, kubeflow_volume_claim=claim,
        kubeflow_resources=resources, data_folders=("/lent",),
    )  # fmt: skip
    made = train_job(job(name="ü" * 80, resumptions=2), found)
    assert through(TRAIN_JOB, made) == made


@pytest.mark.parametrize("status", STATUSES)
def test_what_is_recorded_has_the_shape_of_the_api(status: Any) -> None:
    made = {**train_job(job(), config(Path("/data"))), "status": status}
    assert through(TRAIN_JOB, made) == made


def test_other_shapes_are_told() -> None:
    made = train_job(job(), config(Path("/data"), kubeflow_volume_claim="runs"))
    unknown: list[Any] = [
        {"spec": {**made["spec"], "nodes": 2}},
        {"spec": {**made["spec"], "trainer": {"numProcesses": 2}}},
        {"status": {"phase": "Running"}},
    ]
    for spoil in unknown:
        assert through(TRAIN_JOB, made | spoil) != made | spoil
    wrong: list[Any] = [
        {"spec": {}},
        {"spec": {**made["spec"], "activeDeadlineSeconds": 1.5}},
        {"status": {"jobsStatus": [{"name": "node", "active": 1}]}},
        {"status": {"conditions": [{"type": "Failed", "status": "False"}]}},
    ]
    for spoil in wrong:
        with pytest.raises(ValidationError):
            through(TRAIN_JOB, made | spoil)


async def test_all_that_passes_has_the_shape_of_the_api(tmp_path: Path) -> None:
    """From the creating of a TrainJob to its end, with what is refused on the way."""
    passed: list[tuple[str, int]] = []
    with recorded_api(recorded.CREATED, recorded.RUNNING, recorded.COMPLETE) as api:
        answer = api.answer

        def checked(method: str, path: str, token: str, body: Any) -> tuple[int, dict[str, Any]]:
            code, found = answer(method, path, token, body)
            sent = {"POST": TRAIN_JOB, "DELETE": DELETE_OPTIONS}.get(method)
            assert sent is None or through(sent, body) == body
            assert through(TRAIN_JOB if code < 300 else STATUS, found) == found
            passed.append((method, code))
            return code, found

        api.answer = checked  # type: ignore[method-assign]
        cluster = Cluster(api, tmp_path)
        pod_tells(cluster, api, PUBLISHED)
        api.refusals = [503]
        assert await cluster.run() == Succeeded(3)
        api.readings_until_gone = 1
        assert not await cluster.executor.discard(job())
        assert await cluster.executor.discard(job())
        (cluster.folder.parents[1] / "account" / "token").write_text("stale")
        with pytest.raises(KubernetesError, match="401"):
            await cluster.api.read("flambeau-0")
    assert set(passed) == {
        ("POST", 201), ("GET", 200), ("DELETE", 200), ("GET", 404), ("GET", 503), ("GET", 401),
    }  # fmt: skip
