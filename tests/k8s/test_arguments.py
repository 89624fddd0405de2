"""The arguments of every container are accepted by its program, and agree with the manifest."""

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

import pytest
import typer.main
import yaml

from flambeau.cli import app
from flambeau.commands.serve import parse_settings
from services.access.config import check_open
from services.gateway.config import GatewayConfig, GatewaySettings
from services.inference.config import InferenceConfig
from services.kubernetes.config import ControllerConfig
from services.registry_server.config import RegistryConfig
from services.settings import ServiceSettings, checked, settings_from
from services.standalone.config import ServerConfig
from services.trainer.config import TrainerConfig
from tests.k8s.rendering import (
    KUBERNETES,
    OVERLAYS,
    Object,
    Workload,
    arguments,
    of_kind,
    quantity,
    render,
    rendered,
    selects,
    workloads,
)

CONFIGURATIONS: dict[str, type[ServiceSettings]] = {
    "flambeau-gateway": GatewayConfig,
    "flambeau-inference": InferenceConfig,
    "flambeau-trainer": TrainerConfig,
}
BESIDE: dict[str, type[ServiceSettings]] = {
    "flambeau-model-rollouts": ControllerConfig,
    "flambeau-registry": RegistryConfig,
}
"""Pods of the overlay `rollouts` alone."""
RUNTIMES = {"flambeau": ("http1", "http"), "flambeau-grpc": ("h2c", "grpc")}
"""KServe's names for the port that it routes to, and ours."""
LAST_REPLIES_S = 5
"""Seconds of every part after its drain, to write its last responses and to close."""
MARGIN_S = 5
OWN_BYTES = 100 * 2**20
"""Memory of a serving process beyond request data and models."""
WRITTEN = (
    "choice_file", "needs_file", "engine_cache", "store_cache", "store", "runs_dir",
    "upload_folder",
)  # fmt: skip
READ = (
    "api_keys_file",
    "tls_certificate_file",
    "tls_key_file",
    "tls_client_ca_file",
    "webhook_secret_file",
    "registry_token_file",
)


def settings_of(pod: Workload, overlay: str) -> ServiceSettings:
    """Returns the settings of a pod's process."""
    found = arguments(pod, render(overlay))
    if pod.kind == "ClusterServingRuntime":
        assert pod.container["command"] == ["flambeau", "serve"]
        return _served(found)
    if pod.name == "flambeau-model-rollouts":
        assert pod.container["command"] == ["python", "-P", "-m", "services.kubernetes"]
    else:
        assert "command" not in pod.container, "the image's entry point is the program"
    kind = (CONFIGURATIONS | BESIDE)[pod.name]
    try:
        return settings_from(found, kind, "")
    except SystemExit:
        pytest.fail(f"{pod.name} does not take all of {found}")


def _served(found: list[str]) -> ServerConfig:
    """Returns the settings of `flambeau serve`."""
    command = typer.main.get_command(app).commands["serve"]  # type: ignore[attr-defined]
    options = command.make_context("serve", list(found)).params
    pairs = parse_settings(options.pop("set_"))
    named = {name: value for name, value in options.items() if value}
    return checked(ServerConfig, named | pairs)


PROCESSES = [
    pytest.param(f"overlays/{overlay}", name, id=f"{overlay}-{name}")
    for overlay in OVERLAYS
    for name in (*CONFIGURATIONS, *RUNTIMES, *BESIDE)
    if (name in RUNTIMES) is (overlay == "kserve") and (name not in BESIDE or overlay == "rollouts")
]


@pytest.fixture
def pod(overlay: str, name: str) -> Workload:
    (found,) = (pod for pod in workloads(render(overlay)) if pod.name == name)
    return found


@pytest.fixture
def settings(overlay: str, pod: Workload) -> Any:
    return settings_of(pod, overlay)


@pytest.mark.parametrize(("overlay", "name"), PROCESSES)
def test_ports_are_those_that_are_declared(pod: Workload, settings: Any) -> None:
    declared = {port["name"]: port["containerPort"] for port in pod.container["ports"]}
    if pod.kind == "ClusterServingRuntime":
        name, ours = RUNTIMES[pod.name]
        declared = {ours: declared.pop(name), **declared}
    for name, number in declared.items():
        assert getattr(settings, f"{name}_port") == number
    assert settings.host == "0.0.0.0", "probes and callers come from other addresses"


def test_a_runtime_of_kserve_names_a_port_for_each_protocol_that_it_claims() -> None:
    """KServe routes to one port of a runtime, and tells the protocol by the port's name."""
    named = {"v2": "http1", "grpc-v2": "h2c"}
    claimed = []
    for runtime in of_kind(render("overlays/kserve"), "ClusterServingRuntime"):
        (protocol,) = runtime["spec"]["protocolVersions"]
        (port,) = runtime["spec"]["containers"][0]["ports"]
        assert (port["name"], port["protocol"]) == (named[protocol], "TCP")
        claimed.append(protocol)
    assert sorted(claimed) == sorted(named)
    for service in of_kind(render("overlays/kserve"), "InferenceService"):
        assert service["spec"]["predictor"]["model"]["protocolVersion"] in claimed


@pytest.mark.parametrize(("overlay", "name"), PROCESSES)
def test_it_would_start_and_strangers_manage_nothing(settings: Any) -> None:
    if isinstance(settings, GatewaySettings):
        check_open(settings, settings.host, is_opened=settings.open_to_strangers)
    elif isinstance(settings, TrainerConfig):
        check_open(settings, settings.host)


@pytest.mark.parametrize(("overlay", "name"), PROCESSES)
def test_there_is_time_to_drain(overlay: str, pod: Workload, settings: Any) -> None:
    services = of_kind(render(overlay), "InferenceService")
    grace_s = pod.spec.get("terminationGracePeriodSeconds") or min(
        service["spec"]["predictor"]["terminationGracePeriodSeconds"] for service in services
    )
    hook = pod.container.get("lifecycle", {}).get("preStop", {"sleep": {"seconds": 0}})
    sleep_s = hook["sleep"]["seconds"]
    assert sleep_s + settings.drain_timeout_s + LAST_REPLIES_S + MARGIN_S <= grace_s
    for longest in ("request_timeout_s", "execution_timeout_s"):
        assert settings.drain_timeout_s >= getattr(settings, longest, 0), longest
    if of_kind(render(overlay), "Service") and "http" in {
        p["name"] for p in pod.container["ports"]
    }:
        assert sleep_s >= 5, "the pod must have left its Services before it refuses anything"


@pytest.mark.parametrize(("overlay", "name"), PROCESSES)
def test_callers_who_know_every_pod_come_to_know_the_new_ones(
    overlay: str, pod: Workload, settings: Any
) -> None:
    """A gRPC connection asks a headless Service for its pods only when it has ended."""
    headless = [
        service
        for service in of_kind(render(overlay), "Service")
        if service["spec"].get("clusterIP") == "None"
        and selects({"matchLabels": service["spec"]["selector"]}, pod.labels)
    ]
    assert bool(headless) is (pod.name == "flambeau-gateway")
    if headless:
        assert 60 <= settings.grpc_max_connection_age_s <= 600


@pytest.mark.parametrize(("overlay", "name"), PROCESSES)
def test_what_it_writes_is_mounted_for_writing_and_what_it_reads_is_there(
    pod: Workload, settings: Any
) -> None:
    mounts = {
        PurePosixPath(mount["mountPath"]): mount.get("readOnly", False)
        for mount in pod.container["volumeMounts"]
    }
    if pod.kind == "ClusterServingRuntime":
        mounts[PurePosixPath("/mnt/models")] = True  # by KServe

    def mount_of(path: str) -> PurePosixPath:
        found = [mount for mount in mounts if PurePosixPath(path).is_relative_to(mount)]
        assert found, f"{path} is on no volume"
        return found[0]

    for name in WRITTEN:
        path = getattr(settings, name, "")
        if path and "://" not in path and mount_of(path) != PurePosixPath("/mnt/models"):
            assert not mounts[mount_of(path)], name
    for name in READ:
        if path := getattr(settings, name, ""):
            assert mounts[mount_of(path)], f"{name}: secrets are mounted read-only"


def called(settings: Any) -> list[str]:
    """Returns the URLs that a process calls besides Redis and its store, by its settings."""
    hosts = getattr(settings, "webhook_hosts", ())
    told = ("trace_endpoint", "jwt_keys", "payload_sample_store")
    urls = [getattr(settings, name, "") for name in told]
    return [url for url in (*urls, *(f"https://{host}" for host in hosts)) if "://" in url]


@pytest.mark.parametrize(("overlay", "name"), PROCESSES)
def test_what_it_is_told_to_call_it_may_reach(overlay: str, pod: Workload, settings: Any) -> None:
    rules = [
        rule
        for policy in of_kind(render(overlay), "NetworkPolicy")
        if selects(policy["spec"]["podSelector"], pod.labels)
        for rule in policy["spec"].get("egress", [])
    ]
    for url in called(settings):
        where = urlsplit(url)
        _, _, domain = str(where.hostname).partition(".")
        namespace = {"kubernetes.io/metadata.name": domain.partition(".")[0]}
        let_out = {
            port["port"]
            for rule in rules
            for port in rule["ports"]
            if "to" not in rule
            or any(
                selects(to["namespaceSelector"], namespace)
                for to in rule["to"]
                if "namespaceSelector" in to and domain
            )
        }
        assert (where.port or 443) in let_out, f"{pod.name}: {url}"


def test_every_way_out_is_tried() -> None:
    found = {
        name: called(settings_of(pod, "overlays/outward"))
        for pod in workloads(render("overlays/outward"))
        if (name := pod.name) in CONFIGURATIONS
    }
    counts = {name.removeprefix("flambeau-"): len(urls) for name, urls in found.items()}
    assert counts == {"gateway": 4, "inference": 1, "trainer": 1}


@pytest.mark.parametrize(("overlay", "name"), PROCESSES)
def test_it_knows_the_memory_it_has(pod: Workload, settings: Any) -> None:
    limit_bytes = quantity(pod.container["resources"]["limits"]["memory"])
    if isinstance(settings, GatewaySettings):
        models_bytes = getattr(settings, "max_memory_mib", 0) * 2**20
        assert settings.buffer_limit_bytes + models_bytes + OWN_BYTES <= limit_bytes
    if getattr(settings, "device", "cpu") == "cpu" and hasattr(settings, "max_memory_mib"):
        assert 0 < settings.max_memory_mib * 2**20 <= 0.8 * limit_bytes
    if getattr(settings, "device", "cpu") != "cpu":
        assert pod.container["resources"]["limits"]["nvidia.com/gpu"] == 1
        assert settings.max_memory_mib == 0, "the limit is of the GPU's memory, not the pod's"
    if hasattr(settings, "memory_limit_gib"):
        assert settings.memory_limit_gib * settings.jobs_at_once * 2**30 <= 0.8 * limit_bytes


def test_the_job_trains_what_can_be_trained() -> None:
    from training.recipe.file import load_recipe

    (job,) = (pod for pod in workloads(render("overlays/dev")) if pod.kind == "Job")
    assert shlex.join(job.container["command"]) == "flambeau train"
    recipe, *options = arguments(job, render("overlays/dev"))
    assert {option.split("=")[0] for option in options} == {"--store", "--runs-dir"}
    assert recipe == "/etc/flambeau/recipe/recipe.yaml"
    (mount,) = (m for m in job.container["volumeMounts"] if recipe.startswith(m["mountPath"]))
    (volume,) = (v for v in job.spec["volumes"] if v["name"] == mount["name"])
    maps = {o["metadata"]["name"]: o["data"] for o in of_kind(render("overlays/dev"), "ConfigMap")}
    text = maps[volume["configMap"]["name"]]["recipe.yaml"]
    file = KUBERNETES / "components/train-job/recipe.yaml"
    assert text == file.read_text()
    assert load_recipe(str(file), []).name == "digits-cnn"


def verify_job(objects: list[Object]) -> tuple[Workload, dict[str, Any]]:
    """Returns the Job that verifies, and the parameters that the command reads in its arguments."""
    (job,) = (pod for pod in workloads(objects) if pod.name == "flambeau-verify")
    assert shlex.join(job.container["command"]) == "flambeau verify"
    command = typer.main.get_command(app).commands["verify"]  # type: ignore[attr-defined]
    return job, command.make_context("verify", arguments(job, objects)).params


def test_the_job_verifies_a_version_as_the_workers_would() -> None:
    objects = render("overlays/verify")
    job, told = verify_job(objects)
    assert (told["model"], told["store"], told["device"]) == ("digits", "s3://models/prod", "cpu")
    (worker,) = (pod for pod in workloads(objects) if pod.name == "flambeau-inference")
    for name in ("image", "envFrom"):
        assert job.container[name] == worker.container[name], "the same libraries and credentials"
    assert job.spec["serviceAccountName"] == worker.spec["serviceAccountName"]


def test_an_artifact_that_failed_is_not_verified_again() -> None:
    (job,) = (
        o
        for o in of_kind(render("overlays/verify"), "Job")
        if o["metadata"]["name"] == "flambeau-verify"
    )
    fails, ignores = job["spec"]["podFailurePolicy"]["rules"]
    assert (fails["action"], fails["onExitCodes"]["values"]) == ("FailJob", [1, 2])
    assert ignores["action"] == "Ignore"
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert fails["onExitCodes"]["containerName"] == container["name"]


def test_the_document_s_job_runs_on_a_gpu_of_the_node_that_it_names(tmp_path: Path) -> None:
    document = (KUBERNETES.parent / "docs/concepts/verification.md").read_text()
    (text,) = re.findall(r"```yaml\n(.*?)```", document, re.DOTALL)
    above = os.path.relpath(KUBERNETES, tmp_path.resolve())
    block = yaml.safe_load(text.replace("../flambeau/k8s", above))
    own = {"namespace": "models", "resources": [f"{above}/overlays/gpu"]}
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(own | block))
    objects = rendered(tmp_path)
    job, told = verify_job(objects)
    assert (told["model"], told["device"], told["threads"]) == ("digits/3", "cuda:0", 4)
    assert job.spec["nodeSelector"] == {"node.kubernetes.io/instance-type": "m7i.xlarge"}
    assert job.container["resources"]["limits"]["nvidia.com/gpu"] == 1
    (worker,) = (pod for pod in workloads(objects) if pod.name == "flambeau-inference")
    assert job.container["image"] == worker.container["image"]
    assert job.spec["tolerations"] == worker.spec["tolerations"]
    label = {"matchLabels": {"app.kubernetes.io/component": "verification"}}
    assert f"-l {next(iter(label['matchLabels']))}=verification" in document
    alone = [o["kind"] for o in objects if selects(label, o["metadata"].get("labels", {}))]
    assert alone == ["Job"]


def test_redis_starts_so_and_keeps_its_file_and_all_it_is_given(tmp_path: Path) -> None:
    if (program := shutil.which("redis-server")) is None:
        pytest.skip("no redis-server here to be given the arguments")
    (redis,) = (pod for pod in workloads(render("overlays/dev")) if pod.name == "flambeau-redis")
    assert redis.container["command"] == ["redis-server"]
    found = [str(tmp_path) if a == "/data" else a for a in redis.container["args"]]
    said = dict(zip(found[::2], found[1::2], strict=True))
    assert said["--port"] == "6379"
    assert said["--appendonly"] == "yes"
    assert said["--maxmemory-policy"] == "noeviction"
    megabytes = float(re.sub("mb$", "", said["--maxmemory"]))
    # Rewriting the file takes memory of its own.
    assert megabytes * 2**20 <= 0.6 * quantity(redis.container["resources"]["limits"]["memory"])
    command = [program, *found, "--port", "0", "--unixsocket", str(tmp_path / "socket")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        assert any("ready to accept connections" in line for line in lines), "it did not start"
    finally:
        process.terminate()
        process.communicate()
    assert list((tmp_path / "appendonlydir").iterdir())
