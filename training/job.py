"""`python -m training.job`: runs one recipe for the training service, and tells how it goes.

In: a recipe's file, a store, a folder for the run; limits; SIGTERM to stop. Out: the published
version; events as JSON lines; an exit code.

    {"kind": "begun", "folder": "..."}                  the run works in this folder
    {"kind": "metric", "epoch": 3, "metrics": {...}}    an epoch is over
    {"kind": "published", "model": "m", "version": 4}   the last one, exit code 0
    {"kind": "stopped", "text": "..."}                  the last one, exit code 75
    {"kind": "failed", "text": "..."}                   the last one, exit code 1

Rules kept here: it goes on from its own checkpoint; it ends, with all it has started, when whoever
started it is gone (with `--lifeline`), so that two never work on one job; limits are set before any
code of the recipe is imported.
"""

import argparse
import json
import math
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from model_store.manifest import Manifest

STOPPED = 75
"""The exit code of a run that can go on elsewhere: EX_TEMPFAIL of sysexits.h."""
BUSY_S, BUSY_LOOK_S = 120.0, 1.0
"""How long a run may wait for the one before it to let go of its folder, and how often it looks."""
GIB = 2**30


class EventWriter:
    """Writes events, and remembers whether the run is to stop; the run's watcher.

    Args:
        file: where they go, a line each.
    """

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self.stop_asked = False

    def begin(self, folder: Path) -> None:
        """See `training.watcher.Watcher.begin`."""
        self.write("begun", folder=str(folder))

    def end_epoch(self, epoch: int, metrics: Mapping[str, float]) -> None:
        """See `training.watcher.Watcher.end_epoch`."""
        finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
        self.write("metric", epoch=epoch, metrics=finite)

    def write(self, kind: str, **fields: Any) -> None:
        """Writes one event at once."""
        self._file.write(json.dumps({"kind": kind, **fields}) + "\n")
        self._file.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the recipe. Returns the exit code."""
    asked = _parser().parse_args(arguments)
    with asked.events.open("a", encoding="utf-8") as file:
        events = EventWriter(file)

        def stop(*_: object) -> None:
            events.stop_asked = True

        signal.signal(signal.SIGTERM, stop)
        if asked.lifeline:
            threading.Thread(target=_end_with_parent, daemon=True, name="lifeline").start()
        set_limits(
            memory_bytes=int(asked.memory_limit_gib * GIB),
            file_bytes=int(asked.file_limit_gib * GIB),
            open_files=asked.open_files_limit,
        )
        return _run(asked, events)


def set_limits(*, memory_bytes: int, file_bytes: int, open_files: int) -> None:
    """Limits this process and all it starts; 0 leaves a limit as it is."""
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
    from training.errors import StoppedError, TrainingError
    from training.recipe_file import parse_recipe

    try:
        recipe = parse_recipe(asked.recipe.read_text("utf-8"), asked.recipe.name)
        from training.pipeline import run

        def attempt() -> "Manifest":
            return run(recipe, asked.store, asked.runs_dir, resume=True, watcher=events)

        manifest = _once_alone(attempt)
    except StoppedError as error:
        events.write("stopped", text=str(error))
        return STOPPED
    except MemoryError:
        events.write("failed", text=_too_much_memory(asked.memory_limit_gib, "MemoryError"))
        return 1
    except (TrainingError, StoreError, OSError) as error:
        events.write("failed", text=str(error))
        return 1
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        if "allocate memory" in text or "bad_alloc" in text:
            text = _too_much_memory(asked.memory_limit_gib, text)
        events.write("failed", text=text)
        raise  # the log has the rest
    events.write("published", model=manifest.model, version=manifest.version)
    return 0


def _once_alone(attempt: Callable[[], "Manifest"], look_s: float = BUSY_LOOK_S) -> "Manifest":
    """Runs it as soon as nobody else works in its folder.

    Whoever ran it before is gone or will notice soon that its lease has run out, and lets go then.

    Raises:
        RunBusyError: somebody still does after `BUSY_S`.
    """
    from training.errors import RunBusyError

    give_up_at = time.monotonic() + BUSY_S
    while True:
        try:
            return attempt()
        except RunBusyError:
            if time.monotonic() >= give_up_at:
                raise
            time.sleep(look_s)


def _too_much_memory(limit_gib: float, text: str) -> str:
    return (
        f"it needed more than {limit_gib:g} GiB of memory ({text}); lower data.batch_size, or have "
        "memory_limit_gib of the service raised"
    )


def _end_with_parent() -> None:
    """Waits for the end of standard input, which whoever started this holds open."""
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os.killpg(0, signal.SIGKILL)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Runs one recipe for the training service.")
    parser.add_argument("--recipe", type=Path, required=True, help="YAML file.")
    parser.add_argument("--store", required=True, help="URL of the model store.")
    parser.add_argument("--runs-dir", type=Path, required=True, help="Folder of the run.")
    parser.add_argument("--events", type=Path, required=True, help="File to append events to.")
    parser.add_argument("--lifeline", action="store_true", help="End when standard input does.")
    for name in ("memory-limit-gib", "file-limit-gib"):
        parser.add_argument(f"--{name}", type=float, default=0.0, help="0 for none.")
    parser.add_argument("--open-files-limit", type=int, default=0, help="0 for none.")
    return parser


if __name__ == "__main__":
    sys.exit(main())
