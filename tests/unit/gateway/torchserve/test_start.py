"""The models of a configuration are registered at the start; what cannot be is said."""

import json
from pathlib import Path

import pytest

from model_store.archives.registration_file import RegistrationFile
from model_store.archives.server_properties import ServerProperties, parse_server_properties
from services.gateway.torchserve.door_settings import addresses, read_door
from services.gateway.torchserve.start import MAX_AT_START, first_models, start
from services.settings import ConfigError
from tests.fixtures.model_archives import write_archive


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for name in ("archives", "server"):
        (tmp_path / name).mkdir()
    write_archive(tmp_path / "archives", name="one")
    write_archive(tmp_path / "archives", name="two", format="no-archive")
    (tmp_path / "archives" / "broken.mar").write_bytes(b"no zip")
    (tmp_path / "archives" / "notes.txt").write_text("x")
    (tmp_path / "archives" / ".hidden.mar").write_text("x")
    return tmp_path


def properties(place: Path, text: str = "", **environment: str) -> ServerProperties:
    """Returns the settings of a configuration with the model store of a place."""
    data = f"model_store={place / 'archives'}\n{text}".encode()
    return parse_server_properties(data, "config.properties", environment)


def test_models_by_name_and_all(place: Path) -> None:
    def named(text: str) -> list[tuple[str, str]]:
        found = first_models(properties(place, f"load_models={text}"))
        assert all(one.config is None for one in found)
        return [(one.name, one.url) for one in found]

    assert named("") == named("N/A") == named("none") == []
    assert named("a=one.mar, two ,http://x/y.mar") == [
        ("a", "one.mar"), ("", "two"), ("", "http://x/y.mar"),
    ]  # fmt: skip
    assert named("ALL") == [("", "broken.mar"), ("", "one.mar"), ("", "two")]
    with pytest.raises(ConfigError, match="load_models names 1,001 models"):
        named(",".join(["m.mar"] * (MAX_AT_START + 1)))


def test_what_can_be_registered_is(place: Path) -> None:
    text = 'load_models=all\nvmargs=-Xmx1g\nmodels={"one": {"1.0": {"minWorkers": 3}}}'
    found = start(place / "server", properties(place, text), place / "key_file.json")
    assert found.registered == ["one 1.0", "two 1.0"]
    (failed,) = found.failed
    assert failed.startswith("broken.mar: broken.mar begins with")
    assert "'vmargs': there is no Java" in found.ignored
    registered = RegistrationFile(place / "server").latest().models
    workers = {name: one.versions["1.0"].min_workers for name, one in registered.items()}
    assert workers == {"one": 3, "two": 1}
    assert all(one.versions["1.0"].at_start for one in registered.values())
    door = read_door(place / "server")
    assert door.properties == properties(place, text)
    assert (door.key_file, (place / "key_file.json").exists()) == (
        str(place / "key_file.json"), True,
    )  # fmt: skip


def test_metrics_of_a_file_are_those_of_handlers(place: Path) -> None:
    file = place / "metrics.yaml"
    file.write_text("model_metrics: {counter: [{name: c, unit: '', dimensions: []}]}")
    start(place / "server", properties(place, f"metrics_config={file}"), place / "key_file.json")
    (one,) = read_door(place / "server").properties.model_metrics
    assert (one.name, one.kind) == ("c", "counter")
    with pytest.raises(ConfigError, match="metrics_config is '/dev/zero', which is no file"):
        start(place, properties(place, "metrics_config=/dev/zero"), place / "key_file.json")


def test_a_module_with_the_name_of_a_package_of_ours_is_named_at_once(place: Path) -> None:
    files = {"services/__init__.py": "", "services/a.py": ""}
    write_archive(place / "archives", name="taken", files=files)
    found = start(
        place / "server", properties(place, "load_models=taken.mar"), place / "key_file.json"
    )
    assert found.registered == []
    assert found.failed[0].startswith("taken.mar: the archive has a module 'services'")


def test_a_snapshot_says_which_archives_are_registered_and_how(place: Path) -> None:
    config = "minWorkers: 1\nbatchSize: 2\nresponseTimeout: 9"
    for version in ("1.0", "2.0"):
        made = write_archive(
            place / "archives", name="m", modelVersion=version, configFile="c.yaml",
            files={"c.yaml": config},
        )  # fmt: skip
        made.rename(made.with_name(f"m-{version}.mar"))
    own = {"minWorkers": 2, "maxWorkers": 5, "batchSize": 7, "maxBatchDelay": 50}
    versions = {
        "1.0": {"defaultVersion": False, "marName": "m-1.0.mar", "minWorkers": 0},
        "2.0": {"defaultVersion": True, "marName": "m-2.0.mar", "runtimeType": "python", **own},
        "3.0": {"marName": "none.mar"},
    }
    snapshot = {"name": "startup.cfg", "modelCount": 1, "models": {"called": versions}}
    text = f"load_models=all\nmodel_snapshot={json.dumps(snapshot)}"
    found = start(place / "server", properties(place, text), place / "key_file.json")
    assert found.registered == ["called 2.0", "called 1.0"]
    assert found.failed == ["none.mar: Model not found at: none.mar"]
    assert found.ignored == [
        "'model_snapshot': its models are registered, and no snapshots are written"
    ]
    (called,) = RegistrationFile(place / "server").latest().models.values()
    assert called.default == "2.0"
    fields = ("min_workers", "max_workers", "batch_size", "max_batch_delay_ms",
              "response_timeout_s")  # fmt: skip
    assert [getattr(called.versions["2.0"], one) for one in fields] == [2, 5, 7, 50, 9]
    assert [getattr(called.versions["1.0"], one) for one in fields] == [0, 0, 2, 100, 9]


def test_metrics_on_the_port_of_another_api_get_their_own(place: Path) -> None:
    text = "metrics_address=https://127.0.0.1:8081\nenable_metrics_api=false"
    found = start(place / "server", properties(place, text), place / "key_file.json")
    assert read_door(place / "server").properties.metrics_address == ("127.0.0.1", 0, False)
    assert [one.partition("'")[2].partition("'")[0] for one in found.ignored] == [
        "metrics_address", "enable_metrics_api", "metrics_address",
    ]  # fmt: skip


def test_without_tokens_there_is_no_key_file(place: Path) -> None:
    start(
        place / "server",
        properties(place, "disable_token_authorization=true"),
        place / "key_file.json",
    )
    assert read_door(place / "server").key_file == ""
    assert not (place / "key_file.json").exists()


def test_a_start_that_is_not_possible(place: Path) -> None:
    with pytest.raises(ConfigError, match="model_store is '/nowhere', which is no folder"):
        start(place / "server", ServerProperties(model_store="/nowhere"), place / "key_file.json")
    with pytest.raises(ConfigError, match=r"the key file .* cannot be written"):
        start(place / "server", properties(place), place / "none" / "key_file.json")
    with pytest.raises(ConfigError, match="which has no settings of TorchServe's API"):
        read_door(place)


def test_addresses_that_two_settings_share(place: Path) -> None:
    usual = addresses(ServerProperties())
    assert usual == {
        "inference_address": ("127.0.0.1", 8080),
        "management_address": ("127.0.0.1", 8081),
        "grpc_inference_port": ("127.0.0.1", 7070),
        "grpc_management_port": ("127.0.0.1", 7071),
    }
    one = properties(place, "management_address=http://127.0.0.1:8080")
    assert "management_address" not in addresses(one)
    free = properties(
        place, "inference_address=http://127.0.0.1:0\nmanagement_address=http://127.0.0.1:0"
    )
    assert len(addresses(free)) == 4


def test_ports_that_were_reserved_are_those_of_all_processes(place: Path) -> None:
    start(place / "server", properties(place), place / "key_file.json")
    ports = {name: 9000 + number for number, name in enumerate(addresses(ServerProperties()))}
    fixed = read_door(place / "server").with_ports(ports)
    assert {name: port for name, (_, port) in addresses(fixed.properties).items()} == ports
    assert fixed.properties.inference_address[2] is False
