"""Archives are found in the model store and behind allowed URLs, and nowhere else."""

import asyncio
import http.server
import queue
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from model_store.archives.server_properties import ServerProperties
from services.gateway.torchserve import archive_source
from services.gateway.torchserve.archive_source import (
    MAX_DOWNLOADS,
    MAX_URL_CHARACTERS,
    ArchiveSource,
)
from services.gateway.torchserve.refusals import (
    DOWNLOAD,
    MODEL_NOT_FOUND,
    UNAVAILABLE,
    RefusedError,
)

ANY = ("file://.*|http(s)?://.*",)


class Site(http.server.BaseHTTPRequestHandler):
    """Serves `/m.mar`; other paths redirect, fail, or say less than they announce."""

    server: "Server"

    def do_GET(self) -> None:
        path, _, target = self.path.partition("?to=")
        if path == "/up":
            self.send_response(302)
            self.send_header("location", "/a/%2E./m.mar")
            self.end_headers()
        elif path == "/moved":
            self.send_response(302)
            self.send_header("location", target)
            self.end_headers()
        elif self.path in ("/m.mar", "/m.mar?x=%20&y"):
            self._say(b"archive")
        elif path in ("/slow", "/slow-head"):
            self._say(b"a" if path == "/slow" else b"", 10**6, is_whole=path == "/slow")
            self.server.slow.put(None)
            self.rfile.read()  # until the other end leaves
            self.server.left.put(None)
        elif path == "/short":
            self._say(b"arch", 7)
        else:
            self.send_error(404)

    def _say(self, content: bytes, length: int = 0, *, is_whole: bool = True) -> None:
        self.send_response(200)
        self.send_header("content-length", str(length or len(content)))
        if is_whole:
            self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Prints nothing."""


class Server(http.server.ThreadingHTTPServer):
    """Tells of slow downloads: each that began, and each that the other end has left."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Site)
        self.slow: queue.Queue[None] = queue.Queue()
        self.left: queue.Queue[None] = queue.Queue()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def site(server: Server) -> str:
    return server.url


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., ArchiveSource]:
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "m.mar").write_bytes(b"kept")
    (tmp_path / "secret.mar").write_bytes(b"secret")
    (tmp_path / "downloads").mkdir()

    def made(allowed: tuple[str, ...] = ANY, store: str | None = "store") -> ArchiveSource:
        place = None if store is None else str(tmp_path / store)
        properties = ServerProperties(model_store=place, allowed_urls=allowed)
        return ArchiveSource(tmp_path / "downloads", properties)

    return made


async def content(
    source: ArchiveSource, url: str, caller_left: asyncio.Event | None = None
) -> tuple[str, bytes]:
    """Returns the name and the content of an archive; a download is gone afterwards."""
    async with source.found(url, caller_left) as path:
        return path.name, path.read_bytes()


@pytest.mark.parametrize("url", ["m.mar", "/m.mar", "some/where/m.mar", "some\\where\\m.mar"])
async def test_the_last_part_of_a_name_is_in_the_model_store(
    make: Callable[..., ArchiveSource], url: str
) -> None:
    assert await content(make(), url) == ("m.mar", b"kept")


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("", "empty url"),
        ("none.mar", "Model not found at: none.mar"),
        ("../secret.mar", "Relative path is not allowed in url: ../secret.mar"),
        ("..", "Relative path is not allowed"),
        (".", "Model not found at: ."),
        ("store/", "Model not found at: store/"),
        ("m.mar\0", "Model not found at"),
        ("x" * 300, "Model not found at"),
        ("ftp://x/none.mar", "Model not found at: ftp://x/none.mar"),
        ("http://x/../m.mar", "Relative path is not allowed in url: http://x/../m.mar"),
        ("x" * (MAX_URL_CHARACTERS + 1), "characters"),
    ],
)
async def test_names_that_name_nothing(
    make: Callable[..., ArchiveSource], url: str, words: str
) -> None:
    with pytest.raises(RefusedError) as caught:
        await content(make(), url)
    code, kind, message = caught.value.refusal
    assert (code, kind) == (404, MODEL_NOT_FOUND)
    assert words in message


async def test_without_a_model_store_there_is_nothing(make: Callable[..., ArchiveSource]) -> None:
    with pytest.raises(RefusedError, match="Model store has not been configured"):
        await content(make(store=None), "m.mar")


async def test_downloads(make: Callable[..., ArchiveSource], site: str, tmp_path: Path) -> None:
    source = make()
    assert await content(source, f"{site}/m.mar") == ("m.mar", b"archive")
    assert await content(source, f"{site}/m.mar?x=%20&y") == ("m.mar", b"archive")
    assert await content(source, f"file://{tmp_path}/secret.mar") == ("secret.mar", b"secret")
    assert list((tmp_path / "downloads").iterdir()) == []


@pytest.mark.parametrize("allowed", [(), ("https://.*",), ("http://127.0.0.1",), ("x",)])
async def test_urls_outside_the_allow_list(
    make: Callable[..., ArchiveSource], site: str, allowed: tuple[str, ...]
) -> None:
    with pytest.raises(RefusedError) as caught:
        await content(make(allowed), f"{site}/m.mar")
    words = f"Given URL {site}/m.mar does not match any allowed URL(s)"
    assert caught.value.refusal == (404, MODEL_NOT_FOUND, words)


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/none.mar", "status 404"),
        ("/short", ""),
        ("/moved?to=http://localhost:{port}/m.mar", "a private address"),
        ("/moved?to=/m.mar", "a private address"),
        ("/moved?to=file:///etc/passwd", "not allowed"),
        ("/moved?to=gopher://x/", "not allowed"),
        ("/up", "not allowed"),
        ("/moved?to=", ""),
    ],
)
async def test_downloads_that_fail_or_lead_elsewhere(
    make: Callable[..., ArchiveSource], site: str, path: str, reason: str, tmp_path: Path
) -> None:
    url = site + path.format(port=site.rpartition(":")[2])
    with pytest.raises(RefusedError) as caught:
        await content(make(("http://.*",)), url)
    code, kind, message = caught.value.refusal
    assert (code, kind) == (400, DOWNLOAD)
    assert message.startswith(f"Failed to download archive from: {url}")
    assert reason in message
    assert list((tmp_path / "downloads").iterdir()) == []


@pytest.mark.parametrize(
    "path",
    [
        "%2e%2e/secret.mar",
        ".%2E/secret.mar",
        "%252e%252e/secret.mar",
        ".\t./secret.mar",
        "..%2Fsecret.mar",
        "link.mar",
        "folder/secret.mar",
        "folder/none.mar",
    ],
)
async def test_no_spelling_and_no_link_leads_out_of_an_allowed_folder(
    make: Callable[..., ArchiveSource], tmp_path: Path, path: str
) -> None:
    (tmp_path / "store" / "link.mar").symlink_to(tmp_path / "secret.mar")
    (tmp_path / "store" / "folder").symlink_to(tmp_path)
    source = make((f"file://{tmp_path}/store/.*",))
    assert await content(source, f"file://{tmp_path}/store/m%2Emar") == ("m.mar", b"kept")
    with pytest.raises(RefusedError) as caught:
        await content(source, f"file://{tmp_path}/store/{path}")
    assert caught.value.refusal[:2] == (404, MODEL_NOT_FOUND)


@pytest.mark.parametrize("name", ["/dev/zero", "/proc/kmsg", "/proc/self", "/nowhere"])
async def test_files_without_an_end_are_not_read(
    make: Callable[..., ArchiveSource], name: str
) -> None:
    with pytest.raises(RefusedError, match=f"Failed to download archive from: file://{name}"):
        await content(make(), f"file://{name}")


async def test_a_download_over_the_limit_ends(
    make: Callable[..., ArchiveSource], site: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive_source, "MAX_ARCHIVE_BYTES", 6)
    with pytest.raises(RefusedError, match="over 6 bytes, the limit"):
        await content(make(), f"{site}/m.mar")


async def test_a_download_that_takes_too_long_ends(
    make: Callable[..., ArchiveSource], site: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive_source, "DOWNLOAD_WITHIN_S", -1.0)
    with pytest.raises(RefusedError, match="it takes over"):
        await content(make(), f"{site}/m.mar")


@pytest.mark.parametrize("path", ["/slow", "/slow-head"])
async def test_a_download_below_the_least_pace_ends(
    make: Callable[..., ArchiveSource],
    server: Server,
    path: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(archive_source, "PACE_S", 0.2)
    with pytest.raises(RefusedError, match=r"it sends under 524,288 bytes in 0.2 s"):
        async with asyncio.timeout(20):
            await content(make(), server.url + path)
    await asyncio.to_thread(server.left.get, timeout=20)


async def test_a_download_ends_with_its_caller_and_one_too_many_is_refused(
    make: Callable[..., ArchiveSource], server: Server, tmp_path: Path
) -> None:
    source, left = make(), asyncio.Event()

    async def download() -> None:
        with pytest.raises(RefusedError, match="its caller has left"):
            await content(source, f"{server.url}/slow", left)

    tasks = [asyncio.ensure_future(download()) for _ in range(MAX_DOWNLOADS)]
    for _ in tasks:
        await asyncio.to_thread(server.slow.get, timeout=20)
    with pytest.raises(RefusedError) as caught:
        await content(source, f"{server.url}/m.mar")
    words = "4 archives are being downloaded, the limit; retry later"
    assert caught.value.refusal == (503, UNAVAILABLE, words)
    left.set()
    await asyncio.gather(*tasks)
    for _ in tasks:
        await asyncio.to_thread(server.left.get, timeout=20)
    assert list((tmp_path / "downloads").iterdir()) == []


@pytest.mark.parametrize("url", ["http://[::1/x.mar", "http://x:port/m.mar"])
async def test_urls_that_are_none(make: Callable[..., ArchiveSource], url: str) -> None:
    with pytest.raises(RefusedError) as caught:
        await content(make(), url)
    assert caught.value.refusal[:2] == (400, DOWNLOAD)
