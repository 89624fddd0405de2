"""JSON bodies that are cheap to send and expensive to parse, and variants of them.

A round of an attack sends the body in its name, plain or compressed, and then variants of it, from
one client or several at once. They are refused, with a client error or for lack of capacity; valid
but unusual bodies get the response that Python's parser implies.
"""

import asyncio
import functools
import gzip
import json
import zlib
from collections.abc import Awaitable, Callable
from random import Random

import numpy as np

from tests.adversarial.attack import Attack, Target

MIB = 2**20
LINEAR, TEXTS = "/v2/models/linear/infer", "/v2/models/texts/infer"
REFUSALS = frozenset(("400", "413", "429", "503", "closed"))
SIZES = (500, 3_000, 32_000, 33_000, 100_000, MIB, 4 * MIB)
"""Approximate bytes: the body is parsed at once or in slices, refused before or after parsing."""
RIGHT = [2.0, 4.0, 6.0, 8.0]
"""Response to `USUAL`, unaffected by unknown members."""
USUAL = b'{"inputs":[{"name":"x","shape":[1,4],"datatype":"FP32","data":[1,2,3,4]}]}'

Make = Callable[[Random, int], bytes]
"""Creates a body of about that many bytes."""


def asking(
    data: bytes, shape: bytes = b"[1,4]", datatype: bytes = b"FP32", name: bytes = b"x"
) -> bytes:
    """Returns a request with this data, to `linear` unless its input has another name."""
    start = b'{"inputs":[{"name":"%b","shape":%b,"datatype":"%b",' % (name, shape, datatype)
    return start + b'"data":%b}]}' % data


def listed(unit: bytes, size: int) -> bytes:
    """Returns a list of one element, repeated for so many bytes."""
    return b"[" + (unit + b",") * max(1, size // (len(unit) + 1)) + unit + b"]"


def put(random: Random, member: bytes) -> bytes:
    """Returns a request with extra members, at any place: `"a":1,"b":2`, or one of them."""
    place = random.randrange(4)
    if place == 0:
        return USUAL[:-1] + b"," + member + b"}"
    if place == 1:
        return b"{" + member + b"," + USUAL[1:]
    if place == 2:
        return USUAL.replace(b'"name"', member + b',"name"')
    return USUAL[:-1] + b',"parameters":{' + member + b"}}"


def keys(random: Random, size: int) -> bytes:
    """Creates very many members, with one name or different names."""
    value = random.choice((b"1", b"null", b"[]", b"{}", b'""', b'"' + b"v" * 200 + b'"'))
    name = random.choice((b"k%d", b"%d", b"k" * 100 + b"%d", b"inputs%d", b"\\u0061%d"))
    unit = len(name) + len(value) + 4
    number = max(300, size // unit)
    return put(random, b",".join(b'"%b":%b' % (name % n, value) for n in range(number)))


def many_keys(_: Random) -> bytes:
    """Creates 80,000 keys, which once took 27 s."""
    return b"{" + b",".join(b'"k%d":1' % n for n in range(80_000)) + b"," + USUAL[1:]


def empty_lists(random: Random, size: int) -> bytes:
    """Creates empty lists and objects, in place of elements, inputs or anything else."""
    unit = random.choice((b"[]", b"{}", b"[[]]", b"[],[]", b"[0]", b'""', b"null", b"[1,[]]"))
    many = listed(unit, size)
    place = random.randrange(5)
    if place == 0:
        return asking(many)
    if place == 1:
        return asking(many, b"[%d,1]" % random.choice((1, size // 3, size // 2)))
    if place == 2:
        return b'{"inputs":' + many + b"}"
    if place == 3:
        return many
    return put(random, b'"more":' + many)


def wrong_shapes(random: Random, size: int) -> bytes:
    """Creates numbers that contradict the count, nesting or kind of their shape; invalid shapes."""
    number = random.choice((b"0", b"1.5", b"-0.0", b"1e-320", b"123456789.123456789"))
    if random.random() < 0.5:
        shape = random.choice((b"[1,4]", b"[64,4]", b"[0,4]", b"[%d,4]" % (size // 4), b"[]"))
        return asking(listed(number, size), shape)
    shape = random.choice(
        (
            b"[%d,4]" % 2**61, b"[-1,4]", b"[1.0,4]", b"[true,4]", b'["1",4]', b"4", b"null",
            b"[99999999999999999999,4]", listed(b"1", size), listed(b"4611686018427387904", size),
            b"[" * 2000 + b"]" * 2000, b"[1,4,0]", listed(b"0", size),
        )
    )  # fmt: skip
    return asking(b"[1,2,3,4]", shape)


def nesting(random: Random, size: int) -> bytes:
    """Creates nested lists or objects, closed or not."""
    opening, closing = random.choice(((b"[", b"]"), (b'{"a":', b"}"), (b'[{"data":', b"}]")))
    depth = max(300, size // (len(opening) + len(closing)))
    deep = opening * depth + b"1" + closing * random.choice((depth, depth - 1, 0))
    place = random.randrange(5)
    if place == 0:
        return asking(deep)
    if place == 1:
        return deep
    if place == 2:
        return USUAL.replace(b'"x"', deep)
    if place == 3:
        return USUAL.replace(b"[1,4]", deep)
    return put(random, b'"deep":' + deep)


def numbers(random: Random, size: int) -> bytes:
    """Creates numbers with very many digits, or out of range of every type; invalid literals."""
    digits = bytes([random.randrange(49, 58)])
    long = random.choice((digits * size, b"1." + digits * size, b"1e" + digits * size))
    odd = random.choice((b"NaN", b"Infinity", b"-", b"01", b"1.", b".5", b"0x1", b"1e", b"+1"))
    large = random.choice((b"1e39", b"-1e400", b"9" * 400, b"1e999999999"))
    if random.random() < 0.5:
        return asking(listed(random.choice((odd, large)), size), b"[%d,4]" % max(1, size // 8))
    one = random.choice((long, odd, large))
    place = random.randrange(4)
    if place == 0:
        return asking(b"[1,2,3,%b]" % random.choice((odd, large, digits * max(size, 60))))
    if place == 1:
        return USUAL.replace(b"[1,4]", b"[1,%b]" % one)
    return USUAL[:-1] + b',"parameters":{"%b":%b}}' % (
        random.choice((b"timeout", b"priority")),
        one,
    )


def entries(random: Random, size: int) -> bytes:
    """Creates thousands of inputs, outputs or parameters."""
    one = USUAL[len(b'{"inputs":[') : -2]
    kind = random.randrange(4)
    if kind == 0:
        unit = random.choice((one, b"{}", b'{"name":"x"}', one.replace(b'"x"', b'"y"')))
        return b'{"inputs":%b}' % listed(unit, max(size, 200))
    if kind == 1:
        unit = random.choice((b'{"name":"nothing"}', b"{}", b'{"name":"y","parameters":{"a":[]}}'))
        return USUAL[:-1] + b',"outputs":%b}' % listed(unit, size)
    if kind == 2:
        many = b",".join(b'"p%d":[]' % n for n in range(max(1, size // 10)))
        return USUAL[:-1] + b',"parameters":{%b}}' % many
    return b'{"inputs":[%b,%b]}' % (one, listed(one, size))


def strings(random: Random, size: int) -> bytes:
    """Creates strings that are long, escaped throughout, invalid, or misplaced."""
    unit = random.choice(
        (b"a", b"\\\\", b'\\"', b"\\u0000", b"\\ud800", b"\xff", "é".encode(), b"[", b"\x01", b"\\")
    )
    text = b'"' + unit * max(1, size // len(unit)) + random.choice((b'"', b'"', b""))
    place = random.randrange(6)
    if place == 0:
        return asking(b"[1,2,3,%b]" % text)
    if place == 1:
        return USUAL.replace(b'"x"', text)
    if place == 2:
        return USUAL.replace(b'"FP32"', text)
    if place == 3:
        return USUAL.replace(b'"inputs"', text)
    if place == 4:
        return asking(listed(text, size))
    return USUAL[:-1] + b',"parameters":{"priority":%b}}' % text


def broken(random: Random, size: int) -> bytes:
    """Creates a valid body of some size that is truncated, or has trailing data."""
    rows = max(1, size // 16)
    whole = asking(listed(b"1.5", 4 * (4 * rows - 1)), b"[%d,4]" % rows)
    if random.random() < 0.3:
        return whole + random.choice((b"}", b"[]", b"x", b"\0", whole))
    return whole[: random.randrange(len(whole) - 1)]


def doubled(random: Random, size: int) -> bytes:
    """Creates repeated keys, the last of which is wrong."""
    key, value = random.choice(
        ((b"inputs", b"[]"), (b"data", b"[1,2,3]"), (b"shape", b"[4]"), (b"data", b"[[],[]]"))
    )
    many = b",".join([b'"%b":%b' % (key, value)] * max(2, size // (len(key) + len(value) + 4)))
    if key == b"inputs":
        return USUAL[:-1] + b"," + many + b"}"
    return USUAL[:-3] + b"," + many + b"}]}"


def texts(random: Random, size: int) -> bytes:
    """Creates BYTES as JSON: an invalid last element after many valid ones; or a wrong count."""
    unit = random.choice(
        (b'""', b'"a"', b'"\\u00e9\\n"', '"é"'.encode(), b'"' + b"t" * 3000 + b'"')
    )
    count = max(2, size // (len(unit) + 1))
    last = random.choice((b"1", b"null", b'"', b"[]", b'"\\ud800"', b"", b'"a""b"'))
    if random.random() < 0.2:
        count, last = 2, b'"%b' % (b"\\n" * (size // 2))
    data = b"[" + (unit + b",") * (count - 1) + last + b"]"
    return asking(data, b"[1,%d]" % count, b"BYTES", b"text")


@functools.lru_cache(maxsize=8)
def large_lists(size: int, unit: bytes, packed: bool) -> bytes:
    """Creates `[],[],`: 16 MiB took 6 s and 1 GiB; 60 MiB of it in 59 KiB, 20 s and 3.5 GiB."""
    body = asking(listed(unit, size))
    return gzip.compress(body, 9) if packed else body


async def _refused(target: Target, body: bytes, *fields: str, path: str = LINEAR) -> None:
    """Sends a body that must be refused, unless it has all of `USUAL`."""
    if target.key:
        fields += (f"x-api-key: {target.key}",)
    status, said = await target.post(path, body, *fields)
    if status == "200" and path == LINEAR and json.loads(said)["outputs"][0]["data"] == RIGHT:
        return
    if status not in REFUSALS:
        target.wrong(f"{status} to {len(body)} bytes {body[:100]!r}: {said[:200]!r}")


async def _send(target: Target, random: Random, body: bytes, path: str) -> None:
    """Sends the same, plain or compressed."""
    encoding = random.choice(("", "", "gzip", "deflate"))
    if not encoding:
        await _refused(target, body, path=path)
        return
    packed = gzip.compress(body, 1) if encoding == "gzip" else zlib.compress(body, 1)
    await _refused(target, packed, f"content-encoding: {encoding}", path=path)


def relatives(
    make: Make, named: Callable[[Random], bytes] | None = None, path: str = LINEAR
) -> Callable[[Target, Random], Awaitable[None]]:
    """Returns the attack with one kind of bodies.

    Args:
        make: creates a body.
        named: body that names the attack, sent first in each round.
        path: path of the request.
    """

    async def run(target: Target, random: Random) -> None:
        if named is not None:
            await _send(target, random, named(random), path)
        bodies = [make(random, random.choice(SIZES)) for _ in range(random.choice((1, 4, 12)))]
        await asyncio.gather(*(_send(target, random, body, path) for body in bodies))

    return run


async def large_empty_lists(target: Target, random: Random) -> None:
    """Sends 16 MiB plain, and 60 MiB compressed, from several clients at once."""
    unit = random.choice((b"[]", b"[]", b"{}", b"[[]]"))
    plain, packed = large_lists(16 * MIB, unit, False), large_lists(60 * MIB, unit, True)
    await asyncio.gather(
        _refused(target, plain),
        *(_refused(target, packed, "content-encoding: gzip") for _ in range(3)),
    )


async def zeros_of_a_wrong_shape(target: Target, random: Random) -> None:
    """Sends 16 MiB of zeros, which took 5 s until shapes were checked first; and 60 MiB gzipped."""
    unit = random.choice((b"0", b"0.0", b"[0]"))
    await asyncio.gather(
        _refused(target, large_lists(16 * MIB, unit, False)),
        _refused(target, large_lists(60 * MIB, unit, True), "content-encoding: gzip"),
    )


async def binary_lengths(target: Target, random: Random) -> None:
    """Sends JSON before binary data, with lengths that contradict the data."""
    size = random.choice((16, 15, 0, 2**31, 2**63, -1, 10**30, 100_000))
    head = USUAL.replace(b'"data":[1,2,3,4]', b'"parameters":{"binary_data_size":%d}' % size)
    length = random.choice((len(head), len(head) - 1, len(head) + 1, 1, 2**64, 10**40))
    data = bytes(random.choice((12, 17, 100_000, 4 * MIB)))
    await _refused(target, head + data, f"inference-header-content-length: {length}")
    unit = random.choice((bytes(4), b"\x01\x00\x00\x00a", b"\x02\x00\x00\x00ab"))
    count = random.choice((3, 1_000, 10_000, 800_000))
    claimed = random.choice((2**40, count + 1, count - 1, count - 1))
    binary = unit * count
    said = asking(b"", b"[1,%d]" % claimed, b"BYTES", b"text")
    said = said.replace(b'"data":', b'"parameters":{"binary_data_size":%d}' % len(binary))
    await _refused(
        target, said + binary, f"inference-header-content-length: {len(said)}", path=TEXTS
    )


def _number(random: Random) -> str:
    """Returns an FP32 number in an unusual notation."""
    value = random.choice(
        (random.uniform(-1e3, 1e3), random.randrange(-(2**40), 2**40), 0.0, 1e-42)
    )
    return random.choice(
        (
            repr(value),
            f"{value:.30e}",
            f"{value:.3E}",
            f"{value:.40f}",
            f"{int(value)}",
            f"{value:e}",
        )
    )


def _spaced(random: Random, text: str) -> str:
    """Inserts white space into JSON."""
    space = random.choice(("", " ", "\n\t", " " * 50))
    return text.replace(",", f"{space},{space}").replace("[", f"[{space}").replace("]", f"{space}]")


async def unusual_but_right(target: Target, random: Random) -> None:
    """Sends numbers in every notation, flat or nested, with spaces and members in any order."""
    rows = random.choice((1, 3, 64))
    digits = random.choice((0, 0, 300))  # some bodies are large for their content
    written = [[_number(random) for _ in range(4)] for _ in range(rows)]
    lines = [",".join(row) for row in written]
    data = ",".join(f"[{line}]" for line in lines) if random.random() < 0.5 else ",".join(lines)
    members = [
        '"name":"x"', f'"shape":[{rows},4]', '"datatype":"FP32"',
        f'"data":{_spaced(random, f"[{data}]")}',
    ]  # fmt: skip
    random.shuffle(members)
    more = f'"id":"{"i" * digits}","parameters":{{"p":"{" " * random.choice((0, 40_000))}"}},'
    body = f'{{{random.choice(("", more))}"inputs":[{{{",".join(members)}}}]}}'.encode()
    fields = (f"x-api-key: {target.key}",) if target.key else ()
    status, said = await target.post(LINEAR, body, *fields)
    expected = np.array([[float(one) for one in row] for row in written], np.float32) * 2
    if status == "200":
        found = np.array(json.loads(said)["outputs"][0]["data"], np.float32)
        if not np.array_equal(found, expected.ravel()):
            target.wrong(f"{body[:300]!r} gave {said[:300]!r}")
    elif status not in ("429", "503"):
        target.wrong(f"{status} to a right body {body[:300]!r}: {said[:300]!r}")


async def texts_of_all_kinds(target: Target, random: Random) -> None:
    """Sends valid texts: few or many, long or short, with escapes; as JSON or binary."""
    some = ("", "a", 'q"\\', "é\n", "\u2028", "\U0001f600", "[", "],")
    texts = [random.choice(some) * random.choice((1, 1, 40)) for _ in range(random.choice((1, 9)))]
    texts *= random.choice((1, 1, 300))
    texts += ["x" * random.choice((0, 9_000, 300_000)) + random.choice(some)]
    coded = [text.encode() for text in texts]
    expected = [len(texts), sum(map(len, coded)), 0, 0]
    shape = b"[1,%d]" % len(texts)
    fields: tuple[str, ...] = (f"x-api-key: {target.key}",) if target.key else ()
    if random.random() < 0.5:
        data = json.dumps(texts, ensure_ascii=random.random() < 0.5)
        body = asking(data.encode(), shape, b"BYTES", b"text")
    else:
        binary = b"".join(len(one).to_bytes(4, "little") + one for one in coded)
        body = asking(b"", shape, b"BYTES", b"text").replace(
            b'"data":', b'"parameters":{"binary_data_size":%d}' % len(binary)
        )
        fields += (f"inference-header-content-length: {len(body)}",)
        body += binary
    status, said = await target.post(TEXTS, body, *fields)
    if status == "200":
        if json.loads(said)["outputs"][0]["data"] != expected:
            target.wrong(f"{body[:300]!r} gave {said[:300]!r}")
    elif status not in ("429", "503"):
        target.wrong(f"{status} to right texts {body[:300]!r}: {said[:300]!r}")


KINDS: tuple[tuple[str, Make, str], ...] = (
    ("empty lists anywhere", empty_lists, LINEAR),
    ("numbers and shapes that differ", wrong_shapes, LINEAR),
    ("deep nesting", nesting, LINEAR),
    ("huge numbers", numbers, LINEAR),
    ("inputs, outputs, parameters", entries, LINEAR),
    ("long and broken strings", strings, LINEAR),
    ("broken off, or gone on", broken, LINEAR),
    ("doubled keys", doubled, LINEAR),
    ("BYTES", texts, TEXTS),
)


async def of_callers(target: Target, random: Random) -> None:
    """Sends any of the bodies, with a key."""
    kind, path = random.choice([(make, path) for _, make, path in KINDS] + [(keys, LINEAR)])
    await relatives(kind, path=path)(target, random)


async def of_strangers(target: Target, random: Random) -> None:
    """Sends any of the bodies without a key: refused as unauthenticated, whatever the body."""
    make = random.choice([make for _, make, _ in KINDS] + [keys])
    field = random.choice(("x-none: 1", "x-api-key: wrong", "authorization: Bearer a.b.c"))
    body = make(random, random.choice(SIZES))
    more = random.choice((("content-encoding: gzip",), ()))
    for status, _ in await asyncio.gather(
        *(target.post(LINEAR, gzip.compress(body, 1) if more else body, field, *more)
          for _ in range(4))
    ):  # fmt: skip
        if status not in ("401", "closed"):
            target.wrong(f"{status} to a stranger's {body[:100]!r}")


ATTACKS = (
    Attack("JSON: 80,000 keys", relatives(keys, many_keys)),
    Attack("JSON: 16 and 60 MiB of empty lists", large_empty_lists),
    Attack("JSON: zeros of a wrong shape", zeros_of_a_wrong_shape),
    *(Attack(f"JSON: {name}", relatives(make, path=path)) for name, make, path in KINDS),
    Attack("JSON: lengths of binary data", binary_lengths),
    Attack("JSON: unusual but right", unusual_but_right),
    Attack("JSON: texts of all kinds", texts_of_all_kinds),
    Attack("JSON: of callers with a key", of_callers, "keyed"),
    Attack("JSON: of strangers", of_strangers, "keyed"),
)
