"""`python -m training.job`: runs one recipe for the training service, and reports its progress.

In: a recipe's file, a store, a folder for the run; limits; SIGTERM to stop. Out: the published
version; events as JSON lines; an exit code.

    {"kind": "begun", "folder": "..."}                  the run works in this folder
    {"kind": "metric", "epoch": 3, "metrics": {...}}    an epoch is over
    {"kind": "published", "model": "m", "version": 4, "alias": " → production"}
                                                        the last one, exit code 0
    {"kind": "stopped", "text": "..."}                  the last one, exit code 75
    {"kind": "failed", "text": "...", "error": "..."}   the last one, exit code 1; an error's name

The launcher (`training.distributed.launcher`) starts a recipe for several processes with torchrun,
which starts this program once for each process; any other torchrun may do so too. The first
process reports and publishes.

Rules: a run resumes from its own checkpoint; with `--lifeline` the process and all its children
exit when the parent process is gone, so that two never work on one job; limits are set before any
code of the recipe is imported.
"""

import argparse
import json
import math
import resource
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from training.distributed.lifeline import hold_lifeline
from training.distributed.signal_files import GO_ON, STOP

if TYPE_CHECKING:
    from model_store.manifest import Manifest

STOPPED = 75
"""The exit code of a run that can resume elsewhere: EX_TEMPFAIL of sysexits.h."""
BUSY_S, BUSY_LOOK_S = 120.0, 1.0
"""Seconds that a run waits for the previous run to unlock its folder, and between attempts."""
GIB = 2**30


class EventWriter:
    """Writes events, and records a request to stop; the run's watcher.

    Args:
        file: file of the events, one a line.
        together: the launcher's folder, if it has started this process.
    """

    def __init__(self, file: IO[str], together: Path | None = None) -> None:
        self._file = file
        self._together = together
        self._is_terminated = False
        self.is_of_rank = False
        """True once this process has joined others that train with it."""
        self.alias_told = ""
        """The outcome for the recipe's alias, once a version is published."""

    @property
    def stop_asked(self) -> bool:
        """See `training.watcher.Watcher.stop_asked`."""
        if self._together is not None and (self._together / STOP).exists():
            return True
        return self._is_terminated

    @property
    def is_restarted(self) -> bool:
        """True if torchrun ends this rank because another was lost; its errors follow from that.

        torchrun sends SIGTERM to the process group, so this rank's child processes are gone too.
        """
        return self._is_terminated and self._together is not None

    def stop(self, *_: object) -> None:
        """Asks the run to stop; a signal handler."""
        self._is_terminated = True

    def begin(self, folder: Path) -> None:
        """See `training.watcher.Watcher.begin`."""
        self.write("begun", folder=str(folder))

    def started(self) -> None:
        """See `training.watcher.Watcher.started`: restarted ranks then resume from here."""
        if self._together is not None:
            (self._together / GO_ON).touch()

    def end_epoch(self, epoch: int, metrics: Mapping[str, float]) -> None:
        """See `training.watcher.Watcher.end_epoch`."""
        finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
        self.write("metric", epoch=epoch, metrics=finite)

    def promoted(self, text: str) -> None:
        """See `training.watcher.Watcher.promoted`."""
        self.alias_told = text

    def write(self, kind: str, **fields: Any) -> None:
        """Writes one event and flushes it."""
        self._file.write(json.dumps({"kind": kind, **fields}) + "\n")
        self._file.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the recipe. Returns the exit code."""
    asked = _parser().parse_args(arguments)
    with asked.events.open("a", encoding="utf-8") as file:
        events = EventWriter(file, asked.together)
        signal.signal(signal.SIGTERM, events.stop)
        if asked.lifeline:
            hold_lifeline()
        set_limits(
            memory_bytes=int(asked.memory_limit_gib * GIB),
            file_bytes=int(asked.file_limit_gib * GIB),
            open_files=asked.open_files_limit,
        )
        code = _run(asked, events)
    if events.is_of_rank:
        from training.distributed.ranks import exit_rank

        exit_rank(code)
    return code


def set_limits(*, memory_bytes: int, file_bytes: int, open_files: int) -> None:
    """Limits this process and its children; 0 leaves a limit as it is."""
    if memory_bytes:
        _limit(resource.RLIMIT_DATA, memory_bytes)
    if file_bytes:
        _limit(resource.RLIMIT_FSIZE, file_bytes)
    if open_files:
        _limit(resource.RLIMIT_NOFILE, open_files)
    _limit(resource.RLIMIT_CORE, 0)


def _limit(kind: int, value: int) -> None:
    hard = resource.getrlimit(kind)[1]
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    resource.setrlimit(kind, (value, value))


def _run(asked: argparse.Namespace, events: EventWriter) -> int:
    from model_store.errors import StoreError
    from model_store.host.memory_limit import tells_of_memory
    from training.errors import MemoryRunOutError, StoppedError, TrainingError
    from training.recipe.user_code import failure_in_words, own_lines

    # The launcher reads the failure from the events; torchrun restarts on other exit codes only.
    stopped, failed = (STOPPED, 1) if asked.together is None else (0, 0)
    try:
        manifest = _run_here_or_together(asked, events)
    except StoppedError as error:
        events.write("stopped", text=str(error))
        return stopped
    except MemoryRunOutError as error:
        limit = f"({asked.memory_limit_gib:g})"
        text = f"{error}; or have memory_limit_gib of the service {limit} raised"
        _tell_failure(events, error, text)
        return failed
    except MemoryError as error:
        _tell_failure(events, error, _too_much_memory(asked.memory_limit_gib, "MemoryError"))
        return failed
    except (TrainingError, StoreError, OSError) as error:
        _tell_failure(events, error, str(error))
        return failed
    except Exception as error:
        text = failure_in_words(error)
        if tells_of_memory(text):
            text = _too_much_memory(asked.memory_limit_gib, text)
            _tell_failure(events, error, text)
        elif asked.together is not None and isinstance(error, RuntimeError):
            events.write("crashed", text=text)  # as other ranks do when one of them is lost
        else:
            _tell_failure(events, error, text)
            if own_lines(error):  # the recipe's code failed, and its lines are reported
                return failed
        raise  # the log has the traceback
    if manifest is not None:
        events.write(
            "published", model=manifest.model, version=manifest.version, alias=events.alias_told
        )
    return 0


def _run_here_or_together(asked: argparse.Namespace, events: EventWriter) -> "Manifest | None":
    """Returns the published version; None if another process publishes and reports it.

    Raises:
        TrainingError: see `training.errors`.
        StoreError: the store cannot be opened or written.
    """
    from model_store.store import ModelStore
    from training.recipe.file import parse_recipe

    if asked.existing_store:
        ModelStore(asked.store, when_missing="refuse")
    recipe = parse_recipe(asked.recipe.read_text("utf-8"), asked.recipe.name)
    from training.distributed.ranks import ALONE, join_ranks, started_by_torchrun

    # Read before the ranks meet, and so before any of them can write the file.
    ranks, resume = ALONE, is_to_resume(asked)
    if started_by_torchrun():
        ranks, events.is_of_rank = join_ranks(), True
    elif recipe.train.processes > 1:
        from training.distributed.launcher import run_together

        run_together(recipe, _same_for_all(asked), events)
        return None
    from training.pipeline import assist, run
    from training.sources.data_files import DataReach

    # The recipe may be untrusted: besides the working directory, which holds its code, it reads
    # only the folders that the operator permits.
    reach = DataReach(folders=(Path.cwd(), *asked.data_folder))
    if not ranks.is_first:
        assist(recipe, asked.store, asked.runs_dir, resume, events, reach, ranks)
        return None
    sign = None
    if asked.sign_with is not None:
        from model_store.signatures.signing import signer_with

        sign = signer_with(asked.sign_with)

    def attempt() -> "Manifest":
        return run(
            recipe,
            asked.store,
            asked.runs_dir,
            resume=resume,
            sign=sign,
            watcher=events,
            reach=reach,
            ranks=ranks,
            into=asked.into,
        )

    return _once_alone(attempt)


def is_to_resume(asked: argparse.Namespace) -> bool:
    """Returns True to resume from a checkpoint; restarted ranks always do."""
    return not asked.anew or (asked.together is not None and (asked.together / GO_ON).exists())


def _same_for_all(asked: argparse.Namespace) -> list[str]:
    """Returns the arguments that all processes share."""
    given = {
        "recipe": asked.recipe.absolute(),
        "store": asked.store,
        "into": asked.into,
        "runs-dir": asked.runs_dir,
        "memory-limit-gib": asked.memory_limit_gib,
        "file-limit-gib": asked.file_limit_gib,
        "open-files-limit": asked.open_files_limit,
    }
    words = [word for name, value in given.items() for word in (f"--{name}", str(value))]
    return [*words, *(f"--data-folder={folder.absolute()}" for folder in asked.data_folder)]


def _tell_failure(events: EventWriter, error: Exception, text: str) -> None:
    if events.is_restarted:
        events.write("crashed", text=text)
    else:
        events.write("failed", text=text, error=type(error).__name__)


def _once_alone(attempt: Callable[[], "Manifest"]) -> "Manifest":
    """Runs the attempt as soon as no other process works in its folder.

    The process of the previous attempt is gone, or will notice that its lease has expired and exit.

    Raises:
        RunBusyError: another process still works there after `BUSY_S`.
    """
    from training.errors import RunBusyError

    give_up_at = time.monotonic() + BUSY_S
    while True:
        try:
            return attempt()
        except RunBusyError:
            if time.monotonic() >= give_up_at:
                raise
            time.sleep(BUSY_LOOK_S)


def _too_much_memory(limit_gib: float, text: str) -> str:
    return (
        f"it needed more than {limit_gib:g} GiB of memory ({text}); lower data.batch_size, or have "
        "memory_limit_gib of the service raised"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Runs one recipe for the training service.")
    parser.add_argument("--recipe", type=Path, required=True, help="YAML file.")
    parser.add_argument("--store", required=True, help="URL of the model store.")
    parser.add_argument("--into", default="", help="URL of the store that gets the version.")
    parser.add_argument("--existing-store", action="store_true", help="Create no folder for it.")
    parser.add_argument("--runs-dir", type=Path, required=True, help="Folder of the run.")
    parser.add_argument("--events", type=Path, required=True, help="File to append events to.")
    parser.add_argument(
        "--data-folder", type=Path, action="append", default=[],
        help="Allowed folder of data besides the working directory; may be repeated.",
    )  # fmt: skip
    parser.add_argument("--lifeline", action="store_true", help="Exit when standard input ends.")
    parser.add_argument("--anew", action="store_true", help="Do not resume from a checkpoint.")
    parser.add_argument("--sign-with", type=Path, help="PEM file of a private key.")
    parser.add_argument("--together", type=Path, help="Folder of the launcher, which sets this.")
    for name in ("memory-limit-gib", "file-limit-gib"):
        parser.add_argument(f"--{name}", type=float, default=0.0, help="0 for none.")
    parser.add_argument("--open-files-limit", type=int, default=0, help="0 for none.")
    return parser


if __name__ == "__main__":
    sys.exit(main())
