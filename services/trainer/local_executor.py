"""Runs a job in a process of its own, beside the worker.

The process has a session, and so a process group, of its own, which ends with it; limits on memory
and files, which it sets itself (`training.job`); and a limit on time, which is kept here. It holds
the other end of a pipe of ours: if this worker dies, however it dies, the job does too, so that
whoever takes it over is alone with its checkpoint.
"""

import asyncio
import contextlib
import os
import re
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import training
from services.trainer.config import TrainerConfig
from services.trainer.executor import Failed, Listener, Outcome, Stopped, Story
from services.trainer.job_desk import CODE, RECIPE
from services.trainer.records import LONGEST_TEXT, TrainingJob
from training.job import STOPPED

CHUNK_BYTES = 64 * 2**10
LAST_WORDS_S = 5.0
"""How long what a job has written may take to be read once it has ended."""
_START = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); from training.job import main; "
    "sys.exit(main(sys.argv[1:]))"
)
"""Our package is found first, wherever the job works; its code is found after everything else."""
_LINE_ENDS = re.compile(rb"[\r\n]+")


class LocalExecutor:
    """See `Executor`.

    Args:
        config: the folder of jobs, the store, and the limits.
    """

    takeovers = 1

    def __init__(self, config: TrainerConfig) -> None:
        self._config = config

    async def run(self, job: TrainingJob, listener: Listener, stopping: asyncio.Event) -> Outcome:
        """See `Executor.run`."""
        process, events = await self._start(job)
        story, last_line = Story(listener, job.epoch), [""]

        async def log(line: str) -> None:
            last_line[0] = line
            await listener.log(line)

        assert process.stdout is not None, "it is a pipe"
        pumps = [
            asyncio.create_task(_pump(process.stdout, log)),
            asyncio.create_task(_pump(events, story.hear)),
        ]
        try:
            cut_off = await self._wait(process, stopping)
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
            _, late = await asyncio.wait(pumps, timeout=LAST_WORDS_S)
            for pump in late:  # something that left the group holds the pipe
                pump.cancel()
        if cut_off is not None:
            return cut_off
        code = process.returncode or 0
        if code == STOPPED:
            return Stopped()
        return story.outcome or Failed(_obituary(code, last_line[0]))

    async def discard(self, job: TrainingJob) -> None:
        """See `Executor.discard`: its process has ended already."""

    async def _wait(
        self, process: asyncio.subprocess.Process, stopping: asyncio.Event
    ) -> Outcome | None:
        """Waits for the process to end by itself; else gives what its end counts as."""
        limit_s, ended = self._config.time_limit_s, asyncio.create_task(process.wait())
        asked = asyncio.create_task(stopping.wait())
        try:
            await asyncio.wait({ended, asked}, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                return None
            if not asked.done():
                return Failed(
                    f"it took longer than {limit_s:g} s (time_limit_s of the service); its "
                    "checkpoints stay: resume it, or train for fewer epochs"
                )
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
            await asyncio.wait({ended}, timeout=self._config.drain_timeout_s)
            return None if ended.done() else Stopped()
        finally:
            asked.cancel()
            ended.cancel()

    async def _start(
        self, job: TrainingJob
    ) -> tuple[asyncio.subprocess.Process, asyncio.StreamReader]:
        ours, theirs = os.pipe()
        folder = self._config.runs_folder / job.id
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-P", "-c", _START, str(Path(training.__file__).parents[1]),
                *job_arguments(job, self._config), "--events", f"/dev/fd/{theirs}", "--lifeline",
                cwd=folder / CODE,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                pass_fds=(theirs,),
                start_new_session=True,
            )  # fmt: skip
        except BaseException:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        reader = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(ours, "rb")
        )
        return process, reader


def job_arguments(job: TrainingJob, config: TrainerConfig) -> list[str]:
    """The arguments of `training.job` that do not depend on where it runs."""
    folder = config.runs_folder / job.id
    return [
        "--recipe", str(folder / RECIPE), "--store", config.store_url, "--runs-dir", str(folder),
        "--memory-limit-gib", f"{config.memory_limit_gib}",
        "--file-limit-gib", f"{config.file_limit_gib}",
        "--open-files-limit", f"{config.open_files_limit}",
    ]  # fmt: skip


async def _pump(reader: asyncio.StreamReader, hear: Callable[[str], Awaitable[None]]) -> None:
    """Passes lines on; of one that is too long, the beginning."""
    rest = b""
    while chunk := await reader.read(CHUNK_BYTES):
        *lines, rest = _LINE_ENDS.split(rest + chunk)
        rest = rest[:CHUNK_BYTES]
        for line in lines:
            if line:
                await hear(line.decode(errors="replace"))
    if rest:
        await hear(rest.decode(errors="replace"))


def _obituary(code: int, last_line: str) -> str:
    """How a process ended that had no last words."""
    words = f"; its last line: {last_line[: LONGEST_TEXT // 4]}" if last_line else ""
    if code < 0:
        name = signal.Signals(-code).name
        hint = " (out of memory?)" if -code == signal.SIGKILL else ""
        return f"its process was ended by {name}{hint}{words}"
    return f"its process ended with status {code} and published nothing{words}"
