"""Regions of shared memory: what is registered, read and written, and what is refused."""

import asyncio
import os
from pathlib import Path

import numpy as np
import pytest

from flambeau.protocol.tensors import TensorError
from services.errors import (
    ConflictError,
    InvalidRequestError,
    NotFoundError,
    PayloadTooLargeError,
    ServingError,
    TooManyInFlightError,
)
from services.gateway.shared_regions import regions
from services.gateway.shared_regions.region_table import RegionTable, make_table
from services.gateway.shared_regions.regions import (
    MAX_REGIONS_A_CALLER,
    RegionPart,
    RegionUse,
    SharedRegions,
    take_part,
)
from services.gateway.sliced_work import LARGE_BYTES, Slices, at_once

MAX_BYTES = 4 * 2**20
SIZE = 2**20


class Place:
    """A folder of objects, and the regions of two processes that share a table."""

    def __init__(self, folder: Path, pattern: str = "client*") -> None:
        self.folder = folder
        table = make_table()
        self.regions, self.others = (
            SharedRegions(pattern, MAX_BYTES, RegionTable(table), str(folder)) for _ in range(2)
        )
        os.close(table)

    def make(self, name: str, size: int = SIZE) -> Path:
        file = self.folder / name
        file.write_bytes(bytes(np.arange(size, dtype=np.uint32).astype(np.uint8)))
        return file

    async def register(
        self, name: str, key: str, offset: int = 0, byte_size: int = SIZE, owner: str = ""
    ) -> None:
        await self.regions.register(owner, name, key, offset, byte_size)

    def use(self, owner: str = "", *, there: bool = False) -> RegionUse:
        return RegionUse(self.others if there else self.regions, owner)


def read(use: RegionUse, part: RegionPart, shape: list[int] | None = None) -> bytes:
    shape = [part.byte_size] if shape is None else shape
    return bytes(at_once(use.read(part, "UINT8", shape, lambda _: None)))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


async def test_a_region_is_read_and_written_by_every_process(place: Place) -> None:
    file = place.make("client-1")
    await place.register("r", "/client-1", 100, 1000)
    before = file.read_bytes()
    for there in (False, True):
        found = read(place.use(there=there), RegionPart("r", 10, 20))
        assert found == before[110:130]
    use = place.use(there=True)
    use.outputs["y"] = RegionPart("r", 990, 10)
    assert at_once(use.write("y", [b"abc", memoryview(b"defg")])) == 7
    after = file.read_bytes()
    assert after[1090:1097] == b"abcdefg"
    assert (after[:1090], after[1097:]) == (before[:1090], before[1097:])


async def test_status_and_unregister(place: Place) -> None:
    place.make("client-1")
    await place.register("a", "/client-1")
    await place.register("b", "client-1", 8, 16)
    assert {one.name: (one.key, one.offset, one.byte_size) for one in place.others.status("")} == {
        "a": ("/client-1", 0, SIZE), "b": ("client-1", 8, 16),
    }  # fmt: skip
    with pytest.raises(ConflictError, match="'a' is registered already"):
        await place.register("a", "client-1")
    await place.others.unregister("", "a")
    await place.regions.unregister("", "nothing")
    assert [one.name for one in place.regions.status("")] == ["b"]
    with pytest.raises(NotFoundError, match="Unable to find system shared memory region: 'a'"):
        place.regions.status("", "a")
    await place.regions.unregister("")
    assert place.others.status("") == []


async def test_a_process_that_has_read_the_table_learns_of_a_change(place: Place) -> None:
    place.make("client-1")
    for names in (["a"], ["a", "b"]):
        await place.register(names[-1], "client-1")
        assert [one.name for one in place.others.status("")] == names
    await place.regions.unregister("", "a")
    assert [one.name for one in place.others.status("")] == ["b"]


async def test_callers_see_their_own_regions_alone(place: Place) -> None:
    place.make("client-1")
    await place.register("r", "client-1", owner="key:a")
    assert place.regions.status("key:b") == []
    with pytest.raises(NotFoundError):
        read(place.use("key:b"), RegionPart("r", 0, 1))
    await place.regions.unregister("key:b")
    assert read(place.use("key:a"), RegionPart("r", 1, 1)) == b"\x01"


@pytest.mark.parametrize(
    "key",
    [
        "",
        "/",
        ".",
        "..",
        "/..",
        "//client-1",
        "client/1",
        "../client-1",
        "client-\0",
        "client" * 60,
    ],
)
async def test_a_key_is_one_plain_name(place: Place, key: str) -> None:
    place.make("client-1")
    with pytest.raises(InvalidRequestError, match="the key of a shared memory region"):
        await place.register("r", key)


async def test_only_plain_objects_of_the_pattern_are_opened(place: Place, tmp_path: Path) -> None:
    place.make("secret")
    (tmp_path / "client-link").symlink_to(tmp_path / "secret")
    (tmp_path / "client-folder").mkdir()
    os.mkfifo(tmp_path / "client-fifo")
    with pytest.raises(InvalidRequestError, match="does not match 'client"):
        await place.register("r", "secret")
    for key in ("client-link", "client-folder", "client-fifo", "client-none"):
        async with asyncio.timeout(10):  # opening the FIFO would wait for its writer
            with pytest.raises(InvalidRequestError, match=key):
                await place.register("r", key)
    assert place.regions.status("") == []


@pytest.mark.parametrize(
    ("offset", "byte_size"),
    [(0, 0), (0, -1), (-1, 2), (0, SIZE + 1), (1, SIZE), (SIZE, 1), (2**62, 2**62)],
)
async def test_a_range_lies_within_the_object(place: Place, offset: int, byte_size: int) -> None:
    place.make("client-1")
    with pytest.raises(InvalidRequestError, match="are no part of the shared memory object"):
        await place.register("r", "client-1", offset, byte_size)


@pytest.mark.parametrize(
    "part", [RegionPart("r", 0, 101), RegionPart("r", 100, 1), RegionPart("r", 2**62, 2)]
)
async def test_a_part_lies_within_its_region(place: Place, part: RegionPart) -> None:
    place.make("client-1")
    await place.register("r", "client-1", 0, 100)
    use = place.use()
    with pytest.raises(InvalidRequestError, match="are no part of the shared memory region 'r'"):
        read(use, part)
    use.outputs["y"] = part
    with pytest.raises(InvalidRequestError, match="are no part of the shared memory region 'r'"):
        at_once(use.write("y", [b"1"]))


async def test_an_object_that_vanished_or_is_another_is_refused(place: Place) -> None:
    file = place.make("client-1")
    await place.register("r", "client-1")
    file.rename(place.folder / "client-2")
    with pytest.raises(InvalidRequestError, match="'client-1' cannot be read here: No such file"):
        read(place.use(), RegionPart("r", 0, 1))
    place.make("client-1")
    use = place.use()
    use.outputs["y"] = RegionPart("r", 0, 1)
    for act in (lambda: read(use, RegionPart("r", 0, 1)), lambda: at_once(use.write("y", [b"1"]))):
        with pytest.raises(InvalidRequestError, match="is another than when region 'r' was"):
            act()


async def test_an_object_that_is_truncated_while_it_is_read_or_written(place: Place) -> None:
    file = place.make("client-1", MAX_BYTES)
    await place.register("r", "client-1", 0, MAX_BYTES)
    whole = RegionPart("r", 0, MAX_BYTES)
    reading = place.use().read(whole, "UINT8", [MAX_BYTES], lambda _: None)
    next(reading)
    os.truncate(file, 1000)
    with pytest.raises(InvalidRequestError, match="has 1000 bytes"):
        at_once(reading)
    use = place.use()
    use.outputs["y"] = whole
    with pytest.raises(InvalidRequestError, match="has 1000 bytes"):
        at_once(use.write("y", [bytes(MAX_BYTES)]))
    assert file.stat().st_size == 1000  # it was not enlarged


async def test_an_output_never_exceeds_its_place(place: Place) -> None:
    file = place.make("client-1")
    await place.register("r", "client-1")
    before = file.read_bytes()
    use = place.use()
    use.outputs["y"] = RegionPart("r", 0, 4)
    with pytest.raises(InvalidRequestError, match="output 'y' has 5 bytes"):
        at_once(use.write("y", [b"12", b"345"]))
    assert file.read_bytes() == before


async def test_a_request_reads_as_much_as_it_may_send(place: Place) -> None:
    place.make("client-1", MAX_BYTES)
    await place.register("r", "client-1", 0, MAX_BYTES)
    use, reserved = place.use(), list[int]()
    for _ in range(4):
        at_once(use.read(RegionPart("r", 0, SIZE), "UINT8", [SIZE], reserved.append))
    with pytest.raises(PayloadTooLargeError, match="max_request_bytes"):
        at_once(use.read(RegionPart("r", 0, 1), "UINT8", [1], reserved.append))
    assert reserved == [SIZE] * 4

    def no_room(_: int) -> None:
        raise ServingError("full")

    with pytest.raises(ServingError, match="full"):
        at_once(place.use().read(RegionPart("r", 0, 1), "UINT8", [1], no_room))


async def test_one_request_at_a_time_reads_large_inputs(place: Place) -> None:
    place.regions.max_bytes = size = LARGE_BYTES + 1
    with place.make("client-1", 1).open("r+b") as file:
        file.truncate(size)
    await place.register("r", "client-1", 0, size)
    uses, reserved = [place.use() for _ in range(3)], [0] * 3

    def reading(number: int) -> Slices[memoryview]:
        def reserve(bytes_: int) -> None:
            reserved[number] += bytes_

        return uses[number].read(RegionPart("r", 0, size), "UINT8", [size], reserve)

    first, second = reading(0), reading(1)
    next(first)
    for _ in range(100):
        next(second)
    assert reserved == [size, 0, 0]
    assert read(place.use(), RegionPart("r", 0, 1)) == b"\0"  # a small one does not wait
    first.close()
    next(second)
    assert reserved == [size, 0, 0], "the first may have further inputs"
    uses[0].leave()
    assert len(at_once(second)) == size
    uses[0].leave()
    third = reading(2)
    next(third)
    assert reserved == [size, size, 0], "the second has not left"


async def test_the_size_must_be_that_of_the_tensor_before_anything_is_read(place: Place) -> None:
    with pytest.raises(TensorError, match="shared_memory_byte_size is 8; FP32 of"):
        at_once(place.use().read(RegionPart("r", 0, 8), "FP32", [1], lambda _: None))


async def test_regions_are_limited(place: Place) -> None:
    place.make("client-1")
    for number in range(MAX_REGIONS_A_CALLER):
        await place.register(f"r{number}", "client-1", owner="a")
    with pytest.raises(TooManyInFlightError, match="unregister some"):
        await place.register("one-more", "client-1", owner="a")
    await place.register("r", "client-1", owner="b")
    assert len(place.others.status("a")) == MAX_REGIONS_A_CALLER
    for name in ("", "x" * 129, "\0"):
        with pytest.raises(InvalidRequestError, match="the name of a shared memory region"):
            await place.register(name, "client-1", owner="b")


async def test_regions_of_all_callers_are_limited(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(regions, "MAX_REGIONS", 2)
    place.make("client-1")
    await place.register("r", "client-1", owner="a")
    await place.register("r", "client-1", owner="b")
    with pytest.raises(TooManyInFlightError, match=r"0 shared memory regions .* and 2 in all"):
        await place.register("r", "client-1", owner="c")
    await place.others.unregister("a")
    await place.register("r", "client-1", owner="c")
    assert [len(place.others.status(owner)) for owner in "abc"] == [0, 1, 1]


async def test_changes_of_two_processes_at_once_are_all_kept(place: Place) -> None:
    place.make("client-1")
    await asyncio.gather(
        *(
            regions.register("", f"{which}-{number}", "client-1", 0, 1)
            for number in range(50)
            for which, regions in enumerate((place.regions, place.others))
        )
    )
    assert len(place.regions.status("")) == len(place.others.status("")) == 100


@pytest.mark.parametrize(
    ("parameters", "found"),
    [
        ({}, None),
        ({"binary_data": True}, None),
        ({"shared_memory_region": "r", "shared_memory_byte_size": 4}, RegionPart("r", 0, 4)),
        (
            {"shared_memory_region": "r", "shared_memory_byte_size": 4, "shared_memory_offset": 2},
            RegionPart("r", 2, 4),
        ),
    ],
)
def test_parameters_of_a_tensor(parameters: dict[str, object], found: RegionPart | None) -> None:
    assert take_part(parameters, "input 'x'") == found


@pytest.mark.parametrize(
    "parameters",
    [
        {"shared_memory_region": "r"},
        {"shared_memory_region": "", "shared_memory_byte_size": 4},
        {"shared_memory_region": 1, "shared_memory_byte_size": 4},
        {"shared_memory_byte_size": 4},
        {"shared_memory_offset": 4},
        {"shared_memory_region": "r", "shared_memory_byte_size": 0},
        {"shared_memory_region": "r", "shared_memory_byte_size": True},
        {"shared_memory_region": "r", "shared_memory_byte_size": 4.0},
        {"shared_memory_region": "r", "shared_memory_byte_size": 2**63},
        {"shared_memory_region": "r", "shared_memory_byte_size": 4, "shared_memory_offset": -1},
    ],
)
def test_parameters_that_are_wrong(parameters: dict[str, object]) -> None:
    with pytest.raises(InvalidRequestError, match="input 'x'"):
        take_part(parameters, "input 'x'")
