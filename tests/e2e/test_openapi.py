"""The OpenAPI document of a running server, and the models that it describes."""

import json
import re

import pytest
from openapi_spec_validator import validate

from tests.e2e.rest_calls import call, linear_input
from tests.fixtures.servers import ServerProcess
from tests.fixtures.split_servers import SplitServer

INFER = json.dumps({"inputs": [linear_input([1, 2, 3, 4])]}).encode()
BODIES = {
    "/generate": {"x": [1, 2, 3, 4]}, ":predict": {"instances": [[1, 2, 3, 4]]},
    "/repository/": {}, "/logging": {}, "/trace/setting": {},
}  # fmt: skip
"""Bodies of calls by a part of their paths; those of others are `INFER`."""
METHODS = ("get", "post", "delete")


def test_openapi_names_only_what_there_is(server: ServerProcess) -> None:
    document = call(server, "GET", "/openapi.json").json()
    assert document["openapi"].startswith("3.")
    operations = [
        (method, path) for path, item in document["paths"].items() for method in METHODS
        if method in item and "x-model" not in item[method] and "/registry/" not in path
    ]  # fmt: skip
    submitted = call(server, "POST", "/v2/models/linear/jobs", INFER)
    keeps_jobs = submitted.status != 501
    assert len(operations) == (43 if keeps_jobs else 37)
    job = submitted.json()["id"] if submitted.status == 202 else "linear.0123456789abcdef"
    call(server, "GET", f"/v2/jobs/{job}?wait=30s")
    for method, path in operations:
        url = path.format(model="linear", version="1", label="production", id=job)
        body = next((json.dumps(b).encode() for part, b in BODIES.items() if part in path), INFER)
        reply = call(server, method.upper(), url, body if method == "post" else b"")
        expected = {200, 202}
        if path.endswith("load"):  # models follow their pointers here
            expected = {503}
        elif "{label}" in path:  # the model has none
            expected = {404}
        assert reply.status in expected, (path, reply.body)
        assert str(reply.status) in document["paths"][path][method]["responses"]


def test_the_registry_is_described_where_the_store_is(server: ServerProcess) -> None:
    """A gateway of the split form has no store, and says where the registry is."""
    paths = call(server, "GET", "/openapi.json").json()["paths"]
    reply = call(server, "GET", "/v1/registry/models")
    push = call(server, "POST", "/v1/registry/uploads", b"{}", {"content-type": "application/json"})
    is_split = isinstance(server, SplitServer)
    assert any("/registry/" in path for path in paths) is not is_split
    assert (reply.status, push.status) == ((501, 501) if is_split else (200, 403))
    if is_split:
        for refused in (reply, push):
            assert "gateways have no model store" in refused.error()
            assert "a process of its own, `flambeau registry`" in refused.error()


def test_openapi_references_resolve(server: ServerProcess) -> None:
    text = call(server, "GET", "/openapi.json").body.decode()
    document = json.loads(text)
    references = set(re.findall(r'"\$ref": ?"#/components/schemas/(\w+)"', text))
    assert references
    assert references <= set(document["components"]["schemas"])
    headers = set(re.findall(r'"#/components/parameters/(\w+)"', text))
    assert headers == set(document["components"]["parameters"])
    assert text.count('"$ref"') == len(re.findall(r'"#/components/(?:schemas|parameters)/', text))


@pytest.mark.parametrize("version", ["", "/versions/{version}"])
def test_openapi_documents_the_errors_of_infer(server: ServerProcess, version: str) -> None:
    document = call(server, "GET", "/openapi.json").json()
    responses = document["paths"][f"/v2/models/{{model}}{version}/infer"]["post"]["responses"]
    documented = {"200", "400", "404", "408", "413", "431", "500", "501", "503", "504"}
    assert documented <= set(responses)


def test_each_model_is_described_and_takes_its_own_example(server: ServerProcess) -> None:
    document = call(server, "GET", "/openapi.json").json()
    validate(document)
    calls = {
        path: item["post"]["requestBody"]["content"].get("application/json", {})
        for path, item in document["paths"].items()
        if "x-model" in item.get("post", ())
    }
    assert {"/v2/models/linear/infer", "/v2/models/pair/infer", "/v2/models/echo/infer"} <= set(
        calls
    )
    assert "/v2/models/refused/infer" not in calls
    examples = {path: form["example"] for path, form in calls.items() if "example" in form}
    assert len(examples) > 5
    for path, example in examples.items():
        reply = call(server, "POST", path, json.dumps(example).encode())
        assert reply.status == 200, reply.body
        metadata = call(server, "GET", path.removesuffix("/infer"))
        assert metadata.json()["name"] in path
