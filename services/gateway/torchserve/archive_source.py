"""Archives that callers name: files and folders of the model store, and URLs that are allowed.

In: the text by which a caller named an archive. Out: a path, for as long as it is registered.

Rules: names lead nowhere but into the model store; a URL matches the allow-list, and so does every
one that it redirects to, which never leads to a private address; a file is where its links lead,
and that place matches the allow-list, too; a download is limited in size and time, has a least
pace, runs in a thread, and ends when its caller leaves; one too many is refused.
Source: TorchServe 0.12 for what a text names, and for the words.
"""

import asyncio
import contextlib
import http.client
import ipaddress
import os
import re
import socket
import ssl
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from io import BufferedReader
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote, unquote, urljoin, urlsplit

from model_store.archives.archive_files import MAX_ARCHIVE_BYTES
from model_store.archives.server_properties import ServerProperties
from services.gateway.torchserve.refusals import (
    DOWNLOAD,
    MODEL_NOT_FOUND,
    UNAVAILABLE,
    Refusal,
    RefusedError,
)

MAX_REDIRECTS = 5
"""Redirects of one download."""
MAX_URL_CHARACTERS = 2048
MAX_DOWNLOADS = 4
"""Downloads at once; each occupies a thread. A further one is refused."""
DOWNLOAD_WITHIN_S = 1800.0
"""Time for a whole download: an archive of 2 GB over a line of 10 Mbit/s."""
PACE_S, PACE_BYTES = 30.0, 2**19
"""Seconds, and the least that a download has of its archive in each: 17 KB/s."""
_SILENCE_S = 30.0
"""Time for a server to send the next bytes."""
_PIECE_BYTES = 2**20
_URL = re.compile(r"(file|https?)://.*", re.IGNORECASE | re.DOTALL)


class DownloadError(OSError):
    """A download that is not possible, not allowed or too large; the message is the reason."""


class OutsideError(DownloadError):
    """A file whose path, with its links followed, the allow-list does not have."""


class ArchiveSource:
    """Finds archives.

    Args:
        folder: existing folder for downloads.
        properties: settings of the server; they name the model store and the allowed URLs.
    """

    def __init__(self, folder: Path, properties: ServerProperties) -> None:
        self._folder = folder
        store = properties.model_store
        self._model_store = Path(store).resolve() if store else None
        self._allowed = [re.compile(one, re.IGNORECASE) for one in properties.allowed_urls]
        self._threads = ThreadPoolExecutor(MAX_DOWNLOADS, "download")
        self._downloads: set[asyncio.Future[None]] = set()

    @contextlib.asynccontextmanager
    async def found(
        self, url: str, caller_left: asyncio.Event | None = None
    ) -> AsyncIterator[Path]:
        """Yields the path of an archive; a download is removed afterwards.

        Args:
            url: name of a file or folder of the model store, or a URL.
            caller_left: ends a download once it is set; None where nobody can leave.

        Raises:
            RefusedError: there is none, or it may not be downloaded.
        """
        if not url:
            raise _not_found("empty url")
        if len(url) > MAX_URL_CHARACTERS:
            raise _not_found(f"the url has {len(url):,} characters; give a shorter one")
        if _URL.fullmatch(url):
            if not self._matches(url):
                raise _not_allowed(url)
            if not _is_direct(url):
                raise _not_found(f"Relative path is not allowed in url: {url}")
            with tempfile.TemporaryDirectory(prefix="download-", dir=self._folder) as made:
                yield await self._downloaded(url, Path(made), caller_left or asyncio.Event())
            return
        if self._model_store is None:
            raise _not_found("Model store has not been configured.")
        if ".." in url:
            raise _not_found(f"Relative path is not allowed in url: {url}")
        yield await asyncio.to_thread(self._in_store, url)

    def _allows(self, url: str) -> bool:
        return _is_direct(url) and self._matches(url)

    def _matches(self, url: str) -> bool:
        return any(pattern.fullmatch(url) for pattern in self._allowed)

    def _in_store(self, url: str) -> Path:
        """Returns a file or folder of the model store; only the last part of the text names it."""
        store = self._model_store
        assert store is not None, "it was checked"
        name = url.replace("\\", "/").rpartition("/")[2]
        with contextlib.suppress(OSError):  # such as of a name that is too long for a file
            if name not in ("", ".") and "\0" not in name and (store / name).exists():
                return store / name
        raise _not_found(f"Model not found at: {url}")

    async def _downloaded(self, url: str, folder: Path, caller_left: asyncio.Event) -> Path:
        try:
            name = unquote(urlsplit(url).path.rpartition("/")[2])
            name = re.sub(r"[^A-Za-z0-9._-]", "_", name)[-100:].lstrip(".") or "archive.mar"
            await self._paced(_Download(url, folder / name, self._allows), caller_left)
        except OutsideError as error:
            raise _not_allowed(url) from error
        except (OSError, ValueError, http.client.HTTPException) as error:
            words = f"Failed to download archive from: {url}"
            reason = f" ({error})" if isinstance(error, DownloadError) else ""
            raise RefusedError(Refusal(400, DOWNLOAD, words + reason)) from error
        return folder / name

    async def _paced(self, download: "_Download", caller_left: asyncio.Event) -> None:
        """Runs a download in a thread; ends it if it is too slow, or its caller leaves."""
        if len(self._downloads) >= MAX_DOWNLOADS:
            words = f"{MAX_DOWNLOADS} archives are being downloaded, the limit; retry later"
            raise RefusedError(Refusal(503, UNAVAILABLE, words))
        work = asyncio.get_running_loop().run_in_executor(self._threads, download.run)
        self._downloads.add(work)
        work.add_done_callback(self._ended)
        left = asyncio.ensure_future(caller_left.wait())
        size = 0
        try:
            while True:
                either: list[asyncio.Future[Any]] = [work, left]
                await asyncio.wait(either, timeout=PACE_S, return_when=asyncio.FIRST_COMPLETED)
                if work.done():
                    break
                if left.done():
                    raise DownloadError("its caller has left")
                if download.size_bytes - size < PACE_BYTES:
                    raise DownloadError(f"it sends under {PACE_BYTES:,} bytes in {PACE_S:g} s")
                size = download.size_bytes
            await work
        finally:
            left.cancel()
            download.end()

    def _ended(self, work: "asyncio.Future[None]") -> None:
        """Frees the place of a download: its thread has ended."""
        self._downloads.discard(work)
        if not work.cancelled():
            work.exception()  # its caller may have gone


class _Download:
    """One download.

    Args:
        url: its URL.
        path: the file to write.
        allows: returns whether a URL may be downloaded.

    Attributes:
        size_bytes: bytes so far.
    """

    def __init__(self, url: str, path: Path, allows: Callable[[str], bool]) -> None:
        self._url, self._path, self._allows = url, path, allows
        self._until = time.monotonic() + DOWNLOAD_WITHIN_S
        self._line: socket.socket | None = None
        self._has_ended = False
        self.size_bytes = 0

    def end(self) -> None:
        """Ends it, from any thread; `run` raises soon, whatever it waits for."""
        self._has_ended = True
        if (line := self._line) is not None:
            with contextlib.suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)

    def run(self) -> None:
        """Downloads; it blocks.

        Raises:
            DownloadError: it is not possible, not allowed, or too large; of a file elsewhere, an
                `OutsideError`.
            OSError, ValueError, HTTPException: the URL or its server is at fault.
        """
        url = self._url
        for number in range(MAX_REDIRECTS + 1):
            if number and not self._allows(url):
                raise DownloadError(f"it redirects to {url[:200]}, which is not allowed")
            parts = urlsplit(url)
            if parts.scheme.lower() == "file":
                if number or parts.netloc not in ("", "localhost"):
                    raise DownloadError("a file of another machine")
                self._copy_file(self._followed(parts.netloc, unquote(parts.path)))
                return
            target = self._fetch(url, is_redirected=number > 0)
            if target is None:
                return
            url = urljoin(url, target)
        raise DownloadError(f"it redirects over {MAX_REDIRECTS} times")

    def _fetch(self, url: str, *, is_redirected: bool) -> str | None:
        """Downloads a URL of HTTP; returns where it redirects to instead, if it does."""
        parts = urlsplit(url)
        if parts.scheme.lower() not in ("http", "https") or not parts.hostname:
            raise DownloadError(f"{url[:200]} is no URL of HTTP")
        is_tls = parts.scheme.lower() == "https"
        kind = http.client.HTTPSConnection if is_tls else http.client.HTTPConnection
        connection = kind(parts.hostname, parts.port)
        with contextlib.closing(connection), contextlib.ExitStack() as stack:
            address = (parts.hostname, parts.port or connection.default_port)
            line = stack.enter_context(socket.create_connection(address, _SILENCE_S))
            self._line = stack.enter_context(line.dup())
            if is_redirected and not _is_public(line):
                raise DownloadError(f"it redirects to {parts.hostname}, a private address")
            if self._has_ended:
                raise DownloadError("it was ended")
            if is_tls:
                context = ssl.create_default_context()
                line = stack.enter_context(
                    context.wrap_socket(line, server_hostname=parts.hostname)
                )
            connection.sock = line
            query = f"?{parts.query}" if parts.query else ""
            path, fields = (parts.path or "/") + query, {"user-agent": "flambeau"}
            connection.request("GET", path, headers=fields)
            with contextlib.closing(connection.getresponse()) as answer:
                if answer.status in (301, 302, 303, 307, 308):
                    return answer.getheader("location") or ""
                if answer.status != 200:
                    raise DownloadError(f"it answers with status {answer.status}")
                with self._path.open("wb") as file:
                    self._copy(answer, file)
                if answer.length:
                    raise DownloadError(f"it ends {answer.length:,} bytes early")
        return None

    def _followed(self, host: str, path: str) -> Path:
        """Returns where a path of a file leads, the links in it followed.

        Raises:
            OutsideError: the allow-list does not have it, whether there is a file or not.
        """
        real = os.path.realpath(path)
        if not any(self._allows(f"file://{host}{form}") for form in (real, quote(real))):
            raise OutsideError("a file outside the allowed URLs")
        return Path(real)

    def _copy_file(self, source: Path) -> None:
        """Copies a file; a device, a pipe or a kernel's file may have no end, or none for now."""
        if not source.is_file() or not source.stat().st_size:
            raise DownloadError("it is no file with content")
        with source.open("rb") as file, self._path.open("wb") as copy:
            self._copy(file, copy)

    def _copy(self, source: "BufferedReader | http.client.HTTPResponse", target: IO[bytes]) -> None:
        while piece := source.read1(_PIECE_BYTES):
            self.size_bytes += len(piece)
            if self.size_bytes > MAX_ARCHIVE_BYTES:
                raise DownloadError(f"it has over {MAX_ARCHIVE_BYTES:,} bytes, the limit")
            if time.monotonic() > self._until:
                raise DownloadError(f"it takes over {DOWNLOAD_WITHIN_S:g} s")
            if self._has_ended:
                raise DownloadError("it was ended")
            target.write(piece)


def _is_public(line: socket.socket) -> bool:
    """Returns True if a connection leads to a public address: a name may have several."""
    address = ipaddress.ip_address(line.getpeername()[0].partition("%")[0])
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_global


def _is_direct(url: str) -> bool:
    """Returns True if no part of a URL leads up, in whatever way it is written.

    Servers may decode a path more than once; `urlsplit` drops tabs and ends of lines.
    """
    while (plain := unquote(url)) != url:
        url = plain
    return ".." not in url and not any(one < " " or one == "\x7f" for one in url)


def _not_allowed(url: str) -> RefusedError:
    return _not_found(f"Given URL {url} does not match any allowed URL(s)")


def _not_found(words: str) -> RefusedError:
    return RefusedError(Refusal(404, MODEL_NOT_FOUND, words))
