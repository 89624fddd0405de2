"""The OpenAPI document of the served models: what it says of each, and what it leaves out."""

import json
import time
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest
from openapi_spec_validator import validate
from prometheus_client import CollectorRegistry

from flambeau.protocol.signature import Padding, Signature, TensorSpec
from services.access.caller import Caller, Principal
from services.access.grants import Grant
from services.access.tenants import Tenants
from services.gateway.edges.documentation.open_document import MAX_DOCUMENT_BYTES, OpenDocument
from services.gateway.sliced_work import SlicedWork
from services.queueing.directory import Directory
from services.queueing.records import Lane, ServedVersion
from services.telemetry.access_metrics import AccessMetrics
from tests.fixtures.served_directory import serving
from tests.fixtures.signatures import one_to_one

EVERYONE = Principal(None, "")
SMALL_INTEGERS = Signature(
    inputs=(
        TensorSpec(name="pixels", datatype="UINT8", shape=(-1, -1, 3)),
        TensorSpec(name="rate", datatype="INT64", shape=(), batch_axis=None),
        TensorSpec(name="text", datatype="BYTES", shape=(-1,)),
        TensorSpec(name="bias", datatype="FP32", shape=(2,), batch_axis=None, optional=True),
    ),
    outputs=(TensorSpec(name="y", datatype="FP32", shape=(-1, 2)),),
    max_batch_size=4,
    limits={"pixels": {1: (5, 9)}},
)


def opened(directory: Directory) -> OpenDocument:
    return OpenDocument(directory, SlicedWork(), "1", with_jobs=True)


async def described(directory: Directory, principal: Principal = EVERYONE) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(await opened(directory).seen_by(principal))
    return found


def form_of(document: dict[str, Any], path: str) -> dict[str, Any]:
    content = document["paths"][path]["post"]["requestBody"]["content"]
    found: dict[str, Any] = content["application/json"]
    return found


def refusal_of(document: dict[str, Any], path: str, body: dict[str, Any]) -> str:
    """Returns why a body does not fit the schema of a model; empty if it does."""
    schema = {**form_of(document, path)["schema"], "components": document["components"]}
    try:
        jsonschema.Draft202012Validator(schema).validate(body)
    except jsonschema.ValidationError as error:
        return str(error.message)
    return ""


async def test_the_document_is_valid_openapi_and_has_an_example_that_fits() -> None:
    directory = serving(SMALL_INTEGERS, Lane("small", 3))
    directory.announce(
        ServedVersion(lane=Lane("m", 1), state="ready", signature=one_to_one((2, -1)))
    )
    document = await described(directory)
    validate(document)
    assert "/v2/models/small" in document["paths"]
    assert "/v2/models/m/versions/1/infer" in document["paths"]  # none of it is live
    path = "/v2/models/small/infer"
    example = form_of(document, path)["example"]
    assert [(one["name"], one["shape"]) for one in example["inputs"]] == [
        ("pixels", [1, 5, 3]), ("rate", []), ("text", [1]),
    ]  # fmt: skip
    assert refusal_of(document, path, example) == ""


Change = Callable[[list[dict[str, Any]]], None]


@pytest.mark.parametrize(
    "change",
    [
        lambda inputs: inputs[0].update(shape=[5, 5, 3]),  # more rows than a batch takes
        lambda inputs: inputs[0].update(shape=[1, 4, 3]),  # below a limit
        lambda inputs: inputs[0].update(shape=[1, 10, 3]),
        lambda inputs: inputs[0].update(shape=[1, 5, 4]),  # a fixed size
        lambda inputs: inputs[0].update(shape=[1, 5]),
        lambda inputs: inputs[0].update(datatype="INT8"),
        lambda inputs: inputs[0].update(data=[256] * 15),
        lambda inputs: inputs[0].update(name="pixel"),
        lambda inputs: inputs[2].update(data=[1]),
        lambda inputs: inputs.pop(1),
    ],
)
async def test_the_schema_refuses_what_the_server_refuses(change: Change) -> None:
    document = await described(serving(SMALL_INTEGERS, Lane("small", 1)))
    path = "/v2/models/small/infer"
    body = form_of(document, path)["example"]
    change(body["inputs"])
    assert refusal_of(document, path, body)


async def test_a_padded_length_has_its_limits_and_the_mask_may_be_missing() -> None:
    signature = Signature(
        inputs=(
            TensorSpec(name="tokens", datatype="INT64", shape=(-1, -1)),
            TensorSpec(name="mask", datatype="INT64", shape=(-1, -1)),
        ),
        outputs=(TensorSpec(name="y", datatype="FP32", shape=(-1, 2)),),
        max_batch_size=4,
        padding=Padding(inputs={"tokens": 1}, buckets=(8, 16), mask="mask"),
    )
    document = await described(serving(signature, Lane("padded", 1)))
    path = "/v2/models/padded/infer"
    body = form_of(document, path)["example"]
    assert [one["name"] for one in body["inputs"]] == ["tokens"]
    body["inputs"][0]["shape"] = [1, 17]
    assert "valid" in refusal_of(document, path, body)


async def test_an_input_without_a_json_form_leaves_binary_data_alone() -> None:
    signature = one_to_one((2,), datatype="FP16")
    document = await described(serving(signature, Lane("half", 1)))
    validate(document)
    content = document["paths"]["/v2/models/half/infer"]["post"]["requestBody"]["content"]
    assert list(content) == ["application/octet-stream"]


async def test_a_long_example_is_left_out() -> None:
    document = await described(serving(one_to_one((65,)), Lane("wide", 1)))
    assert "example" not in form_of(document, "/v2/models/wide/infer")


async def test_a_change_of_the_served_versions_is_seen_and_nothing_else_is_made_again() -> None:
    directory = serving(one_to_one((2,)), Lane("m", 1))
    document = opened(directory)
    before = await document.seen_by(EVERYONE)
    assert await document.seen_by(EVERYONE) is before
    directory.announce(ServedVersion(lane=Lane("m", 2), state="ready", signature=one_to_one((3,))))
    directory.make_live(Lane("m", 2))
    schema = form_of(json.loads(await document.seen_by(EVERYONE)), "/v2/models/m/infer")["schema"]
    (_, size) = schema["properties"]["inputs"]["items"]["properties"]["shape"]["prefixItems"]
    assert size == {"const": 3}
    directory.withdraw(Lane("m", 2))
    directory.withdraw(Lane("m", 1))
    assert b"/v2/models/m/" not in await document.seen_by(EVERYONE)


async def test_many_models_are_bounded_and_what_is_left_out_is_said() -> None:
    lanes = [Lane(f"model-{number}", 1) for number in range(2_000)]
    directory = serving(one_to_one((2,)), *lanes)
    document = opened(directory)
    found = await document.seen_by(EVERYONE)
    assert len(found) < MAX_DOCUMENT_BYTES + 64 * 1024
    shown = found.count(b"modelInfer-model-")
    said = json.loads(found)["info"]["description"]
    assert 0 < shown < 2_000
    assert f"{2_000 - shown} of the models are left out here" in said


async def test_a_model_of_very_many_tensors_is_left_out() -> None:
    inputs = tuple(TensorSpec(name=f"x{n}", datatype="FP32", shape=(-1,)) for n in range(200))
    outputs = (TensorSpec(name="y", datatype="FP32", shape=(-1,)),)
    wide = Signature(inputs=inputs, outputs=outputs, max_batch_size=1)
    document = await described(serving(wide, Lane("wide", 1)))
    assert "/v2/models/wide/infer" not in document["paths"]
    assert "1 of the models are left out here" in document["info"]["description"]


async def test_a_caller_sees_its_own_models_alone() -> None:
    directory = serving(one_to_one((2,)), Lane("mine", 1), Lane("theirs", 1))
    metrics = AccessMetrics(CollectorRegistry())
    tenant = Tenants(metrics).find("key:me", 1, 1)
    caller = Caller("key:me", [Grant("infer", "mine")], time.time() + 60, tenant, metrics)
    document = opened(directory)
    found = await document.seen_by(Principal(caller, ""))
    assert b"/v2/models/mine/infer" in found
    assert b"theirs" not in found
    assert b"theirs" in await document.seen_by(EVERYONE)
    assert b"theirs" not in await document.seen_by(Principal(caller, ""))
    assert b"mine" not in document.general
