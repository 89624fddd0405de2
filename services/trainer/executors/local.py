"""Runs a job in a separate process on the worker's machine.

The process has its own session, and so its own process group, which ends with it; limits on memory
and files, which it sets itself (`training.job`); and a time limit, which is enforced here. It holds
the other end of a pipe of the worker: if this worker dies, for any reason, the job does too, so
that a worker that takes it over has exclusive access to its checkpoint.

Rule: no job starts while the folder of the store, as it was when the service started, is gone: it
would publish into the place of a volume that was unmounted.
"""

import asyncio
import signal
import sys
from pathlib import Path

import training
from model_store.errors import StoreError
from model_store.storage.storage import Storage
from services.trainer.config import TrainerConfig
from services.trainer.executors.executor import Failed, Listener, Outcome, Stopped, Story, Succeeded
from services.trainer.executors.job_process import JobProcess
from services.trainer.records import LONGEST_TEXT, TrainingJob
from services.trainer.training_job_service import CODE, RECIPE
from training.job import STOPPED

PROGRAM = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); from training.job import main; "
    "sys.exit(main(sys.argv[1:]))"
)
"""Flambeau is first on the import path, whatever the working directory; the job's code is last."""


class LocalExecutor:
    """Implements `Executor` with a process per job.

    Args:
        config: folder of jobs, store, and limits.
        program: Python source of a job's process.

    Raises:
        StorageError: the folder of the store cannot be created or read.
    """

    takeovers, runs_apart = 1, False

    def __init__(self, config: TrainerConfig, program: str = PROGRAM) -> None:
        self._config, self._program = config, program
        self._store: Storage | None = None
        if config.store_folder is not None:  # created here, and never by a job
            self._store = Storage(config.store_url)

    async def run(self, job: TrainingJob, listener: Listener, stopping: asyncio.Event) -> Outcome:
        """See `Executor.run`."""
        if self._store is not None:
            try:
                await asyncio.to_thread(self._store.check_there)
            except StoreError as error:
                return Failed(str(error))
        command = [
            sys.executable, "-P", "-c", self._program, str(Path(training.__file__).parents[1]),
            *job_arguments(job, self._config), "--existing-store", "--events", "{events}",
            "--lifeline",
        ]  # fmt: skip
        process = JobProcess(command, self._config.runs_folder / job.id / CODE)
        story, last_line = Story(listener, job.epoch), [""]

        async def log(line: str) -> None:
            last_line[0] = line
            await listener.log(line)

        reading = asyncio.create_task(process.read(log, story.hear))
        try:
            cut_off = await self._wait(process, stopping)
        finally:
            await process.close(reading)
        if isinstance(story.outcome, Succeeded):  # a published version counts in any case
            return story.outcome
        if cut_off is not None:
            return cut_off
        if process.exit_code == STOPPED:
            return Stopped()
        return story.outcome or Failed(_describe_exit(process.exit_code, last_line[0]))

    async def discard(self, job: TrainingJob) -> bool:
        """See `Executor.discard`: the process has always ended already."""
        return True

    async def _wait(self, process: JobProcess, stopping: asyncio.Event) -> Outcome | None:
        """Waits for the process to end by itself; otherwise returns the outcome of its end."""
        limit_s = self._config.time_limit_s
        ended = asyncio.create_task(process.ended.wait())
        asked = asyncio.create_task(stopping.wait())
        try:
            await asyncio.wait({ended, asked}, timeout=limit_s, return_when="FIRST_COMPLETED")
            if ended.done():
                return None
            if not asked.done():
                return Failed(
                    f"it took longer than {limit_s:g} s (time_limit_s of the service); its "
                    "checkpoints stay: resume it, or train for fewer epochs"
                )
            process.ask_to_stop()
            await asyncio.wait({ended}, timeout=self._config.drain_timeout_s)
            return None if ended.done() else Stopped()
        finally:
            asked.cancel()
            ended.cancel()


def job_arguments(job: TrainingJob, config: TrainerConfig) -> list[str]:
    """Returns the arguments of `training.job` that do not depend on the executor."""
    folder = config.runs_folder / job.id
    return [
        "--recipe", str(folder / RECIPE), "--store", config.store_url, "--runs-dir", str(folder),
        "--memory-limit-gib", f"{config.memory_limit_gib}",
        "--file-limit-gib", f"{config.file_limit_gib}",
        "--open-files-limit", f"{config.open_files_limit}",
        *(f"--data-folder={Path(lent).absolute()}" for lent in config.data_folders),
    ]  # fmt: skip


def _describe_exit(code: int, last_line: str) -> str:
    """Describes the end of a process that reported no outcome."""
    words = f"; its last line: {last_line[: LONGEST_TEXT // 4]}" if last_line else ""
    if code < 0:
        name = signal.Signals(-code).name
        hint = " (out of memory?)" if -code == signal.SIGKILL else ""
        return f"its process was ended by {name}{hint}{words}"
    return f"its process exited with status {code} and published nothing{words}"
