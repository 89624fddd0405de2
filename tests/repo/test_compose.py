"""`deploy/compose.yaml`: valid by the schema, safe by our rules, true to our settings."""

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from services.gateway.config import GatewayConfig
from services.inference.config import InferenceConfig
from services.registry_server.config import RegistryConfig
from services.settings import ServiceSettings, settings_from
from services.trainer.config import TrainerConfig
from tests.images.dockerfile import read_dockerfile

DEPLOY = Path(__file__).parents[2] / "deploy"
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
SCHEMA = json.loads((DEPLOY.parent / "tests/fixtures/compose_spec_schema.json").read_text())
OURS: dict[str, type[ServiceSettings]] = {
    "gateway": GatewayConfig, "worker": InferenceConfig, "registry": RegistryConfig,
    "trainer": TrainerConfig,
}  # fmt: skip
STAYING = sorted(name for name, service in SERVICES.items() if service["restart"] != "no")


def settings(name: str) -> Any:
    return settings_from(SERVICES[name]["command"], OURS[name], "")


def volumes(service: dict[str, Any]) -> list[list[str]]:
    return [text.split(":") for text in service.get("volumes", [])]


def test_it_is_valid() -> None:
    assert COMPOSE["name"] == "flambeau"
    known = {key: value for key, value in COMPOSE.items() if key != "name"}  # since 2022
    jsonschema.Draft201909Validator(SCHEMA).validate(known)


def test_the_schema_finds_a_wrong_word() -> None:
    wrong = {"services": {"a": {**SERVICES["gateway"], "read_onyl": True}}}
    with pytest.raises(jsonschema.ValidationError, match="read_onyl"):
        jsonschema.Draft201909Validator(SCHEMA).validate(wrong)


def test_everything_of_the_platform_is_in_it() -> None:
    watching = {"alertmanager", "grafana", "prometheus"}
    assert set(SERVICES) == {*OURS, *watching, "redis", "setup"}
    assert set(SERVICES) - set(STAYING) == {"setup"}


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_can_do_little_harm(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["cap_drop"] == ["ALL"]
    assert "privileged" not in service
    assert re.fullmatch(r"[1-9]\d*:\d+", service["user"])
    limits = service["deploy"]["resources"]["limits"]
    assert limits.keys() == {"cpus", "memory"}
    assert service["pids_limit"] > 0
    assert re.search(r":v?\d+\.\d+\.\d+", service["image"]), "pinned by version"
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))


@pytest.mark.parametrize("name", STAYING)
def test_a_service_that_stays_is_watched_and_started_again(name: str) -> None:
    assert SERVICES[name]["restart"] == "unless-stopped"
    assert SERVICES[name]["healthcheck"]["test"][0] == "CMD"


@pytest.mark.parametrize("name", OURS)
def test_our_settings_take_the_arguments(name: str) -> None:
    found = settings(name)
    assert found.host == "0.0.0.0"
    grace_s = int(SERVICES[name]["stop_grace_period"].removesuffix("s"))
    assert found.drain_timeout_s < grace_s


@pytest.mark.parametrize("name", OURS)
def test_ports_are_those_of_the_settings(name: str) -> None:
    found = settings(name)
    ports = {value for field, value in found if field.endswith("_port")}
    published = {int(text.rpartition(":")[2]) for text in SERVICES[name].get("ports", [])}
    assert published <= ports - {found.metrics_port}
    asked = re.search(r"127\.0\.0\.1:(\d+)/", SERVICES[name]["healthcheck"]["test"][-1])
    assert asked is not None
    assert int(asked[1]) in ports


@pytest.mark.parametrize("name", [*OURS, "setup"])
def test_images_and_users_are_those_of_the_dockerfiles(name: str) -> None:
    service = SERVICES[name]
    path = DEPLOY.parent / service["build"]["dockerfile"]
    stages = read_dockerfile(path, {})
    assert service["user"] == stages[-1].user
    assert service["image"] == f"flambeau/{path.stem}:{stages[-1].arguments['VERSION']}"
    taken = stages[0].arguments
    assert service["build"].get("args", {}).keys() <= taken.keys()


def test_everything_writable_is_a_volume_and_each_volume_is_known() -> None:
    named = {source for s in SERVICES.values() for source, *_ in volumes(s) if source[0] != "."}
    assert named == set(COMPOSE["volumes"])
    trainer = settings("trainer")
    for name in ("worker", "registry", "trainer"):
        places = [path for _, path, *_ in volumes(SERVICES[name])]
        assert settings(name).store in places
    assert trainer.api_keys_file.startswith("/var/lib/flambeau/")
    assert trainer.runs_dir.startswith("/var/lib/flambeau/")


def test_files_that_are_mounted_are_there_and_read_only() -> None:
    mounted = [volume for s in SERVICES.values() for volume in volumes(s) if volume[0][0] == "."]
    assert len(mounted) == 5
    for source, _, mode in mounted:
        assert mode == "ro"
        assert (DEPLOY / source).exists(), source


def test_prometheus_asks_where_the_metrics_are() -> None:
    jobs = yaml.safe_load((DEPLOY / "prometheus/prometheus.yml").read_text())["scrape_configs"]
    asked = set()
    for job in jobs:
        asked |= {target for group in job.get("static_configs", []) for target in group["targets"]}
        for found in job.get("dns_sd_configs", []):
            asked |= {f"{name}:{found['port']}" for name in found["names"]}
    expected = {f"{name}:{settings(name).metrics_port}" for name in OURS}
    assert expected <= asked
    assert {target.partition(":")[0] for target in asked} <= set(SERVICES)


def test_what_watches_calls_only_what_is_here() -> None:
    """Alerts go to no server that compose does not start; receivers are for the reader to add."""
    prometheus = yaml.safe_load((DEPLOY / "prometheus/prometheus.yml").read_text())
    told = [
        target.partition(":")[0]
        for group in prometheus["alerting"]["alertmanagers"]
        for config in group["static_configs"]
        for target in config["targets"]
    ]
    for name in (
        "alertmanager/alertmanager.yml",
        "grafana/provisioning/datasources/prometheus.yaml",
    ):
        document = str(yaml.safe_load((DEPLOY / name).read_text()))
        told += re.findall(r"https?://([\w.-]+)", document)
    assert told
    assert set(told) <= set(SERVICES)


def test_redis_is_the_one_that_kubernetes_runs() -> None:
    base = yaml.safe_load((DEPLOY.parent / "k8s/base/kustomization.yaml").read_text())
    (tag,) = (image["newTag"] for image in base["images"] if image["name"] == "redis")
    assert SERVICES["redis"]["image"] == f"redis:{tag}"


def test_the_gateway_holds_no_more_of_callers_than_its_memory_allows() -> None:
    limit = SERVICES["gateway"]["deploy"]["resources"]["limits"]["memory"]
    assert limit.endswith("g")
    limit_bytes = int(limit.removesuffix("g")) * 2**30
    assert settings("gateway").buffer_limit_bytes + 100 * 2**20 <= limit_bytes
