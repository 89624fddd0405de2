"""Classes of large outputs, and JSON with numbers that JSON has no form for.

The model `typed` returns its inputs: a million of INT32 to be sorted, rows of any width, or more
classes than all limits; and bodies of up to 60 KB of `NaN`, some broken at the end.
"""

import json
import random as chance
import struct
from functools import cache
from random import Random

from tests.adversarial.attack import Attack, Target
from tests.adversarial.victim import TYPED

COUNTS = (1, 5, 1000, 4096, 4097, 2**31, 2**62)
SHAPES = ((1, 1_000_000), (1, 20_000), (60, 10_000), (64, 1000), (1, 3))
LINEAR, TYPED_PATH = "/v2/models/linear/infer", "/v2/models/typed/infer"


@cache
def _numbers(rows: int, columns: int) -> bytes:
    made = chance.Random(rows * columns)
    return struct.pack(
        f"<{rows * columns}i", *(made.getrandbits(31) for _ in range(rows * columns))
    )


def _head(shape: tuple[int, int], count: int) -> tuple[bytes, bytes]:
    inputs, data = [], b""
    for datatype in TYPED:
        size = 8 if datatype == "FP64" else int("".join(filter(str.isdigit, datatype))) // 8
        large = datatype == "INT32"
        raw = _numbers(*shape) if large else bytes(size * shape[0])
        sized = {"binary_data_size": len(raw)}
        sizes = shape if large else (shape[0], 1)
        inputs.append(
            {"name": f"in_{datatype}", "datatype": datatype, "shape": sizes, "parameters": sized}
        )
        data += raw
    wanted = {"name": "out_INT32", "parameters": {"classification": count}}
    return json.dumps({"inputs": inputs, "outputs": [wanted]}).encode(), data


async def classes(target: Target, random: Random) -> None:
    """Asks for the classes of an output, which are many, or too many."""
    shape, count = random.choice(SHAPES), random.choice(COUNTS)
    text, data = _head(shape, count)
    header = f"inference-header-content-length: {len(text)}"
    status, answer = await target.post(TYPED_PATH, text + data, header)
    target.count(status)
    found = min(count, shape[1])
    if status == "200" and answer.count(b":") < shape[0] * found:
        target.wrong(f"{count} classes of {shape} gave {answer[:200]!r}")
    fits = found <= 4096 and found * shape[0] <= 2**17
    if status not in ("200" if fits else "400", "503"):
        target.wrong(f"{status} to {count} classes of {shape}: {answer[:200]!r}")


async def beyond_numbers(target: Target, random: Random) -> None:
    """Sends NaN and infinity, as many as a small or a large body holds; some bodies are broken."""
    count = random.choice((4, 4000, 8000, 15_000))
    words = random.choices(("NaN", "Infinity", "-Infinity", "1"), k=count)
    broken = random.random() < 0.5
    end = random.choice(("nan", "[" * 5000, '"', "NaN" * 100)) if broken else "0"
    numbers = ",".join([*words, end]).encode()
    entry = b'{"name":"x","datatype":"FP32","shape":[1,%d],"data":[%b]}' % (count + 1, numbers)
    body = b'{"inputs":[%b]}' % entry
    status, answer = await target.post(LINEAR, body)
    target.count(status)
    if status not in ("400", "503"):  # it has four columns
        target.wrong(f"{status} to {body[:100]!r}: {answer[:200]!r}")


ATTACKS = (
    Attack("classification: many classes of large outputs", classes),
    Attack("classification: NaN and infinity in JSON", beyond_numbers),
)
