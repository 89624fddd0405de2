"""Regions of shared memory: registered by callers, read and written by their requests.

Source: Triton's system shared memory extension.

Rules:
- a caller registers parts of objects whose names match the server's pattern, and sees, uses and
  unregisters its own regions alone; without credentials, all callers are one;
- each use opens the object again, and checks that it is the registered one and its size;
- a request reads at most `max_bytes` through regions, as it may send in its body; what it reads is
  charged as a body is, before it is read;
- bytes are copied in slices, so that no region blocks the event loop; one request at a time reads
  more than `LARGE_BYTES`, and the others take memory after it: to free 48 MiB takes 3 to 6 ms, and
  callers that leave would have it done for all of theirs in one turn.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from flambeau.protocol.tensors import DATATYPES, TensorError, element_count
from services.errors import (
    ConflictError,
    InvalidRequestError,
    NotFoundError,
    PayloadTooLargeError,
    TooManyInFlightError,
)
from services.gateway.shared_regions.kept_memory import MOST_KEPT_BYTES, KeptMemory
from services.gateway.shared_regions.region_table import Region, RegionTable
from services.gateway.shared_regions.shared_object import FOLDER, checked_key, opened_object
from services.gateway.sliced_work import LARGE_BYTES, Slices

MAX_REGIONS = 2048
MAX_REGIONS_A_CALLER = 512
MAX_NAME = 128
_STEP_BYTES = 512 * 1024
"""Bytes copied in a slice: some 0.2 ms."""
_PREFIX = "shared_memory_"
Reserve = Callable[[int], object]
"""Reserves memory for what is read (`edges/binary_texts.py`)."""


class RegionPart(NamedTuple):
    """The place of a tensor, as a request names it."""

    region: str
    offset: int
    byte_size: int


class SharedRegions:
    """The regions of a server's callers.

    Args:
        pattern: shell pattern of the names of objects that may be registered.
        max_bytes: most bytes that one request reads.
        table: the table of regions.
        folder: folder of the objects.
    """

    def __init__(
        self, pattern: str, max_bytes: int, table: RegionTable, folder: str = FOLDER
    ) -> None:
        self._pattern = pattern.removeprefix("/")
        self._table = table
        self.max_bytes = max_bytes
        self.folder = folder
        self.memory = KeptMemory(min(max_bytes, MOST_KEPT_BYTES))
        self.large_use: RegionUse | None = None
        """The request that reads large inputs."""

    async def register(self, owner: str, name: str, key: str, offset: int, byte_size: int) -> None:
        """Registers a part of an object.

        Raises:
            InvalidRequestError: the name, the key or the range is wrong, or no such object exists.
            ConflictError: the name is taken.
            TooManyInFlightError: there are too many regions.
        """
        if not 0 < len(name) <= MAX_NAME or "\0" in name:
            raise InvalidRequestError(
                f"the name of a shared memory region is {name[:80]!r}; give 1 to {MAX_NAME} "
                "characters"
            )
        plain = checked_key(key)
        if not fnmatchcase(plain, self._pattern):
            raise InvalidRequestError(
                f"the shared memory object '{plain}' may not be used here: its name does not match "
                f"'{self._pattern}' (shared_memory_objects)"
            )
        await asyncio.to_thread(self._register, owner, name, key, offset, byte_size)

    def _register(self, owner: str, name: str, key: str, offset: int, byte_size: int) -> None:
        with opened_object(key, folder=self.folder, writes=False) as found:
            size, (device, inode) = found.size, found.identity
        if byte_size < 1 or not 0 <= offset <= size - byte_size:
            raise InvalidRequestError(
                f"{byte_size} bytes from {offset} are no part of the shared memory object "
                f"'{key}', which has {size}"
            )
        region = Region(name, key, offset, byte_size, device, inode)

        def add(regions: dict[str, Region], others: int) -> None:
            if name in regions:
                raise ConflictError(
                    f"shared memory region '{name}' is registered already; unregister it first"
                )
            own, every = len(regions), len(regions) + others
            if own >= MAX_REGIONS_A_CALLER or every >= MAX_REGIONS:
                raise TooManyInFlightError(
                    f"{own} shared memory regions of this caller and {every} in all are "
                    f"registered; {MAX_REGIONS_A_CALLER} and {MAX_REGIONS} are the limits: "
                    "unregister some"
                )
            regions[name] = region

        self._table.change(owner, add)

    def status(self, owner: str, name: str = "") -> list[Region]:
        """Returns a region of a caller, or all for an empty name.

        Raises:
            NotFoundError: there is no such region.
        """
        if name:
            return [self.find(owner, name)]
        return list(self._table.of(owner).values())

    async def unregister(self, owner: str, name: str = "") -> None:
        """Unregisters a region of a caller, or all for an empty name; nothing if there is none."""

        def remove(regions: dict[str, Region], _: int) -> None:
            for one in [name] if name else list(regions):
                regions.pop(one, None)

        own = self._table.of(owner)
        if (name in own) if name else own:
            await asyncio.to_thread(self._table.change, owner, remove)

    def find(self, owner: str, name: str) -> Region:
        """Returns a region of a caller.

        Raises:
            NotFoundError: there is no such region.
        """
        found = self._table.of(owner).get(name)
        if found is None:
            raise unknown_region(name)
        return found


def unknown_region(name: str, kind: str = "system") -> NotFoundError:
    """Returns the error of a region that is not registered; it begins with Triton's words."""
    return NotFoundError(
        f"Unable to find {kind} shared memory region: '{name[:MAX_NAME]}'; register it first"
    )


class RegionUse:
    """The use of regions by one request.

    Args:
        regions: the regions of the server.
        owner: the caller; empty without credentials.
    """

    def __init__(self, regions: SharedRegions, owner: str) -> None:
        self._regions = regions
        self._owner = owner
        self._left_bytes = regions.max_bytes
        self.outputs: dict[str, RegionPart] = {}
        """Places of the outputs that the request wants in regions."""
        self._written: set[str] = set()

    def read(
        self, part: RegionPart, datatype: str, shape: Sequence[int], reserve: Reserve
    ) -> Slices[memoryview]:
        """Copies the raw data of an input.

        Raises:
            TensorError: its size does not fit the datatype and the shape.
            ServingError: there is no such region or range, or no room for the bytes.
        """
        dtype = DATATYPES.get(datatype)
        if dtype is not None and dtype.kind != "O":
            expected = element_count(shape) * dtype.itemsize
            if part.byte_size != expected:
                raise TensorError(
                    f"shared_memory_byte_size is {part.byte_size}; {datatype} of shape "
                    f"{list(shape)} takes {expected}"
                )
        region, start = self._place(part)
        self._left_bytes -= part.byte_size
        if self._left_bytes < 0:
            raise PayloadTooLargeError(
                f"the inputs in shared memory have more than {self._regions.max_bytes} bytes, the "
                "limit of a request (max_request_bytes)"
            )
        if part.byte_size > LARGE_BYTES:
            while self._regions.large_use not in (None, self):
                yield
            self._regions.large_use = self
        reserve(part.byte_size)
        with opened_object(region.key, folder=self._regions.folder, writes=False) as source:
            _check_same(region, source.identity)
            room = self._regions.memory.take(part.byte_size)
            for at in range(0, part.byte_size, _STEP_BYTES):
                if at:
                    yield
                source.read_into(room[at : at + _STEP_BYTES], start + at)
        return room.toreadonly()

    def leave(self) -> None:
        """Lets another request read large inputs: this one has its arrays, or failed."""
        if self._regions.large_use is self:
            self._regions.large_use = None

    def write(self, name: str, parts: Sequence[bytes | memoryview]) -> Slices[int]:
        """Copies the raw data of an output to its place. Returns the number of bytes.

        Args:
            name: one of `outputs`.
            parts: its raw data.

        Raises:
            InvalidRequestError: the place is too small, or has an earlier answer of the request.
            ServingError: there is no such region or range.
        """
        part = self.outputs[name]
        if name in self._written:
            raise InvalidRequestError(
                f"the model gives several answers, and output '{name}' has one place in shared "
                "memory; ask for it without"
            )
        size = sum(map(len, parts))
        if size > part.byte_size:
            raise InvalidRequestError(
                f"output '{name}' has {size} bytes, and shared_memory_byte_size is "
                f"{part.byte_size}; give it more"
            )
        region, at = self._place(part)
        with opened_object(region.key, folder=self._regions.folder, writes=True) as target:
            _check_same(region, target.identity)
            for whole in parts:
                view = memoryview(whole)
                for start in range(0, len(view), _STEP_BYTES):
                    piece = view[start : start + _STEP_BYTES]
                    target.write(piece, at)
                    at += len(piece)
                    yield
        self._written.add(name)
        return size

    def _place(self, part: RegionPart) -> tuple[Region, int]:
        """Returns a region, and the place of a part in its object."""
        region = self._regions.find(self._owner, part.region)
        if part.offset > region.byte_size - part.byte_size:
            raise InvalidRequestError(
                f"{part.byte_size} bytes from {part.offset} are no part of the shared memory "
                f"region '{region.name}', which has {region.byte_size}"
            )
        return region, region.offset + part.offset


def _check_same(region: Region, identity: tuple[int, int]) -> None:
    if identity != (region.device, region.inode):
        raise InvalidRequestError(
            f"the shared memory object '{region.key}' is another than when region '{region.name}' "
            "was registered; unregister it and register it again"
        )


def take_part(parameters: Mapping[str, Any], what: str) -> RegionPart | None:
    """Reads the place of a tensor from its parameters; None if they name no region.

    Args:
        parameters: plain values by name.
        what: the tensor, for messages.

    Raises:
        InvalidRequestError: they are incomplete, or of a wrong type or range.
    """
    region = parameters.get(f"{_PREFIX}region")
    offset = parameters.get(f"{_PREFIX}offset", 0)
    byte_size = parameters.get(f"{_PREFIX}byte_size")
    if region is None and byte_size is None and not offset:
        return None
    if not isinstance(region, str) or not region:
        raise InvalidRequestError(
            f"{what} has parameters of shared memory without a name in 'shared_memory_region'"
        )
    for name, value, least in (("offset", offset, 0), ("byte_size", byte_size, 1)):
        if type(value) is not int or not least <= value < 2**63:
            raise InvalidRequestError(
                f"{what}: 'shared_memory_{name}' must be a whole number from {least} up, and is "
                f"{value!r:.60}"
            )
    return RegionPart(region, offset, byte_size)  # type: ignore[arg-type]


def without_region(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the other parameters of a tensor."""
    return {name: value for name, value in parameters.items() if not name.startswith(_PREFIX)}
