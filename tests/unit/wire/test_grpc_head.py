"""Headers of calls: parsed fields, and responses to invalid ones."""

from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.wire.http2.frames import DATA, END_HEADERS, END_STREAM, HEADERS, frame
from services.wire.http2.grpc_head import GrpcHead, MalformedError
from services.wire.http2.headers import MAX_FIELDS_BYTES
from tests.unit.wire.http2_wire import Service, begin, block, call, fields, message, wire
from tests.unit.wire.http_wire import settle

INVALID_ARGUMENT, RESOURCE_EXHAUSTED, UNIMPLEMENTED = 3, 8, 12


def head(**metadata: str) -> GrpcHead:
    """Builds the headers of a call."""
    return GrpcHead([(n.encode(), v.encode("latin-1")) for n, v in fields(**metadata)])


@pytest.mark.parametrize(
    ("given_value", "seconds"),
    [
        ("", None),
        ("2H", 7200),
        ("3M", 180),
        ("4S", 4),
        ("5m", 0.005),
        ("6u", 6e-6),
        ("7n", 7e-9),
        ("99999999S", 99_999_999),
        ("0S", 0),
    ],
)
def test_timeout(given_value: str, seconds: float | None) -> None:
    assert head(grpc_timeout=given_value).timeout_s == pytest.approx(seconds)
    assert head(grpc_timeout=given_value).refusal is None


@pytest.mark.parametrize(
    "value", ["5", "S", "123456789S", "-1S", "1.5S", "5 S", "5s", "1S1S", "\u00b2S"]
)
def test_timeout_that_is_none(value: str) -> None:
    refusal = head(grpc_timeout=value).refusal
    assert refusal is not None
    assert "grpc-timeout must be" in str(refusal)


@pytest.mark.parametrize(
    ("value", "encoding"), [("", ""), ("identity", ""), ("gzip", "gzip"), ("deflate", "deflate")]
)
def test_encoding(value: str, encoding: str) -> None:
    assert (head(grpc_encoding=value).encoding, head(grpc_encoding=value).refusal) == (
        encoding,
        None,
    )


@pytest.mark.parametrize(("count", "refused"), [(450, False), (500, True)])
def test_each_field_counts_for_more_than_its_letters(count: int, refused: bool) -> None:
    found = [(n.encode(), v.encode()) for n, v in fields()] + [(b"a", b"b")] * count
    assert (GrpcHead(found).refusal is not None) == refused


async def test_metadata_reach_whoever_answers() -> None:
    service = Service()
    w = wire(service)
    found = [*fields(), ("x-twice", "first"), ("x-twice", "second"), ("x-raw-bin", "AAE=")]
    w.send(frame(HEADERS, END_HEADERS, 1, block(found)))
    (seen,) = service.heads
    assert (seen.path, seen.http_status) == ("/t/Echo", 0)
    assert (seen.text("x-twice"), seen.text("x-raw-bin")) == ("first", "AAE=")
    assert seen.text("x-nothing") == ""
    assert service.opened[0].connection.peer == "ipv4:127.0.0.1:50000"


@pytest.mark.parametrize(
    ("metadata", "status", "words"),
    [
        ({"grpc_encoding": "br"}, UNIMPLEMENTED, "use gzip, deflate or identity"),
        ({"grpc_timeout": "soon"}, INVALID_ARGUMENT, "is 'soon'"),
        ({"x": "y" * MAX_FIELDS_BYTES}, RESOURCE_EXHAUSTED, f"over {MAX_FIELDS_BYTES} bytes"),
    ],
)
@pytest.mark.parametrize("ended", [True, False])
async def test_call_that_its_head_refuses(
    metadata: dict[str, str], status: int, words: str, ended: bool
) -> None:
    service = Service()
    w = wire(service)
    coded = block(fields(**metadata))
    flags = END_STREAM if ended else 0
    for at in range(0, len(coded), 16_000):
        last = at + 16_000 >= len(coded)
        kind = HEADERS if not at else 9
        w.send(frame(kind, (END_HEADERS * last) | (flags if not at else 0), 1, coded[at:][:16_000]))
    answer = w.answers()[1]
    assert (answer.status, answer.ended) == (status, True)
    assert words in unquote(answer.words)
    assert answer.reset is None
    assert len(service.refused) == 1
    if not ended:
        w.send(frame(DATA, END_STREAM, 1, message(b"x")))
    await settle()
    w.send(call(3))
    assert (w.answers()[3].status, w.last_words()) == (0, None)


@pytest.mark.parametrize("name", ["authorization", "x-api-key", "grpc-timeout", "grpc-encoding"])
@pytest.mark.parametrize("values", ["ab", "aa"])
def test_metadata_that_may_occur_once(name: str, values: str) -> None:
    """The same rule as for REST: a proxy in front may have read the other one."""
    given = {"grpc-timeout": "1S", "grpc-encoding": "gzip"}
    found = [(n.encode(), v.encode()) for n, v in fields()]
    found += [(name.encode(), given.get(name, value).encode()) for value in values]
    assert str(GrpcHead(found).refusal) == f"the metadata entry {name} occurs twice; give one"
    assert GrpcHead(found[:-1]).refusal is None


@pytest.mark.parametrize("method", ["GET", "PUT", "OPTIONS"])
@pytest.mark.parametrize("ended", [True, False])
async def test_other_methods(method: str, ended: bool) -> None:
    service = Service()
    w = wire(service)
    found = [(":method", method), *fields()[1:]]
    w.send(frame(HEADERS, END_HEADERS | (END_STREAM if ended else 0), 1, block(found)))
    answer = w.answers()[1]
    assert (answer.fields, answer.ended) == ({":status": "405"}, True)
    assert answer.reset is None
    assert not service.heads
    w.send(call(3))
    assert w.answers()[3].status == 0


@pytest.mark.parametrize("kind", ["", "text/html", "application/json", "application/grp"])
async def test_other_contents(kind: str) -> None:
    service = Service()
    w = wire(service)
    w.send(call(1, content_type=kind))
    assert w.answers()[1].fields == {":status": "415"}
    assert not service.heads


@pytest.mark.parametrize("kind", ["application/grpc+proto", "application/grpc;charset=utf-8"])
async def test_kinds_of_grpc(kind: str) -> None:
    w = wire()
    w.send(call(1, content_type=kind))
    assert w.answers()[1].status == 0


TOKEN = st.text(st.sampled_from("!#$%&'*+-.^_`|~09az:"), min_size=1, max_size=10)


@given(
    st.lists(st.tuples(st.one_of(TOKEN, st.binary(max_size=5)), st.binary(max_size=20)), max_size=9)
)
def test_any_fields_are_judged(found: list[tuple[str | bytes, bytes]]) -> None:
    """They make a head, or they are malformed; nothing else is raised."""
    usual = [(n.encode(), v.encode()) for n, v in fields()]
    extra = [(n.encode() if isinstance(n, str) else n, v) for n, v in found]
    for whole in (usual + extra, extra):
        try:
            seen = GrpcHead(whole)
        except MalformedError:
            continue
        assert all(not name.startswith(":") for name in seen.fields)


async def test_calls_without_a_message_of_a_route_that_refuses() -> None:
    service = Service()
    w = wire(service)
    w.send(begin(1, flags=END_STREAM, grpc_encoding="br"))
    assert [type(error).__name__ for error in service.refused] == ["UnsupportedError"]
