"""Each image's lock, installed, starts each pod of the overlays with its own settings.

Where there is no GPU the worker of the overlay `gpu` says that it has none: until there it has what
its settings need. CUDA's libraries are left out, gigabytes that only a GPU loads.
"""

import signal

import pytest

from deploy.lock import IMAGES
from model_store.certificates.certificates import certificates
from model_store.store import ModelStore
from tests.images.lock_environment import lock_of
from tests.k8s.conftest import around, site
from tests.k8s.rendering import OVERLAYS, Workload
from tests.k8s.starting import (
    START_TIMEOUT_S,
    STOP_TIMEOUT_S,
    Surroundings,
    assert_starts_and_stops,
    pod_of,
    started,
    workloads_of,
)

__all__ = ["around", "site"]

pytestmark = pytest.mark.timeout(1800)
"""The first that needs a lock installs it: minutes, for the trainer's with torch."""
TRAIN_TIMEOUT_S = 600.0
PODS = [
    pytest.param(overlay, pod, id=f"{overlay}-{pod.name}")
    for overlay in OVERLAYS
    for pod in workloads_of(overlay)
    if pod.kind != "Job"
    # tests/k8s/test_gateways_start.py: they need a worker beside them.
    and pod.name != "flambeau-gateway"
    and "cuda" not in pod.container["image"]
]


@pytest.mark.parametrize(("overlay", "pod"), PODS)
def test_a_pod_of_the_overlay_s_image_starts_with_its_settings(
    overlay: str, pod: Workload, around: Surroundings
) -> None:
    assert_starts_and_stops(overlay, pod, around)


def test_the_worker_with_torch_starts(around: Surroundings) -> None:
    pod = pod_of("cpu", "flambeau-inference")
    assert_starts_and_stops("cpu", pod, around, "flambeau/inference:0.1.0-torch")


def test_the_worker_for_gpus_has_all_but_the_gpu(around: Surroundings) -> None:
    pod = pod_of("gpu", "flambeau-inference")
    with started("gpu", pod, around) as (process, log):
        # The version is refused for want of the device, and the worker stays for others.
        log.wait_for(lambda line: "CUDA" in line, START_TIMEOUT_S)
        process.send_signal(signal.SIGTERM)
        process.wait(STOP_TIMEOUT_S)
        said = "\n".join(log.all())
    assert "ModuleNotFoundError" not in said
    assert "needs the extra" not in said


def test_the_job_trains_and_publishes(around: Surroundings) -> None:
    pod = pod_of("dev", "flambeau-train")
    with started("dev", pod, around) as (process, log):
        assert process.wait(TRAIN_TIMEOUT_S) == 0, "\n".join(log.all())
        log.join()
        assert any("published digits" in line for line in log.all())


def test_the_job_verifies_and_records(around: Surroundings) -> None:
    pod = pod_of("verify", "flambeau-verify")
    with started("verify", pod, around) as (process, log):
        assert process.wait(START_TIMEOUT_S) == 0, "\n".join(log.all())
        log.join()
    store = ModelStore(around.store)
    manifests = [store.manifest("digits", number) for number in store.versions("digits")]
    (found,) = [found for manifest in manifests for found in certificates(store, manifest)]
    assert found.holds


def test_every_lock_is_started() -> None:
    used = {lock_of(pod.container["image"]) for o in OVERLAYS for pod in workloads_of(o)}
    assert used | {"inference-torch"} == set(IMAGES)
