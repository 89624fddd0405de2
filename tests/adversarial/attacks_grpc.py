"""gRPC messages that are cheap to send and expensive to parse; typed numbers out of range.

The messages are encoded by our own code, as no library would encode them. Each is refused, or
answered with its own numbers: other numbers are reported as wrong, and so is a server error.
"""

import asyncio
import gzip
import struct
from collections.abc import Awaitable, Callable
from random import Random

import numpy as np

from tests.adversarial.attack import Attack, Target
from tests.adversarial.http2_bytes import (
    DATA,
    END_HEADERS,
    END_STREAM,
    GRPC_INFER,
    HEADERS,
    PREFACE,
    SETTINGS,
    block,
    call_all,
    frame,
    message,
)

MIB = 2**20
SUBMIT = "/flambeau.v1.JobService/SubmitJob"
PATHS = (
    GRPC_INFER,
    GRPC_INFER,
    GRPC_INFER,
    "/inference.GRPCInferenceService/ModelMetadata",
    SUBMIT,
)
SIZES = (100, 3_000, 31_000, 33_000, 200_000, 520_000, 4 * MIB)
REFUSALS = frozenset(
    ("INVALID_ARGUMENT", "NOT_FOUND", "RESOURCE_EXHAUSTED", "UNIMPLEMENTED", "UNAVAILABLE")
)
MODEL, INPUT, OUTPUT, RAW, PARAMETER = 1, 5, 6, 7, 4
"""Fields of `ModelInferRequest`."""
CONTENTS = {
    "INT8": (2, "i1"), "INT16": (2, "i2"), "INT32": (2, "i4"), "INT64": (3, "i8"),
    "UINT8": (4, "u1"), "UINT16": (4, "u2"), "UINT32": (4, "u4"), "UINT64": (5, "u8"),
}  # fmt: skip
"""Contents field and NumPy name of each datatype."""

Make = Callable[[Random, int], bytes]
"""Creates a message of about that many bytes."""


def varint(value: int) -> bytes:
    """Encodes a number; negative ones as 64 bits."""
    value &= 2**64 - 1
    out = b""
    while value > 127:
        out, value = out + bytes([value & 127 | 128]), value >> 7
    return out + bytes([value])


def field(number: int, content: bytes) -> bytes:
    """Encodes a field of bytes, text, a message or packed numbers."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def tensor(name: str, datatype: str, shape: list[int], *more: bytes) -> bytes:
    """Encodes an input."""
    packed = b"".join(map(varint, shape))
    parts = (field(1, name.encode()), field(2, datatype.encode()), field(3, packed), *more)
    return field(INPUT, b"".join(parts))


def asking(*inputs: bytes, model: str = "linear") -> bytes:
    """Encodes a request."""
    return field(MODEL, model.encode()) + b"".join(inputs)


USUAL = asking(tensor("x", "FP32", [1, 4]), field(RAW, struct.pack("4f", 1, 2, 3, 4)))

RIGHT = struct.pack("4f", 2, 4, 6, 8)
"""Bytes in every correct response to it."""


def many_fields(random: Random, size: int) -> bytes:
    """Creates inputs, outputs, raw tensors or parameters that are empty or small."""
    parameter = field(1, b"p") + field(2, b"\x10\x01")
    content = random.choice((b"", b"", b"\x0a\x01x", parameter, tensor("x", "FP32", [1, 4])))
    unit = field(random.choice((PARAMETER, INPUT, OUTPUT, RAW, MODEL)), content)
    return USUAL + unit * max(300, size // len(unit))


def fields_in_fields(random: Random, size: int) -> bytes:
    """Creates the maximum of fields in each of the maximum of inputs, or of requests of a job."""
    some = (varint(15 << 3) + b"\x01") * 1022 + field(15, bytes(random.choice((0, 16 * 1024))))
    unit = field(random.choice((INPUT, OUTPUT, PARAMETER, 1)), some)
    return random.choice((USUAL, b"")) + unit * (random.choice((size, 20 * MIB)) // len(unit) + 1)


def many_contents(random: Random, size: int) -> bytes:
    """Creates an input of many contents, parameters or dimensions, packed or one by one."""
    number = random.randrange(1, 9)
    one, text = varint(number << 3) + b"\x01", field(8, b"")
    content = random.choice(
        (field(5, field(number, b"\x01" * size)), field(5, field(number, b"\xff" * size)),
         field(5, one) * (size // 4), field(5, one * (size // 2)),
         field(5, text) * (size // 4), field(5, text * (size // 2)),
         field(4, field(1, b"p")) * (size // 5), field(3, b"\x01" * size), b"\x18\x01" * size)
    )  # fmt: skip
    datatype = random.choice((*CONTENTS, "FP32", "FP64", "BOOL", "BYTES", "nothing"))
    shape = random.choice(([1, 4], [size], [1, size], [2**62, 4], [-1, 4], []))
    return asking(tensor(random.choice(("x", "y")), datatype, shape, content))


def deep(random: Random, size: int) -> bytes:
    """Creates nested messages as unknown fields, and groups that do not end."""
    start = random.choice((b"\x7b", b"\x2b", b"\x0b"))
    if random.random() < 0.5:
        return random.choice((USUAL, b"")) + start * size
    content = b""
    while len(content) < min(size, 100_000):
        content = field(random.choice((5, 15, 999)), content + bytes(random.choice((0, 50, 5_000))))
    return USUAL + content


def unknown(random: Random, size: int) -> bytes:
    """Creates unknown fields of every wire type, known fields of a wrong one, and no fields."""
    tag = varint(random.choice((0, 1, 5, 7, 15, 999, 2**29 - 1)) << 3 | random.randrange(8))
    unit = tag + random.choice((b"", b"\x00", b"\x80\x00", b"\xff" * 9 + b"\x01", bytes(8)))
    return random.choice((USUAL, b"")) + unit * (size // len(unit))


def damaged(random: Random, size: int) -> bytes:
    """Creates a valid message of some size with some bytes changed, or truncated."""
    rows = max(1, size // 16)
    raw = field(RAW, bytes(16 * rows))
    contents = field(5, field(6, bytes(16 * rows)))
    message = bytearray(
        random.choice(
            (asking(tensor("x", "FP32", [rows, 4]), raw),
             asking(tensor("x", "FP32", [rows, 4], contents)),
             asking(tensor("x", "FP32", [rows, 4], contents), raw))
        )
    )  # fmt: skip
    for _ in range(random.choice((1, 2, 8))):
        message[random.randrange(min(len(message), 60))] = random.randrange(256)
    return bytes(message[: random.choice((len(message), random.randrange(len(message))))])


def raw_texts(random: Random, size: int) -> bytes:
    """Creates BYTES with inconsistent lengths, or with very many elements."""
    unit = random.choice((bytes(4), b"\x01\0\0\0a", b"\xff\xff\xff\xff", b"\x00\x00\x01\x00"))
    count = max(1, size // len(unit))
    claimed = random.choice((count + 1, count - 1, 2**18 + 1, 2**40))
    return asking(
        tensor("text", "BYTES", [1, claimed]), field(RAW, unit * count), model="texts"
    )  # fmt: skip


def relatives(make: Make) -> Callable[[Target, Random], Awaitable[None]]:
    """Returns the attack with one kind of messages, plain or compressed, on some connections."""

    async def one(target: Target, random: Random) -> None:
        contents = [make(random, random.choice(SIZES)) for _ in range(random.choice((1, 8)))]
        fields = [("x-api-key", target.key)] if target.key else []
        packed = random.random() < 0.3
        if packed:
            contents = [gzip.compress(content, 1) for content in contents]
            fields.append(("grpc-encoding", "gzip"))
        path = random.choice(PATHS)
        for status, answer in await call_all(target, path, contents, *fields, flag=packed):
            right = path != GRPC_INFER or make is damaged or RIGHT in answer
            if status not in REFUSALS | {"none"} and not (status == "OK" and right):
                target.wrong(f"{status} to {make.__name__}: {answer[:200]!r}")

    async def run(target: Target, random: Random) -> None:
        seeds = [Random(random.random()) for _ in range(random.choice((1, 4)))]
        await asyncio.gather(*(one(target, seed) for seed in seeds))

    return run


async def numbers_that_do_not_fit(target: Target, random: Random) -> None:
    """Sends typed contents in each integer type: within its range, at its ends, and beyond."""
    count = random.choice((1, 1, 3, 40))
    shape, inputs, fits = [1, count], [], True
    expected: dict[str, bytes] = {}
    for datatype, (number, dtype) in CONTENTS.items():
        limits = np.iinfo(dtype)
        values = [random.randint(int(limits.min), int(limits.max)) for _ in range(count)]
        width = np.iinfo({2: "i4", 3: "i8", 4: "u4", 5: "u8"}[number])
        if random.random() < 0.15:
            beyond = random.choice(
                (int(limits.max) + 1, int(limits.min) - 1, int(width.max), int(width.min),
                 random.randint(int(width.min), int(width.max)))
            )  # fmt: skip
            values[random.randrange(count)] = max(int(width.min), min(beyond, int(width.max)))
        fits = fits and all(limits.min <= value <= limits.max for value in values)
        packed = b"".join(map(varint, values))
        one_by_one = b"".join(varint(number << 3) + varint(value) for value in values)
        content = random.choice((field(number, packed), one_by_one))
        inputs.append(tensor(f"in_{datatype}", datatype, shape, field(5, content)))
        if fits:
            expected[datatype] = np.array(values, dtype).tobytes()
    doubles = [random.choice((1.5, -0.0, 1e308, 5e-324)) for _ in range(count)]
    data = struct.pack(f"<{count}d", *doubles)
    inputs.append(tensor("in_FP64", "FP64", shape, field(5, field(7, data))))
    random.shuffle(inputs)
    message = asking(*inputs, model="typed")
    fields = (("x-api-key", target.key),) if target.key else ()
    for status, answer in await call_all(target, GRPC_INFER, [message] * 3, *fields):
        if status == "OK" and not fits:
            target.wrong(f"OK to numbers that do not fit: {message[:300]!r}")
        elif status == "OK":
            _compare(target, answer, {**expected, "FP64": data})
        elif status == "INVALID_ARGUMENT" and fits:
            target.wrong(f"{status} to numbers that fit: {message[:300]!r}")
        elif status not in REFUSALS | {"none"}:
            target.wrong(f"{status} to {message[:300]!r}")


def _compare(target: Target, answer: bytes, expected: dict[str, bytes]) -> None:
    from protos import open_inference_pb2 as pb

    response = pb.ModelInferResponse.FromString(answer)
    for output in response.outputs:
        contents = [values for _, values in output.contents.ListFields()]
        dtype = {"FP64": "f8"}.get(output.datatype) or CONTENTS[output.datatype][1]
        found = np.array(list(contents[0]) if contents else [], dtype).tobytes()
        if found != expected.pop(output.datatype):
            target.wrong(f"{output.datatype} came back as {list(contents[0])}")
    if expected:
        target.wrong(f"no output for {sorted(expected)}")


async def by_strangers(target: Target, random: Random) -> None:
    """Sends any of the messages without a key, or with a wrong one: refused before it is parsed."""
    make = random.choice([make for _, make in KINDS])
    contents = [make(random, random.choice(SIZES)) for _ in range(4)]
    fields = random.choice(((), (("x-api-key", "wrong"),), (("authorization", "Bearer a.b.c"),)))
    for status, _ in await call_all(target, GRPC_INFER, contents, *fields):
        if status not in ("UNAUTHENTICATED", "none"):
            target.wrong(f"{status} to a stranger")


async def right_calls(target: Target, random: Random) -> None:
    """Sends valid calls, 4,000 at once on each connection; responses are read, or wait."""
    asked, coded = message(USUAL), block(GRPC_INFER)
    is_read = random.choice((True, False))

    async def flood() -> None:
        async with target.connection(target.grpc_port) as peer:
            reading = asyncio.create_task(peer.reader.read()) if is_read else None
            await peer.send(PREFACE, frame(SETTINGS, 0, 0))
            for stream in range(1, 8_001, 2):
                if target.over:
                    break
                await peer.send(
                    frame(HEADERS, END_HEADERS, stream, coded),
                    frame(DATA, END_STREAM, stream, asked),
                )
            if reading is not None:
                reading.cancel()

    await asyncio.gather(*(flood() for _ in range(random.choice((1, 8)))))


KINDS: tuple[tuple[str, Make], ...] = (
    ("fields by the thousand", many_fields),
    ("contents by the thousand", many_contents),
    ("fields in fields", fields_in_fields),
    ("deep messages", deep),
    ("unknown fields", unknown),
    ("damaged messages", damaged),
    ("texts that do not add up", raw_texts),
)

ATTACKS = (
    *(Attack(f"gRPC: {name}", relatives(make)) for name, make in KINDS),
    Attack("gRPC: numbers that do not fit", numbers_that_do_not_fit),
    Attack("gRPC: right calls by the thousand", right_calls),
    Attack("gRPC: contents of callers with a key", relatives(many_contents), "keyed"),
    Attack("gRPC: numbers of callers with a key", numbers_that_do_not_fit, "keyed"),
    Attack("gRPC: messages of strangers", by_strangers, "keyed"),
)
