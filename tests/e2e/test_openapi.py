"""The OpenAPI document and the page that displays it."""

import json
import re

import pytest

from tests.e2e.rest_calls import call, linear_input
from tests.fixtures.servers import ServerProcess

INFER = json.dumps({"inputs": [linear_input([1, 2, 3, 4])]}).encode()
GENERATE = json.dumps({"x": [1, 2, 3, 4]}).encode()

METHODS = ("get", "post", "delete")


def test_openapi_names_only_what_there_is(server: ServerProcess) -> None:
    document = call(server, "GET", "/openapi.json").json()
    assert document["openapi"].startswith("3.")
    operations = [
        (method, path) for path, item in document["paths"].items() for method in METHODS
        if method in item
    ]  # fmt: skip
    submitted = call(server, "POST", "/v2/models/linear/jobs", INFER)
    keeps_jobs = submitted.status != 501
    assert len(operations) == (19 if keeps_jobs else 13)
    job = submitted.json()["id"] if submitted.status == 202 else "linear.0123456789abcdef"
    call(server, "GET", f"/v2/jobs/{job}?wait=30s")
    for method, path in operations:
        url = path.format(model="linear", version="1", id=job)
        body = GENERATE if "/generate" in path else INFER
        reply = call(server, method.upper(), url, body if method == "post" else b"")
        assert reply.status in {200, 202}, path
        assert str(reply.status) in document["paths"][path][method]["responses"]


def test_openapi_references_resolve(server: ServerProcess) -> None:
    text = call(server, "GET", "/openapi.json").body.decode()
    document = json.loads(text)
    references = set(re.findall(r'"\$ref": ?"#/components/schemas/(\w+)"', text))
    assert references
    assert text.count('"$ref"') == len(re.findall(r'"#/components/schemas/\w+"', text))
    assert references <= set(document["components"]["schemas"])


@pytest.mark.parametrize("version", ["", "/versions/{version}"])
def test_openapi_documents_the_errors_of_infer(server: ServerProcess, version: str) -> None:
    document = call(server, "GET", "/openapi.json").json()
    responses = document["paths"][f"/v2/models/{{model}}{version}/infer"]["post"]["responses"]
    documented = {"200", "400", "404", "408", "413", "431", "500", "501", "503", "504"}
    assert documented <= set(responses)


def test_docs_need_no_other_host(server: ServerProcess) -> None:
    reply = call(server, "GET", "/docs")
    assert reply.status == 200
    assert reply.headers["content-type"].startswith("text/html")
    page = reply.body.decode()
    assert "/openapi.json" in page
    assert not re.findall(r"https?:|[\"'(]//", page)
