"""Messages of TensorFlow Serving's `Predict` that are cheap to send and expensive to read.

As `attacks_grpc.py`: each is refused, or answered with its own numbers.
"""

import asyncio
import struct
from collections.abc import Awaitable, Callable
from random import Random

from tests.adversarial.attack import Attack, Target
from tests.adversarial.attacks_grpc import REFUSALS, RIGHT, SIZES, Make, field, varint
from tests.adversarial.http2_bytes import call_all

MIB = 2**20
PATH = "/tensorflow.serving.PredictionService/Predict"
SPEC, INPUTS, FILTER = 1, 2, 3
"""Fields of `PredictRequest`."""
DTYPE, SHAPE, CONTENT, FLOATS, DOUBLES, INTS, TEXTS, LONGS = 1, 2, 4, 5, 6, 7, 8, 10
"""Fields of `TensorProto`."""


def tensor(dtype: int, shape: list[int], *more: bytes) -> bytes:
    """Encodes a tensor."""
    dims = b"".join(field(2, varint(1 << 3) + varint(size)) for size in shape)
    return varint(DTYPE << 3) + varint(dtype) + field(SHAPE, dims) + b"".join(more)


def asking(**inputs: bytes) -> bytes:
    """Encodes a request to `linear`."""
    named = (field(1, name.encode()) + field(2, value) for name, value in inputs.items())
    return field(SPEC, field(1, b"linear")) + b"".join(field(INPUTS, one) for one in named)


NUMBERS = struct.pack("4f", 1, 2, 3, 4)
USUAL = asking(x=tensor(1, [1, 4], field(CONTENT, NUMBERS)))


def many_fields(random: Random, size: int) -> bytes:
    """Creates inputs, names of outputs and models that are empty or small."""
    content = random.choice((b"", b"\x0a\x01x", b"\x12\x00", field(2, tensor(1, [1, 4]))))
    unit = field(random.choice((SPEC, INPUTS, FILTER, 7)), content)
    return random.choice((USUAL, b"")) + unit * max(1, size // len(unit))


def many_elements(random: Random, size: int) -> bytes:
    """Creates a tensor of many numbers or texts, packed or one by one, of a right or wrong type."""
    number = random.choice((FLOATS, DOUBLES, INTS, TEXTS, LONGS, 11, 13, 16, 17))
    content = random.choice(
        (field(number, b"\x01" * size), field(number, b"\xff" * size),
         field(number, (b"\xff" * 9 + b"\x01") * (size // 10)), field(TEXTS, b"") * (size // 2),
         (varint(number << 3) + b"\x01") * (size // 2), field(TEXTS, bytes(size)),
         field(number, b"\x01") * (size // 3))
    )  # fmt: skip
    dtype = random.choice((1, 2, 3, 4, 7, 9, 10, 14, 17, 19, 22, 23, 0, 8, 2**31))
    shape = random.choice(([1, 4], [size], [1, size], [size // 2], [2**62, 4], [-1, 4], []))
    return asking(**{random.choice(("x", "y")): tensor(dtype, shape, content)})


def shapes(random: Random, size: int) -> bytes:
    """Creates one value that stands for very many, and shapes that no array has."""
    shape = random.choice(
        ([size], [2**40], [2**62, 2**62], [-1], [0], [0, 2**62], [1] * 64, [1] * 65,
         [1] * (size // 4), [2**63 - 1] * 3, [MIB // 4], [MIB // 64])
    )  # fmt: skip
    value = random.choice(
        (field(FLOATS, NUMBERS[:4]), field(TEXTS, b"x"), field(TEXTS, bytes(size)),
         field(FLOATS, bytes(4 * (size // 8))) * 2, field(LONGS, b"\x01"), b"")
    )  # fmt: skip
    return asking(x=tensor(random.choice((1, 7, 9)), shape, value))


def damaged(random: Random, size: int) -> bytes:
    """Creates a valid message of some size with some bytes changed, or truncated."""
    rows = max(1, size // 16)
    number = random.choice((CONTENT, FLOATS))
    message = bytearray(asking(x=tensor(1, [rows, 4], field(number, bytes(16 * rows)))))
    for _ in range(random.choice((1, 2, 8))):
        message[random.randrange(min(len(message), 60))] = random.randrange(256)
    return bytes(message[: random.choice((len(message), random.randrange(len(message))))])


def unknown(random: Random, size: int) -> bytes:
    """Creates unknown fields of every wire type, in the message, an input or a tensor."""
    tag = varint(random.choice((0, 1, 5, 9, 15, 999, 2**29 - 1)) << 3 | random.randrange(8))
    unit = tag + random.choice((b"", b"\x00", b"\x80\x00", b"\xff" * 9 + b"\x01", bytes(8)))
    content = unit * (size // len(unit))
    return random.choice(
        (USUAL + content, asking(x=content), field(INPUTS, field(1, b"x") + content),
         asking(x=tensor(1, [1, 4], content, field(CONTENT, NUMBERS))))
    )  # fmt: skip


def relatives(make: Make) -> Callable[[Target, Random], Awaitable[None]]:
    """Returns the attack with one kind of messages, on some connections."""

    async def one(target: Target, random: Random) -> None:
        contents = [make(random, random.choice(SIZES)) for _ in range(random.choice((1, 8)))]
        for status, answer in await call_all(target, PATH, contents):
            right = make is damaged or RIGHT in answer
            if status not in REFUSALS | {"none"} and not (status == "OK" and right):
                target.wrong(f"{status} to {make.__name__}: {answer[:200]!r}")

    async def run(target: Target, random: Random) -> None:
        seeds = [Random(random.random()) for _ in range(random.choice((1, 4)))]
        await asyncio.gather(*(one(target, seed) for seed in seeds))

    return run


KINDS: tuple[tuple[str, Make], ...] = (
    ("fields by the thousand", many_fields),
    ("elements by the thousand", many_elements),
    ("shapes", shapes),
    ("damaged messages", damaged),
    ("unknown fields", unknown),
)
ATTACKS = tuple(Attack(f"gRPC: Predict, {name}", relatives(make)) for name, make in KINDS)
