"""REST routes other than inference, and the document that describes them."""

import re

import orjson
import pytest
from openapi_spec_validator import validate

from services.access.caller import Principal
from services.gateway.edges.openapi import openapi_document
from services.registry.rest_routes import PREFIX, RegistryRoutes
from tests.unit.gateway.edges.test_rest_edge import Edge, error_of
from tests.unit.wire.http_wire import on_loop, request, settle

JOBS = {
    "/v2/models/{model}/jobs",
    "/v2/models/{model}/versions/{version}/jobs",
    "/v2/jobs/{id}",
    "/v2/jobs/{id}/result",
}


@pytest.mark.parametrize(
    ("method", "path", "status", "words"),
    [
        ("GET", "/v2", 200, b'"name":"flambeau"'),
        ("GET", "/v2/", 200, b'"name":"flambeau"'),
        ("GET", "/v2/health/live", 200, b'"live":true'),
        ("GET", "/v2/health/live/", 404, b"unknown path"),
        ("GET", "/v2/health/ready", 503, b'"ready":false'),
        ("GET", "/v2/models/m", 200, b'"platform"'),
        ("GET", "/v2/models/m/versions/1/ready", 200, b'"ready":true'),
        ("GET", "/v2/models/n", 404, b"'n' is not served"),
        ("GET", "/openapi.json", 200, b"X-Request-Timeout-Ms"),
        ("GET", "/openapi.json", 200, b"/v2/models/m/infer"),
        ("POST", "/openapi.json", 405, b"not allowed"),
        ("GET", "/docs", 200, b"<!doctype html>"),
        ("GET", "/docs/request.mjs", 200, b"export function bodyOf"),
        ("GET", "/docs/nothing.mjs", 404, b"unknown path"),
        ("POST", "/v2", 405, b"POST is not allowed on /v2; use "),
        ("OPTIONS", "*", 404, b"unknown path *"),
        ("GET", "/v2%2Fhealth%2flive", 404, b"unknown path /v2%2Fhealth%2Flive"),
        ("GET", "/v2/models/m%2Fready", 404, b"'m%2Fready' is not served"),
        ("GET", "/v2/models/m%2Fversions%2F1", 404, b"'m%2Fversions%2F1' is not served"),
        ("POST", "/v2/models%2Fm%2Finfer", 404, b"unknown path"),
        ("POST", "/v2/models/m%2Finfer", 405, b"not allowed on"),
        ("GET", "/v2/models/m/../m", 404, b"unknown path"),
        ("GET", "/v2/models/%2e%2e", 404, b"'..' is not served"),
        ("GET", "/v2/models/m%252Fready", 404, b"is not served"),
        ("GET", "/v2/mod%65ls/%6D", 200, b'"platform"'),
    ],
)
def test_other_routes(method: str, path: str, status: int, words: bytes) -> None:
    async def test() -> None:
        edge = Edge()
        edge.wire.send(request(path, method=method))
        await settle()
        answer = edge.one()
        assert answer.status == status
        assert words in answer.body
        if status >= 400 and status != 503:
            error_of(answer)

    on_loop(test)


def test_host_header_is_never_said_back() -> None:
    async def test() -> None:
        edge = Edge()
        for path in ("/v2/health/live/", "/nowhere", "/v2/models/"):
            edge.wire.send(f"GET {path} HTTP/1.1\r\nhost: evil/x?y\r\n\r\n".encode())
        await settle()
        assert [answer.status for answer in edge.wire.answers()] == [404] * 3
        assert b"evil" not in edge.wire.output

    on_loop(test)


@pytest.mark.parametrize("with_jobs", [False, True])
def test_calls_of_jobs_are_shown_where_jobs_are_kept(with_jobs: bool) -> None:
    document = openapi_document("1", with_jobs=with_jobs)
    paths = document["paths"]
    assert {path for path in paths if "jobs" in path} == (JOBS if with_jobs else set())
    assert len(paths) == 34 + len(JOBS) * with_jobs
    assert ({"Job", "Jobs"} <= document["components"]["schemas"].keys()) == with_jobs
    assert (b"job" in orjson.dumps(document).lower()) == with_jobs


@pytest.mark.parametrize("with_jobs", [False, True])
def test_each_schema_of_the_document_describes_an_object_with_its_required_members(
    with_jobs: bool,
) -> None:
    document = openapi_document("1", with_jobs=with_jobs)
    schemas = document["components"]["schemas"]
    referenced = set(re.findall(rb"#/components/schemas/(\w+)", orjson.dumps(document)))
    assert {name.decode() for name in referenced} <= schemas.keys()
    for name, schema in schemas.items():
        if "properties" in schema:
            assert schema["type"] == "object", name
            assert set(schema.get("required", ())) <= schema["properties"].keys(), name
    assert schemas["Error"]["required"] == ["error"]
    assert {"name", "shape", "datatype"} == set(schemas["Tensor"]["required"])


def test_each_place_in_a_path_is_described() -> None:
    for path, item in openapi_document("1", with_jobs=True)["paths"].items():
        described = {one["name"] for one in item.get("parameters", ()) if one["in"] == "path"}
        assert described == set(re.findall(r"{(\w+)}", path)), path


def test_calls_of_the_registry_are_shown_where_there_is_one() -> None:
    without, document = (
        openapi_document("1", with_jobs=False, with_registry=shown) for shown in (False, True)
    )
    assert b"egistry" not in orjson.dumps(without)
    validate(document)
    routes = RegistryRoutes(None, lambda _: Principal(None, "")).routes()
    served = {(route.path, method) for route in routes for method in route.methods or ()}
    described = {
        (path, method.upper())
        for path, item in document["paths"].items()
        for method in item
        if path.startswith(PREFIX) and method != "parameters"
    }
    assert described == {(path, method) for path, method in served if method != "HEAD"}
    for path in without["paths"].keys() ^ document["paths"].keys():
        places = {one["name"] for one in document["paths"][path].get("parameters", ())}
        assert places == set(re.findall(r"{(\w+)}", path)), path


def test_a_gateway_without_a_store_says_where_the_registry_is() -> None:
    async def test() -> None:
        edge = Edge()
        edge.wire.send(request("/v1/registry/models", method="GET"))
        edge.wire.send(request("/v1/registry/uploads", b"{}"))
        await settle()
        answers = edge.wire.answers()
        assert [answer.status for answer in answers] == [501, 501]
        for answer in answers:
            assert "a process of its own, `flambeau registry`" in error_of(answer)

    on_loop(test)


def test_a_server_without_redis_shows_no_calls_of_jobs() -> None:
    async def test() -> None:
        edge = Edge()
        edge.wire.send(request("/openapi.json", method="GET"))
        await settle()
        assert not JOBS & orjson.loads(edge.one().body)["paths"].keys()

    on_loop(test)
