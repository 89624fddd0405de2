"""A job as a TrainJob of Kubeflow Trainer v2, and what the TrainJob's status says of it.

In: a job and the configuration. Out: the object to create, as plain JSON values; and of an object
read back, how it is. Pure functions.

Source: API `trainer.kubeflow.org/v1alpha1` of Kubeflow Trainer 2.x, `trainjob_types.go`.
"""

from collections.abc import Mapping
from typing import Any, Literal

from services.trainer.config import TrainerConfig
from services.trainer.executors.local import job_arguments
from services.trainer.records import TrainingJob
from services.trainer.training_job_service import CODE

API_GROUP, API_VERSION, PLURAL = "trainer.kubeflow.org", "v1alpha1", "trainjobs"
MANAGER = "flambeau.dev/trainer"
CONTAINER, REPLICATED_JOB, VOLUME = "node", "node", "flambeau-runs"
"""What the stock runtimes call the job and the container that trains."""
EVENTS = "events.jsonl"
"""The file, in the job's folder, in which the pod tells of the run."""
RESUMPTION = "flambeau.dev/resumption"
"""The label that tells how often a person had had the job go on when the object was made."""
Condition = Literal["waiting", "running", "complete", "failed"]


def train_job_name(job: TrainingJob) -> str:
    """Its name, an RFC 1035 label."""
    return f"flambeau-{job.id}"


def train_job(job: TrainingJob, config: TrainerConfig) -> dict[str, Any]:
    """The object to create.

    Args:
        job: the job; its folder lies on the volume that the pods mount.
        config: the runtime, the image, the nodes, what each asks for, the time limit.
    """
    folder = config.runs_folder / job.id
    module = ["training.job", *job_arguments(job, config), "--events", str(folder / EVENTS)]
    program = "torchrun" if config.kubeflow_nodes > 1 else "python"
    # Without a safe path the job's code would be looked into before ours and Python's own.
    start = ["PYTHONSAFEPATH=1", program, "-m"]
    resources = dict(config.kubeflow_resources)
    trainer: dict[str, Any] = {
        "command": ["env", "--chdir", str(folder / CODE), *start],
        "args": module,
        "numNodes": config.kubeflow_nodes,
        "resourcesPerNode": {"requests": resources, "limits": resources},
    }
    if config.kubeflow_image:
        trainer["image"] = config.kubeflow_image
    spec: dict[str, Any] = {
        "runtimeRef": {
            "apiGroup": API_GROUP,
            "kind": "ClusterTrainingRuntime",
            "name": config.kubeflow_runtime,
        },
        "trainer": trainer,
        "activeDeadlineSeconds": max(int(config.time_limit_s), 1),
    }
    if config.kubeflow_volume_claim:
        spec["runtimePatches"] = [_volume_patch(config)]
    return {
        "apiVersion": f"{API_GROUP}/{API_VERSION}",
        "kind": "TrainJob",
        "metadata": {
            "name": train_job_name(job),
            "labels": {
                "app.kubernetes.io/managed-by": "flambeau",
                "flambeau.dev/job": job.id,
                RESUMPTION: str(job.resumptions),
            },
            "annotations": {"flambeau.dev/recipe": job.name, "flambeau.dev/model": job.model},
        },
        "spec": spec,
    }


def condition_of(found: Mapping[str, Any]) -> tuple[Condition, str]:
    """How a TrainJob is, and why, in the words of its conditions.

    Args:
        found: the object as the API gave it.
    """
    status = found.get("status") or {}
    for condition in status.get("conditions") or ():
        said = f"{condition.get('reason', '')}: {condition.get('message', '')}".strip(": ")
        if condition.get("status") == "True" and condition.get("type") == "Complete":
            return "complete", said
        if condition.get("status") == "True" and condition.get("type") == "Failed":
            return "failed", said
    active = any(job.get("active") or job.get("ready") for job in status.get("jobsStatus") or ())
    return ("running" if active else "waiting"), ""


def is_of_before(found: Mapping[str, Any], job: TrainingJob) -> bool:
    """Whether a TrainJob was made before a person had the job go on, and so counts no more."""
    labels = found["metadata"].get("labels") or {}
    return str(labels.get(RESUMPTION, "0")) != str(job.resumptions)


def _volume_patch(config: TrainerConfig) -> dict[str, Any]:
    """Mounts the folder of jobs where this process sees it."""
    pod = {
        "volumes": [
            {
                "name": VOLUME,
                "persistentVolumeClaim": {"claimName": config.kubeflow_volume_claim},
            }
        ],
        "containers": [
            {
                "name": CONTAINER,
                "volumeMounts": [{"name": VOLUME, "mountPath": str(config.runs_folder)}],
            }
        ],
    }
    replicated = {"name": REPLICATED_JOB, "template": {"spec": {"template": {"spec": pod}}}}
    return {
        "manager": MANAGER,
        "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [replicated]}}},
    }
