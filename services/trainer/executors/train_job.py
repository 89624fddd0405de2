"""Converts a job to a TrainJob of Kubeflow Trainer v2, and interprets the TrainJob's status.

In: a job and the configuration. Out: the object to create, as plain JSON values; and the condition
of an object that was read. Pure functions.

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
"""Names of the training job and container in the stock runtimes, and of the volume."""
EVENTS = "events.jsonl"
"""The file, in the job's folder, that the pod writes the run's events to."""
RESUMPTION = "flambeau.dev/resumption"
"""Label with the number of times that a user had resumed the job when the object was created."""
Condition = Literal["waiting", "running", "complete", "failed"]


def train_job_name(job: TrainingJob) -> str:
    """Returns the TrainJob's name, an RFC 1035 label."""
    return f"flambeau-{job.id}"


def train_job(job: TrainingJob, config: TrainerConfig) -> dict[str, Any]:
    """Returns the object to create.

    Args:
        job: the job; its folder lies on the volume that the pods mount.
        config: runtime, image, number of nodes, resources of each, time limit.
    """
    folder = config.runs_folder / job.id
    module = ["training.job", *job_arguments(job, config), "--events", str(folder / EVENTS)]
    program = "torchrun" if config.kubeflow_nodes > 1 else "python"
    # Without a safe path the job's code would precede flambeau's and Python's on the import path.
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
    """Returns the condition of a TrainJob, and its reason and message.

    Args:
        found: the object, as the API returned it.
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
    """Returns True if a TrainJob was created before the user's last resumption, and is obsolete."""
    labels = found["metadata"].get("labels") or {}
    return str(labels.get(RESUMPTION, "0")) != str(job.resumptions)


def _volume_patch(config: TrainerConfig) -> dict[str, Any]:
    """Returns a patch that mounts the folder of jobs under the same path as in this process."""
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
