"""Archives are registered, scaled and unregistered, on a real store with a real reconciler."""

import asyncio
import contextlib
import io
import queue
import shutil
import threading
import zipfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from model_store.archives.model_archive import ModelArchive, open_archive
from model_store.archives.model_config import ModelConfig
from model_store.archives.server_properties import ServerProperties
from services.errors import (
    BackendError,
    ConflictError,
    ForbiddenError,
    InvalidRequestError,
    NotFoundError,
    ServingError,
    UnknownModelError,
    UnknownVersionError,
)
from services.gateway.torchserve import archive_registry, left_folders, registry_threads
from services.gateway.torchserve.archive_registry import ArchiveRegistry, target
from services.gateway.torchserve.register_request import RegisterRequest
from tests.fixtures.archive_registries import VERSION, Running

Start = Callable[..., Any]


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    async with contextlib.AsyncExitStack() as stack:

        async def begin(
            poll_s: float = 60, open_time_limit_s: float = 120.0, **properties: Any
        ) -> Running:
            running = Running(tmp_path, ServerProperties(**properties), poll_s, open_time_limit_s)
            stop = asyncio.Event()
            passed = asyncio.Event()
            task = asyncio.create_task(running.reconciler.run(stop, passed.set))

            async def end() -> None:
                stop.set()
                await task

            stack.push_async_callback(end)
            await passed.wait()
            return running

        yield begin


async def test_registrations_are_read_before_requests_come(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = await start()
    await running.register(initial_workers=0)
    registry = ArchiveRegistry(
        running.store, running.folder, running.directory, no_act, ServerProperties()
    )
    monkeypatch.setattr(Path, "open", None)
    assert list(registry.latest().models) == ["m"]


async def no_act(act: str, model: str, dependents: bool) -> None:
    """Nothing is loaded."""


async def test_a_folder_that_is_refused_stays(start: Start) -> None:
    """A folder in place of an archive is its owner's."""
    running = await start()
    folder = running.folder / "mine"
    with zipfile.ZipFile(running.archive("1.0")) as archive:
        archive.extractall(folder)
    files = sorted(path.name for path in folder.rglob("*"))
    assert await running.register(archive=folder) == "1.0"
    with pytest.raises(ConflictError):
        await running.register(archive=folder)
    with pytest.raises(InvalidRequestError):
        await running.register(archive=folder, model_name="no name")
    assert sorted(path.name for path in folder.rglob("*")) == files


async def test_an_archive_is_registered_answers_and_is_unregistered(start: Start) -> None:
    running = await start()
    assert await running.register() == "1.0"
    assert (await running.ask()).startswith("1.0 of ")
    assert await running.ask("1.0") == await running.ask()
    (folder,) = running.folders()
    assert (running.folder / "archives" / folder / "handler.py").is_file()
    with pytest.raises(ConflictError, match=r"1.0 is already registered for model m"):
        await running.register()
    assert running.folders() == [folder]
    assert await running.registry.unregister("m") == "1.0"
    with pytest.raises(UnknownModelError):
        running.directory.resolve(*target("m"))
    assert (await running.registry.registrations()).models == {}
    with pytest.raises(UnknownModelError, match="Model not found: m"):
        await running.registry.unregister("m")
    assert await running.register() == "1.0"
    assert (await running.ask("1.0")).startswith("1.0 of ")


async def test_versions_are_served_side_by_side_and_one_is_the_default(start: Start) -> None:
    running = await start()
    for version in ("1.0", "2"):
        await running.register(version)
    assert [(await running.ask(v))[:3] for v in ("1.0", "2", "")] == ["1.0", "2 o", "1.0"]
    await running.registry.set_default("m", "2")
    assert (await running.ask()).startswith("2 of ")
    with pytest.raises(ForbiddenError, match="Cannot remove default version for model m"):
        await running.registry.unregister("m", "2")
    with pytest.raises(UnknownVersionError, match=r"does not exist for model: m$"):
        await running.registry.set_default("m", "3")
    assert await running.registry.unregister("m", "1.0") == "1.0"
    with pytest.raises(ServingError):
        await running.ask("1.0")
    assert (await running.ask()).startswith("2 of ")


async def test_workers_are_scaled_and_requests_go_on(start: Start) -> None:
    running = await start()
    await running.register()
    before = await running.ask()
    assert await running.registry.scale("m", min_workers=2, max_workers=3) == "1.0"
    model = await running.registry.model("m")
    assert (model.versions["1.0"].min_workers, model.versions["1.0"].max_workers) == (2, 3)
    served, _ = running.directory.resolve(*target("m"))
    assert served.execution is not None
    assert served.execution.instances == 2
    assert await running.ask() != before, "the processes are new ones"
    assert [one.state for one in running.directory.of_model("m")] == ["ready"]


async def test_a_version_without_workers_is_registered_and_not_served(start: Start) -> None:
    running = await start()
    await running.register(initial_workers=0)
    assert (await running.registry.model("m")).versions["1.0"].number is None
    with pytest.raises(ServingError):
        await running.ask()
    await running.registry.scale("m", min_workers=1)
    assert (await running.ask()).startswith("1.0 of ")
    await running.registry.scale("m", min_workers=0)
    with pytest.raises(ServingError):
        await running.ask()
    assert (await running.registry.model("m")).versions["1.0"].min_workers == 0


async def test_a_default_without_workers_is_not_answered_by_another_version(start: Start) -> None:
    running = await start()
    await running.register("1.0", initial_workers=0)
    await running.register("2.0")
    assert (await running.ask("2.0")).startswith("2.0 of ")
    with pytest.raises(UnknownVersionError):
        running.directory.resolve(*target("m"))


@pytest.mark.parametrize(
    ("least", "most", "reason"),
    [
        (-1, None, "min_worker is -1; give a whole number from 0 to 64"),
        (10**9, None, "min_worker is 1000000000"),
        (3, 2, "max_worker is 2, and min_worker is 3"),
    ],
)
async def test_absurd_numbers_of_workers_are_refused(
    start: Start, least: int, most: int | None, reason: str
) -> None:
    running = await start()
    await running.register(initial_workers=0)
    with pytest.raises(InvalidRequestError, match=reason):
        await running.registry.scale("m", min_workers=least, max_workers=most)


async def test_an_archive_whose_handler_does_not_start_is_not_registered(start: Start) -> None:
    running = await start()
    with pytest.raises(BackendError, match="ZeroDivisionError"):
        await running.register(archive=running.archive(handler="1 / 0"))
    assert (await running.registry.registrations()).models == {}
    assert running.folders() == []
    await running.register()
    with pytest.raises(BackendError, match="ZeroDivisionError"):
        await running.register("2.0", archive=running.archive("2.0", handler="1 / 0"))
    assert [*(await running.registry.model("m")).versions] == ["1.0"]
    assert (await running.ask()).startswith("1.0 of ")


async def test_workers_that_cannot_be_scaled_stay(start: Start) -> None:
    running = await start()
    await running.register()
    before = await running.ask()
    (folder,) = running.folders()
    (running.folder / "archives" / folder / "handler.py").write_text("1 / 0")
    with pytest.raises(BackendError, match="ZeroDivisionError"):
        await running.registry.scale("m", min_workers=2)
    assert await running.ask() == before
    assert (await running.registry.model("m")).versions["1.0"].min_workers == 1


async def test_settings_of_the_archive_go_before_those_of_the_server_and_the_request(
    start: Start,
) -> None:
    of_server = {"m": {"1.0": ModelConfig(batch_size=5, max_batch_delay_ms=7)}}
    running = await start(models=of_server, default_startup_timeout=9)
    path = running.archive(files={"c.yaml": "batchSize: 3\nodd: 1"}, configFile="c.yaml")
    request = RegisterRequest(
        archive=path, url="m.mar", batch_size=9, response_timeout_s=8, max_batch_delay_ms=1
    )
    found = await running.registry.register(request)
    assert found.ignored == ("c.yaml: 'odd' has no meaning here but for handlers",)
    one = (await running.registry.model("m")).versions["1.0"]
    assert (one.batch_size, one.max_batch_delay_ms, one.min_workers) == (3, 7, 0)
    # An archive with such a file has its timeouts, whatever the server and the request say.
    assert (one.response_timeout_s, one.startup_timeout_s, one.job_queue_size) == (120, 120, 100)


async def test_an_archive_that_is_missing_or_unsafe_is_named(start: Start) -> None:
    running = await start()
    with pytest.raises(NotFoundError, match=r"Model not found at: no.mar"):
        await running.register(archive=running.folder / "no.mar")
    bad = running.folder / "bad.mar"
    bad.write_bytes(b"hello")
    with pytest.raises(InvalidRequestError, match=r"bad.mar begins with"):
        await running.register(archive=bad)


async def test_a_handler_that_never_answers_is_ended_after_its_timeout(start: Start) -> None:
    running = await start()
    source = """
        import time

        def handle(data, context):
            if data is None:
                return None
            time.sleep(600)
    """
    await running.register(archive=running.archive(handler=source), response_timeout_s=1)
    with pytest.raises(BackendError, match="did not finish within 1 s"):
        await running.ask()


SLOW_START = """
    import time

    class Slow:
        def initialize(self, context):
            time.sleep(%g)

        def handle(self, data, context):
            return ["started"] * len(data)
"""


async def test_workers_have_the_startup_timeout_of_their_registration(start: Start) -> None:
    running = await start()
    with pytest.raises(BackendError, match="did not open within 1 s"):
        await running.register(
            archive=running.archive(handler=SLOW_START % 600), startup_timeout_s=1
        )
    assert (await running.registry.registrations()).models == {}


async def test_a_startup_timeout_goes_before_the_servers_limit(start: Start) -> None:
    running = await start(open_time_limit_s=0.2)
    await running.register(archive=running.archive(handler=SLOW_START % 0.5))
    assert await running.ask() == "started"


async def test_requirements_are_installed_only_if_that_is_allowed(start: Start) -> None:
    wheel = io.BytesIO()
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tiny_colours.py", "RED = 'red'")
        folder = "tiny_colours-1.0.dist-info"
        about = "Metadata-Version: 2.1\nName: tiny_colours\nVersion: 1.0\n"
        archive.writestr(f"{folder}/METADATA", about)
        about = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        archive.writestr(f"{folder}/WHEEL", about)
        archive.writestr(f"{folder}/RECORD", "")
    name = "tiny_colours-1.0-py3-none-any.whl"
    source = """
        import tiny_colours

        def handle(data, context):
            return [tiny_colours.RED for _ in data or ()]
    """
    how = {
        "files": {name: wheel.getvalue(), "requirements.txt": f"./{name}\n"},
        "requirementsFile": "requirements.txt",
    }
    running = await start()
    with pytest.raises(BackendError, match="needs the package 'tiny_colours'"):
        await running.register(archive=running.archive(handler=source, **how))
    running.allow_installation()
    await running.register(archive=running.archive(handler=source, **how))
    assert await running.ask() == "red"
    await running.registry.scale("m", min_workers=2)
    assert await running.ask() == "red"
    bad = {**how, "files": {"requirements.txt": "./no-such.whl\n"}}
    with pytest.raises(InvalidRequestError, match=r"requirements.txt cannot be installed"):
        await running.register(archive=running.archive("2.0", handler=source, **bad))


async def test_a_registration_that_fails_leaves_those_of_others_alone(start: Start) -> None:
    running = await start(poll_s=0.1)
    source, reached = running.gate()
    bad = running.archive("bad", handler=source + "1 / 0", modelVersion="1.0")
    failing = asyncio.ensure_future(running.register(archive=bad))
    open_gate = await asyncio.to_thread(reached)
    await running.registry.unregister("m")
    request = RegisterRequest(archive=running.archive(), url="m.mar", initial_workers=1)
    await running.registry.register(request, waits=False)
    open_gate()
    with pytest.raises(ConflictError, match=r"1.0 of model m was scaled, unregistered or reg"):
        await failing
    assert await running.registry.scale("m", min_workers=1) == "1.0"
    assert (await running.ask()).startswith("1.0 of ")


async def test_an_archive_that_is_unregistered_while_it_loads_never_answers(start: Start) -> None:
    running = await start(poll_s=0.1)
    source, reached = running.gate()
    first = running.archive("first", handler=source + dedent(VERSION % "first"), modelVersion="1.0")
    loading = RegisterRequest(archive=first, url="first.mar", initial_workers=1)
    await running.registry.register(loading, waits=False)
    open_gate = await asyncio.to_thread(reached)
    (old,) = [one.number for one in await running.versions()]
    await running.registry.unregister("m")
    answering: set[int] = set()

    def note() -> None:
        with contextlib.suppress(ServingError):
            answering.add(running.directory.resolve(*target("m"))[0].lane.version)

    running.directory.changed = note
    second = RegisterRequest(archive=running.archive(), url="m.mar", initial_workers=1)
    await running.registry.register(second, waits=False)
    open_gate()
    await running.registry.scale("m", min_workers=1)
    assert (await running.ask()).startswith("1.0 of ")
    assert old not in answering


async def test_an_archive_waits_until_the_one_in_its_place_answers_no_more(start: Start) -> None:
    running = await start(poll_s=30)
    await running.register(archive=running.archive("first", modelVersion="1.0"))
    asked, may_act = asyncio.Event(), asyncio.Event()

    async def held(act: str, model: str, dependents: bool) -> None:
        asked.set()
        await may_act.wait()

    other = ArchiveRegistry(
        running.store, running.folder, running.directory, held, ServerProperties()
    )
    unregistering = asyncio.ensure_future(other.unregister("m"))
    await asked.wait()
    assert (await running.ask()).startswith("first of ")
    second = RegisterRequest(archive=running.archive(), url="m.mar", initial_workers=1)
    await running.registry.register(second, waits=False)
    with contextlib.suppress(ServingError):
        assert (await running.ask()).startswith("1.0 of ")
    may_act.set()
    await unregistering
    await running.registry.scale("m", min_workers=1)
    assert (await running.ask()).startswith("1.0 of ")


@pytest.mark.parametrize("is_scaled", [True, False])
async def test_a_call_that_another_one_overtakes_says_so(start: Start, is_scaled: bool) -> None:
    running = await start(poll_s=0.1)
    await running.register()
    (folder,) = running.folders()
    handler = running.folder / "archives" / folder / "handler.py"
    source, reached = running.gate()
    handler.write_text(source + handler.read_text())
    scaling = asyncio.ensure_future(running.registry.scale("m", min_workers=2))
    open_gate = await asyncio.to_thread(reached)
    if is_scaled:
        await running.registry.scale("m", min_workers=0)
    else:
        await running.registry.unregister("m")
    open_gate()
    with pytest.raises(ConflictError, match="by another call"):
        await scaling
    versions = [one.min_workers for one in await running.versions()]
    assert versions == ([0] if is_scaled else [])
    with contextlib.suppress(BackendError):
        await running.act("load", "m", False)  # what was being loaded is loaded, or closed


async def test_a_load_of_a_model_that_nothing_names_ends(start: Start) -> None:
    running = await start(poll_s=0.1)
    await running.register()
    await running.registry.scale("m", min_workers=0)
    with pytest.raises(BackendError, match="failed to load 'm': none of its versions is to be"):
        async with asyncio.timeout(30):
            await running.act("load", "m", False)


async def test_versions_whose_files_are_gone_are_not_scaled(start: Start) -> None:
    running = await start()
    await running.register(initial_workers=0)
    (folder,) = running.folders()
    shutil.rmtree(running.folder / "archives" / folder)
    with pytest.raises(BackendError, match=r"1.0 have changed .* \(their folder is gone\)"):
        await running.registry.scale("m", min_workers=2)


async def test_files_of_few_unregistered_archives_stay(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call that unregisters one more does not wait until the files of another are removed."""
    monkeypatch.setattr(left_folders, "MAX_LEFT_FOLDERS", 1)
    running = await start()
    removed: queue.Queue[str] = queue.Queue()
    goes_on = threading.Event()
    rmtree = shutil.rmtree

    def slowly(folder: str, **how: Any) -> None:
        goes_on.wait(20)
        rmtree(folder, **how)
        removed.put(folder)

    monkeypatch.setattr(shutil, "rmtree", slowly)
    folders = []
    for _ in range(3):
        await running.register(initial_workers=0, response_timeout_s=86_400)
        folders += [one.folder for one in await running.versions()]
        await asyncio.wait_for(running.registry.unregister("m"), 10)
    goes_on.set()
    assert [await asyncio.to_thread(removed.get, timeout=20) for _ in range(2)] == folders[:2]
    assert running.folders() == [Path(folders[2]).name], "a batch of the last one may still run"


async def test_archives_that_are_long_to_unpack_delay_no_other_call(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, goes_on, at_once, most = await start(), threading.Event(), [], []

    def slowly(path: Path, folder: Path) -> ModelArchive:
        at_once.append(path)
        most.append(len(at_once))
        goes_on.wait(20)
        at_once.pop()
        return open_archive(path, folder)

    monkeypatch.setattr(archive_registry, "open_archive", slowly)
    work = [
        asyncio.create_task(running.register(model_name=f"m{number}", initial_workers=0))
        for number in range(40)
    ]
    await asyncio.wait_for(running.registry.registrations(), 10)
    assert not goes_on.is_set()
    goes_on.set()
    await asyncio.gather(*work)
    assert max(most) <= registry_threads.MAX_UNPACKINGS
    assert len((await running.registry.registrations()).models) == 40


@pytest.mark.parametrize("act", ["register", "scale"])
async def test_a_call_that_waits_for_workers_ends_when_it_is_cancelled(
    tmp_path: Path, act: str
) -> None:
    """The model process looks no more: the server stops."""
    running = Running(tmp_path, ServerProperties(), 60, 120)
    waits = asyncio.Event()

    async def forever(*_: Any) -> None:
        waits.set()
        await asyncio.Event().wait()

    path = running.archive()
    given = running.store, tmp_path, running.directory, forever, ServerProperties()
    registry = ArchiveRegistry(*given)
    if act == "scale":
        registry.add(RegisterRequest(archive=path, url="m", initial_workers=0))
        task: asyncio.Task[Any] = asyncio.create_task(registry.scale("m", min_workers=2))
    else:
        request = RegisterRequest(archive=path, url="m", initial_workers=1)
        task = asyncio.create_task(registry.register(request))
    await waits.wait()
    task.cancel()
    await asyncio.wait({task}, timeout=10)
    assert task.cancelled()


@pytest.mark.parametrize("name", ["a/b", "x" * 129, "..", "a\0"])
async def test_names_that_the_store_cannot_have_are_refused(start: Start, name: str) -> None:
    running = await start()
    with pytest.raises(InvalidRequestError, match="model name"):
        await running.register(model_name=name, initial_workers=0)
    assert running.folders() == []
