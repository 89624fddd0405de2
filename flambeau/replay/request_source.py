"""Requests to replay: the lines of a capture, or the `*.json` files of a folder.

Everything is read twice: once before anything is sent, to count the requests and to find what is
wrong with them, and again one by one, so that a capture may be larger than memory.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from flambeau.replay.errors import RequestFileError
from flambeau.replay.records import MAX_BODY_BYTES, RecordedRequest
from flambeau.replay.request_document import MAX_NAME, read_request

MAX_LINE_BYTES = 4 * MAX_BODY_BYTES
"""Bytes of a request's JSON: base64 of a body and of an answer."""
MAX_REQUESTS = 1_000_000
MAX_TOLD = 5
"""Wrong requests that a message names; the others are counted."""

Found = RecordedRequest | RequestFileError
Seen = Callable[[bytes], None]


@dataclass(frozen=True, slots=True)
class Checked:
    """Findings of a first reading.

    Attributes:
        methods: number of requests that can be sent, by `act`.
        faults: what is wrong with the others: the first `MAX_TOLD` of them.
        fault_count: number of the others.
        digest: SHA-256 of all that was read, in hexadecimal.
    """

    methods: Counter[str]
    faults: tuple[str, ...]
    fault_count: int
    digest: str

    @property
    def count(self) -> int:
        """Number of requests that can be sent."""
        return self.methods.total()


class RequestSource:
    """The requests of a file or a folder.

    Args:
        path: the file or folder.

    Raises:
        RequestFileError: there is none.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        if not path.exists():
            raise RequestFileError(
                f"'{path}' is not there; give a capture, or a folder of requests"
            )

    def check(self) -> Checked:
        """Reads all requests, and keeps none.

        Raises:
            RequestFileError: there are none, or too many, or they cannot be read.
        """
        digest = hashlib.sha256()
        methods: Counter[str] = Counter()
        fault_count = 0
        faults: list[str] = []
        for found in self._found(digest.update):
            if isinstance(found, RequestFileError):
                fault_count += 1
                faults += [str(found)] if len(faults) < MAX_TOLD else []
            else:
                methods[found.act] += 1
        if not methods and not fault_count:
            raise RequestFileError(f"'{self._path}' has no requests; capture some, or write them")
        return Checked(methods, tuple(faults), fault_count, digest.hexdigest())

    def requests(self) -> Iterator[RecordedRequest]:
        """Yields those that can be sent, in order."""
        for found in self._found(lambda _: None):
            if not isinstance(found, RequestFileError):
                yield found

    def _found(self, seen: Seen) -> Iterator[Found]:
        try:
            found = self._in_folder(seen) if self._path.is_dir() else self._in_file(seen)
            for number, one in enumerate(found, 1):
                if number > MAX_REQUESTS:
                    raise RequestFileError(
                        f"'{self._path}' has over {MAX_REQUESTS} requests; split it"
                    )
                yield one
        except OSError as error:
            raise RequestFileError(f"'{self._path}' cannot be read: {error}") from error

    def _in_file(self, seen: Seen) -> Iterator[Found]:
        with self._path.open("rb") as file:
            number = 0
            while line := file.readline(MAX_LINE_BYTES):
                number += 1
                seen(line)
                if len(line) == MAX_LINE_BYTES and not line.endswith(b"\n"):
                    _skip_line(file)
                    yield RequestFileError(
                        f"line {number} is longer than {MAX_LINE_BYTES} bytes; delete it"
                    )
                elif line.strip():
                    yield _read(line, number, f"line {number}")

    def _in_folder(self, seen: Seen) -> Iterator[Found]:
        files = sorted(self._path.glob("*.json"))
        for number, path in enumerate(files, 1):
            with path.open("rb") as file:
                text = file.read(MAX_LINE_BYTES + 1)
            if len(text) > MAX_LINE_BYTES:
                yield RequestFileError(f"request {number} has over {MAX_LINE_BYTES} bytes")
                continue
            name = path.stem.encode(errors="backslashreplace").decode()
            found = _read(text, number, f"{name}.json", name[:MAX_NAME], self._path)
            seen(text)
            seen(b"" if isinstance(found, RequestFileError) else found.body)
            yield found


def _read(
    text: bytes, number: int, place: str, name: str = "", folder: Path | None = None
) -> Found:
    try:
        return read_request(text, number, name, folder)
    except RequestFileError as error:
        return RequestFileError(f"{place}: {error}")


def _skip_line(file: IO[bytes]) -> None:
    while (piece := file.readline(2**20)) and not piece.endswith(b"\n"):
        pass
