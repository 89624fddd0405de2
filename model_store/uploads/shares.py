"""Shares of the folder of uploads: places for open uploads, by owner, and space on the disk.

    <folder>/.lock              held while places and space are given
    <folder>/<id>/claim.json    the owner of an upload, and the bytes it may have

In: an upload that begins. Out: its place, or an error that says which share is taken.

Rules:
- one owner has a part of the places, so that it leaves some to others;
- what open uploads have still to receive is no free space for another: uploads that fit alone do
  not fill the disk together;
- the uploads of one owner reserve a part of the free space, and one that receives nothing for an
  hour reserves none.
"""

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from pydantic import Field

from flambeau.protocol.strict import StrictModel
from model_store.document import SMALL, parse_as
from model_store.errors import StorageFullError, StoreError, TooManyUploadsError
from model_store.storage.plain_file import read_plain_file

MAX_OPEN = 64
"""Uploads of one store that are open at once."""
MAX_PER_OWNER = 16
"""Open uploads of one owner."""
OWNER_SHARE = 0.5
"""Part of the free space that uploads of one owner may reserve: one caller alone can push a version
that takes half of the disk, and none keeps all others out."""
RESERVED_S = 3600.0
"""Time without a byte after which an upload no longer reserves space; it can still go on."""
CLAIM_FILE = "claim.json"
LISTED = "GET /v1/registry/uploads, or flambeau models uploads, lists yours"


class _Claim(StrictModel):
    owner: str
    size_bytes: Annotated[int, Field(ge=0)] = 0
    """Bytes of all its files; 0 until there was space for them."""


class Shares:
    """The shares of one folder, for all processes that see it.

    Args:
        folder: the folder of the uploads.
        max_per_owner: open uploads of one owner.
        owner_share: part of the free space that uploads of one owner may reserve.
    """

    def __init__(
        self,
        folder: Path,
        max_per_owner: int = MAX_PER_OWNER,
        owner_share: float = OWNER_SHARE,
    ) -> None:
        self._folder = folder
        self._max_per_owner = max_per_owner
        self._owner_share = owner_share

    def open_ids(self, owner: str | None = None) -> list[str]:
        """Returns the uploads that are open, or whose removal was cut off.

        Args:
            owner: the owner of those that are wanted; None for all.
        """
        names: list[str] = []
        with contextlib.suppress(FileNotFoundError):
            names = [name for name in os.listdir(self._folder) if not name.startswith(".")]
        if owner is None:
            return names
        claims = {name: self._claim(name) for name in names}
        return [name for name, claim in claims.items() if claim and claim.owner == owner]

    def take_place(self, upload_id: str, owner: str) -> Path:
        """Makes the folder of an upload, unless it is there; returns it.

        Raises:
            TooManyUploadsError: `MAX_OPEN` are open, or those that one owner may have.
            OSError: the folder cannot be written to.
        """
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        place = self._folder / upload_id
        with self._locked():
            if self._claim(upload_id) is None:
                self._check_places(owner)
                place.mkdir(mode=0o700, exist_ok=True)
                self._write(upload_id, _Claim(owner=owner))
            (place / "lock").touch()
        return place

    def _check_places(self, owner: str) -> None:
        found = self.open_ids()
        if len(found) >= MAX_OPEN:
            raise TooManyUploadsError(
                f"{MAX_OPEN} uploads are open, as many as a store takes at once; finish or "
                f"abandon one ({LISTED})"
            )
        if len(self.open_ids(owner)) >= self._max_per_owner:
            raise TooManyUploadsError(
                f"{self._max_per_owner} of your uploads are open, as many as one caller may have "
                f"at once; finish or abandon one ({LISTED})"
            )

    def reserve(self, upload_id: str, owner: str, size_bytes: int, missing_bytes: int) -> None:
        """Reserves space on the disk for an upload.

        Args:
            upload_id: the upload, which has a place.
            owner: its owner.
            size_bytes: bytes of all its files.
            missing_bytes: those of them that have still to arrive.

        Raises:
            StorageFullError: less is free, without what other uploads have still to receive; or the
                uploads of this owner would reserve more than its share.
            OSError: the folder cannot be read or written to.
        """
        with self._locked():
            claims = {one: self._claim(one) for one in self.open_ids() if one != upload_id}
            waiting = {one: self._missing_bytes(one, claim) for one, claim in claims.items()}
            others = sum(waiting.values())
            free = shutil.disk_usage(self._folder).free
            lacking = missing_bytes + others - free
            if lacking > 0:
                raise StorageFullError(
                    f"the upload needs {missing_bytes:,} bytes, and {lacking:,} of them are "
                    f"missing: {self._folder} has {free:,} free, of which {others:,} are reserved "
                    "for other uploads; make room there, or finish or abandon others, and push "
                    "again"
                )
            claim = _Claim(owner=owner, size_bytes=size_bytes)
            if self._claim(upload_id) != claim:  # to begin again is no byte that arrives
                own = [waiting[one] for one, c in claims.items() if c and c.owner == owner]
                self._check_share(missing_bytes, sum(own), free)
                self._write(upload_id, claim)

    def _check_share(self, missing_bytes: int, own_bytes: int, free_bytes: int) -> None:
        """Refuses an owner more space than its share of what is free.

        Raises:
            StorageFullError: its other uploads reserve too much, or this one alone needs more.
        """
        share = int(free_bytes * self._owner_share)
        if missing_bytes and missing_bytes + own_bytes > share:
            raise StorageFullError(
                f"the upload needs {missing_bytes:,} bytes, and your other uploads have reserved "
                f"{own_bytes:,}: of the {free_bytes:,} bytes free in {self._folder}, one caller "
                f"may reserve {share:,}; finish or abandon others, or make room there"
            )

    def _missing_bytes(self, upload_id: str, claim: _Claim | None) -> int:
        """Returns the bytes that an upload has still to receive; 0 if none come any more."""
        if claim is None or not claim.size_bytes:
            return 0
        here, last_s = 0, 0.0
        with contextlib.suppress(FileNotFoundError):
            last_s = os.lstat(self._folder / upload_id / CLAIM_FILE).st_mtime
        for folder, _, files in os.walk(self._folder / upload_id / "store"):
            for name in files:
                with contextlib.suppress(FileNotFoundError):
                    found = os.lstat(os.path.join(folder, name))
                    here += found.st_size
                    if found.st_nlink == 1:  # else it is a file of the store
                        last_s = max(last_s, found.st_mtime)
        if time.time() - last_s > RESERVED_S:
            return 0
        return max(0, claim.size_bytes - here)

    def _claim(self, upload_id: str) -> _Claim | None:
        """Returns the claim of an upload; None if it has none that can be read."""
        path = self._folder / upload_id / CLAIM_FILE
        with contextlib.suppress(OSError, StoreError):
            return parse_as(_Claim, read_plain_file(path, SMALL.max_bytes), CLAIM_FILE, SMALL)
        return None

    def _write(self, upload_id: str, claim: _Claim) -> None:
        path = self._folder / upload_id / CLAIM_FILE
        beside = path.with_name(f"{CLAIM_FILE}.new")
        beside.write_text(claim.model_dump_json())
        os.replace(beside, path)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Locks the shares against all other processes; they are held for milliseconds."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        lock = os.open(self._folder / ".lock", flags, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)
