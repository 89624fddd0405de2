"""Bodies of REST submissions: bundles in pieces, and refusals before parsing."""

import asyncio
import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.errors import InvalidRequestError, PayloadTooLargeError
from services.trainer.edges import submission_body
from services.trainer.edges.submission_body import MAX_BESIDE_BYTES, MAX_MEMBERS, read_submission
from services.trainer.training_job_service import Submission

ESCAPES: list[dict[str, str]] = [
    {}, {"/": "\\/"}, {"=": "\\u003d"}, {mark: f"\\u{ord(mark):04x}" for mark in "/+=A"},
]  # fmt: skip
"""Escapes that some libraries write in JSON."""


async def read(body: bytes) -> Submission:
    return await read_submission(bytearray(body), "key")


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submission_body, "LARGE_BYTES", 8)
    monkeypatch.setattr(submission_body, "PIECE_BYTES", 16)


@pytest.mark.usefixtures("small_pieces")
@given(st.binary(max_size=200), st.sampled_from(ESCAPES), st.booleans())
def test_a_bundle_in_pieces_is_the_bundle(
    bundle: bytes, escapes: dict[str, str], is_last: bool
) -> None:
    text = (
        base64.b64encode(bundle)
        .decode()
        .translate({ord(mark): escape for mark, escape in escapes.items()})
    )
    parts = ['"recipe": "a \\"bundle_base64\\": b, é"', '"name": "bundle_base64"']
    parts.insert(1 if is_last else 0, f'"bundle_base64" : "{text}"')
    body = "{" + ", ".join(parts if is_last else parts[::-1]) + "}"
    found = asyncio.run(read(body.encode()))
    assert found.bundle == bundle
    assert found.recipe == 'a "bundle_base64": b, é'
    assert (found.name, found.overrides, found.idempotency_key) == ("bundle_base64", (), "key")


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize(
    "text",
    ["A" * 15 + "*" + "A" * 40, "A" * 39, "AA==" * 20, "A" * 14 + "==" + "A" * 40, "A" * 40 + "\\n",
     "é" * 30, "A" * 30 + "\\\\" + "A" * 30, "A" * 40 + '\\"'],
)  # fmt: skip
def test_what_is_not_base64_is_refused(text: str) -> None:
    for body in (f'{{"recipe": "", "bundle_base64": "{text}"}}', f'{{"bundle_base64": "{text}'):
        with pytest.raises(InvalidRequestError, match=r"not base64|the body is not a job"):
            asyncio.run(read(body.encode()))


@pytest.mark.usefixtures("small_pieces")
def test_a_bundle_elsewhere_is_none() -> None:
    for body in (
        b'{"recipe": {"bundle_base64": "QUFBQQ=="}}',
        b'{"recipe": {"bundle_base64": "QUFBQQ=="}, "bundle_base64": "QkJCQg=="}',
    ):
        with pytest.raises(InvalidRequestError, match="must be a key of the body itself"):
            asyncio.run(read(body))


def test_an_object_is_written_out_with_its_characters() -> None:
    recipe = {"name": "\U0001f600", "tabs": ["\t", 1e-5]}
    body = json.dumps({"recipe": recipe, "overrides": ["a=1", "b=2"], "name": "n"}, indent="\t")
    found = asyncio.run(read(body.encode()))
    assert json.loads(found.recipe) == recipe
    assert "\U0001f600" in found.recipe
    assert "\n" not in found.recipe
    assert (found.name, found.overrides) == ("n", ("a=1", "b=2"))


@pytest.mark.parametrize(
    ("body", "error", "message"),
    [
        (b'{"recipe":{"a":[' + b"[]," * 7_000_000 + b"[]]}}", PayloadTooLargeError, "beside"),
        (b'{"recipe":"' + b"a" * MAX_BESIDE_BYTES + b'"}', PayloadTooLargeError, "beside the"),
        (b'{"recipe":{"a":[' + b"[]," * MAX_MEMBERS + b"[]]}}", InvalidRequestError, "members"),
        (b'{"recipe":"","overrides":[' + b'"",' * 50_000 + b'""]}', InvalidRequestError, "bytes"),
        (b'{"recipe":{"a":' + b"[" * 500_000 + b"]" * 500_000 + b"}}", InvalidRequestError, "not a "
        "job"),
        (b'{"recipe":{"a":' + b"[" * 900 + b"]" * 900 + b"}}", InvalidRequestError, "not a job"),
        (b'{"recipe":{"a":1' + b"0" * 40 + b"}}", InvalidRequestError, "not a job: Integer "
        "exceeds"),
        (b'{"recipe":1}', InvalidRequestError, "Expected `str`, got `int`"),
        (b'{"recipe":"","overrides":[1]}', InvalidRequestError, "Expected `str`, got `int`"),
        (b'{"recipe":"\xff"}', InvalidRequestError, "the body is not a job"),
        (b"", InvalidRequestError, "the body is not a job"),
    ],
)  # fmt: skip
def test_what_is_too_much_or_wrong_is_refused(
    body: bytes, error: type[InvalidRequestError], message: str
) -> None:
    with pytest.raises(InvalidRequestError, match=message) as refused:
        asyncio.run(read(body))
    assert type(refused.value) is error


async def test_other_calls_have_their_turn_while_a_bundle_is_read() -> None:
    text = base64.b64encode(bytes(12 * 2**20))
    reading = asyncio.create_task(read(b'{"recipe": "", "bundle_base64": "%b"}' % text))
    turns = 0
    while not reading.done():
        await asyncio.sleep(0)
        turns += 1
    assert (await reading).bundle == bytes(12 * 2**20)
    assert turns > len(text) // submission_body.PIECE_BYTES
