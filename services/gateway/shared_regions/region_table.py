"""The regions that callers have registered, in a table that the processes of a server share.

It is an anonymous file (memfd_create(2)) of a header and two slots. A change is written to the slot
that is not in use, and the header then points to it; so a process that is killed while it writes
leaves the table as it was. Readers look at the header alone, without a system call, until it has
changed; then they read the table, and of it the regions of the owner that is asked for.
"""

import fcntl
import mmap
import os
import struct
import zlib
from collections.abc import Callable, Mapping

import msgspec

from services.errors import QueueUnavailableError, TooManyInFlightError

SLOT_BYTES = 2**20
"""Room for `MAX_REGIONS` regions of long names."""
_HEADER = struct.Struct("<QQI")
"""Number of the newest change, bytes of the table after it, and their checksum."""
_SLOTS_AT = mmap.PAGESIZE
_TRIES = 8


class Region(msgspec.Struct, frozen=True, array_like=True):
    """A part of a shared memory object."""

    name: str
    key: str
    """Name of the object."""
    offset: int
    byte_size: int
    device: int
    inode: int
    """With `device`, the object that had this name when the region was registered."""


class _Owned(msgspec.Struct, frozen=True, array_like=True):
    """The regions of an owner."""

    count: int
    regions: msgspec.Raw


_DECODE = msgspec.msgpack.Decoder(dict[str, _Owned]).decode
_DECODE_REGIONS = msgspec.msgpack.Decoder(list[Region]).decode


def make_table() -> int:
    """Makes an empty table. Returns its descriptor."""
    descriptor = os.memfd_create("flambeau-regions", os.MFD_CLOEXEC)
    os.ftruncate(descriptor, _SLOTS_AT + 2 * SLOT_BYTES)
    return descriptor


class RegionTable:
    """One process's access to the table.

    Args:
        descriptor: of the table.
    """

    def __init__(self, descriptor: int) -> None:
        # A description of its own: locks belong to those.
        self._file = os.open(f"/proc/self/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)
        self._header = mmap.mmap(self._file, mmap.PAGESIZE, prot=mmap.PROT_READ)
        self._number = 0
        self._owners: Mapping[str, _Owned] = {}
        self._known: dict[str, Mapping[str, Region]] = {}
        """Regions by name of the owners that were asked for since the last change."""

    def close(self) -> None:
        """Closes its descriptors."""
        self._header.close()
        os.close(self._file)

    def of(self, owner: str) -> Mapping[str, Region]:
        """Returns the regions of an owner by name.

        Raises:
            QueueUnavailableError: other processes keep changing the table.
        """
        owned = self._read().get(owner)
        if owned is None:
            return {}
        found = self._known.get(owner)
        if found is None:
            found = {one.name: one for one in _DECODE_REGIONS(owned.regions)}
            self._known[owner] = found
        return found

    def change(self, owner: str, act: Callable[[dict[str, Region], int], None]) -> None:
        """Changes the regions of an owner. It waits for other processes: call it in a thread.

        Args:
            owner: the owner.
            act: changes a copy of its regions; also takes the number of all others. What it raises
                leaves them as they are.

        Raises:
            TooManyInFlightError: the table is full.
        """
        own = os.open(f"/proc/self/fd/{self._file}", os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(own, fcntl.LOCK_EX)
            reader = RegionTable(own)
            try:
                regions, owners = dict(reader.of(owner)), dict(reader._owners)
                number = reader._number + 1
            finally:
                reader.close()
            owners.pop(owner, None)
            act(regions, sum(others.count for others in owners.values()))
            if regions:
                encoded = msgspec.msgpack.encode(list(regions.values()))
                owners[owner] = _Owned(len(regions), msgspec.Raw(encoded))
            data = msgspec.msgpack.encode(owners)
            if len(data) > SLOT_BYTES:
                raise TooManyInFlightError(
                    "the table of shared memory regions is full; unregister some"
                )
            os.pwrite(own, data, _slot(number))
            os.pwrite(own, _HEADER.pack(number, len(data), zlib.crc32(data)), 0)
        finally:
            os.close(own)

    def _read(self) -> Mapping[str, _Owned]:
        """Returns the regions of each owner, not decoded, as they are now."""
        for _ in range(_TRIES):
            number, size, checksum = _HEADER.unpack_from(self._header)
            if number == self._number:
                return self._owners
            data = os.pread(self._file, size, _slot(number))
            if zlib.crc32(data) == checksum:
                self._number, self._owners, self._known = number, _DECODE(data), {}
                return self._owners
        raise QueueUnavailableError("the shared memory regions are being changed; retry")


def _slot(number: int) -> int:
    return _SLOTS_AT + number % 2 * SLOT_BYTES
