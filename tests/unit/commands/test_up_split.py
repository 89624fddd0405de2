"""The ports and settings of the processes that `flambeau up-split` starts."""

from typing import Any

import pytest

from flambeau.commands.up_split import plan_processes
from services.settings import ConfigError


def ports(plan: dict[str, list[dict[str, Any]]], kind: str) -> list[tuple[int, ...]]:
    names = ("http_port", "grpc_port", "metrics_port")
    return [tuple(one[name] for name in names if name in one) for one in plan[kind]]


def test_no_two_processes_share_a_port() -> None:
    plan = plan_processes(50, 50, {})
    taken = [port for kind in plan for one in ports(plan, kind) for port in one]
    assert len(taken) == 203 == len({*taken})
    assert ports(plan, "gateway")[:2] == [(8000, 8001, 8002), (8010, 8011, 8012)]
    assert ports(plan, "inference")[:2] == [(8005,), (8015,)]
    assert ports(plan, "registry_server") == [(8007, 8008, 8009)]


def test_ports_follow_those_of_the_first_gateway_and_0_stays_0() -> None:
    plan = plan_processes(2, 2, {"http_port": 9000, "grpc_port": 0, "metrics_port": 9300})
    assert ports(plan, "gateway") == [(9000, 0, 9300), (9010, 0, 9310)]
    assert ports(plan, "inference") == [(9303,), (9313,)]
    free = plan_processes(1, 2, dict.fromkeys(("http_port", "grpc_port", "metrics_port"), 0))
    assert (ports(free, "gateway"), ports(free, "inference")) == ([(0, 0, 0)], [(0,), (0,)])


def test_a_setting_goes_to_those_that_know_it() -> None:
    plan = plan_processes(1, 1, {"store": "s", "threads": 3, "log_level": "debug"})
    (gateway,), (worker,) = plan["gateway"], plan["inference"]
    assert (worker["store"], worker["threads"], worker["log_level"]) == ("s", 3, "debug")
    assert gateway["log_level"] == "debug"
    assert gateway.keys().isdisjoint({"store", "threads"})
    (registry,) = plan["registry_server"]
    assert registry["store"] == "s"
    assert "threads" not in registry


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"max_queue_dept": 3}, "did you mean 'max_queue_depth'"),
        ({"http_port": "many"}, "'http_port' is 'many'"),
        ({"http_port": 65_530}, "'http_port' is 65540"),
        ({"queue": "redis://other"}, "'queue' cannot be set"),
    ],
)
def test_a_wrong_setting_is_named_before_anything_starts(
    given: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        plan_processes(2, 2, given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"http_port": 9000, "grpc_port": 9000}, "grpc_port and http_port are both 9000"),
        ({"http_port": 8002}, "http_port and metrics_port are both 8002"),
        (
            {"http_port": 8000, "grpc_port": 8010},
            "grpc_port of gateway 0 and http_port of gateway 1 are both 8010",
        ),
        (
            {"http_port": 9003, "grpc_port": 9001, "metrics_port": 9000},
            "http_port of gateway 0 and metrics_port of worker 0 are both 9003",
        ),
    ],
)
def test_two_ports_that_are_one_are_named(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan_processes(2, 2, given)
