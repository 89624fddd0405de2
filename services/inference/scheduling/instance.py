"""One instance of a model: a backend and the thread that it runs in.

In: batches, one at a time. Out: a report of each batch, passed to a callback on the event loop.

Rules: only this thread runs the backend, or the event loop itself if the run is shorter than a
hand-over (`loop_runs.py`); if the backend is in a process of its own, the loop begins small batches
and takes small outputs (docs/adr/0076); a batch that fails because of its inputs is rerun entry by
entry, so that one bad request never fails the others; a batch that fails because of the device is
not rerun, unless the device was a worker process that died: the process is restarted, and each
entry is retried once, and is at fault if that process dies, too; a dead entry is not rerun; the
event loop has CPU priority over the thread of the backend (docs/adr/0045).
"""

import asyncio
import contextlib
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from flambeau.protocol.tensor_spec import shape_text
from flambeau.protocol.tensors import Array
from model_store.host.failure_text import error_text, plain_line, states_sizes
from services.errors import (
    BackendError,
    DeviceError,
    InputRefusedError,
    UnreadAnswersError,
    WorkerProcessDiedError,
)
from services.inference.backends.backend import AwaitedRuns, Backend
from services.inference.scheduling.batch_arrays import BatchArrays, is_small
from services.inference.scheduling.batch_rules import Batch, BatchRules
from services.inference.scheduling.stateful_arrays import StatefulArrays
from services.low_priority_thread import STEPS_BELOW_LOOP, lower_priority
from services.queueing.memory_queue import Entry
from services.queueing.part_window import READ_WITHIN_S, PartWindow, is_small_part
from services.queueing.records import PYTHON_PLATFORM, Lane

logger = logging.getLogger("flambeau.worker")

AWAITED_BYTES = 128 * 1024
"""Inputs that the event loop hands to a process: joining and copying them takes some 50 µs."""
Result = Mapping[str, Array] | BackendError | UnreadAnswersError
"""An entry's outputs, or the error of its run or its reader."""


class BatchReport(msgspec.Struct, frozen=True, eq=False):
    """Outcome of a batch."""

    results: list[Result]
    """One result per entry, in order."""
    started_at: float
    """Start of the run; a `time.monotonic()` second."""
    seconds: float
    """Duration from `started_at` to the last result."""
    together: bool
    """True if one run of the whole batch answered all entries."""
    waited_s: float = 0.0
    """Seconds of it in which the backend waited for readers."""
    cpu_s: float = 0.0
    """CPU time that the calling thread took for it."""
    on_loop: bool = False
    """True if the event loop ran it."""
    input_s: float = 0.0
    """Seconds of it in which the inputs were joined."""
    output_s: float = 0.0
    """Seconds of it in which the outputs were split."""


class BatchPart(msgspec.Struct, frozen=True, eq=False):
    """One of several answers to the entries of a batch."""

    batch: Batch
    results: list[Result]
    """Outputs or error per entry, in order; no outputs for entries that nobody reads."""
    number: int
    started_at: float
    seconds: float
    """Duration from `started_at` to this part."""
    own_s: float = 0.0
    """Duration from the part before, or from `started_at`, to this part."""


class Instance:
    """A backend in a thread.

    Args:
        lane: model version, for thread names and logs.
        slot: its number among the instances of the lane; sequences are bound to it.
        arrays: converter between entries and the arrays of a batch.
        rules: batch rules, used to form a batch of one entry.
        backend: an open backend, or None to open one first.
        reopen: opener of another backend of the same verified artifact.
        finished: callback on the event loop with each batch and its report; or with an exception
            instead if no backend could be opened, after which the instance is unusable.
        gave: callback on the event loop with each part, if the backend gives several answers.
        restarted: callback on the event loop after a backend that died was replaced.
    """

    def __init__(
        self,
        lane: Lane,
        slot: int,
        arrays: BatchArrays | StatefulArrays,
        rules: BatchRules,
        backend: Backend | None,
        reopen: Callable[[], Backend],
        finished: Callable[["Instance", Batch | None, BatchReport | Exception | None], None],
        gave: Callable[[BatchPart], None],
        restarted: Callable[[], None],
    ) -> None:
        self._lane = lane
        self.slot = slot
        self._arrays = arrays
        self._rules = rules
        self._backend = backend
        self._reopen = reopen
        self._finished = finished
        self._gave = gave
        self._restarted = restarted
        self._loop = asyncio.get_running_loop()
        self._inbox: queue.SimpleQueue[Batch | None] = queue.SimpleQueue()
        self.batch: Batch | None = None
        """The running batch; set and cleared by the event loop."""
        self.expected_s = 0.0
        self.given_at = 0.0
        """Time at which the loop submitted the current batch; a `time.monotonic()` second."""
        self.started_at = 0.0
        """Start of the current run of the backend; a `time.monotonic()` second."""
        self.abandoned = False
        self.retired = False
        """True if the instance ends after its current batch; set by the event loop."""
        self._input_s = self._ran_at = 0.0
        self._awaited: AwaitedRuns | None = None
        """The backend, while the event loop awaits its run."""
        self._begun = False
        """True if the event loop has begun the run that the thread is to finish."""
        self._at_hand: Mapping[str, Array] | None = None
        """Outputs of such a run, if the event loop has them."""
        self._opening = False
        self._is_down = False
        self._has_given, self._waited_s = False, 0.0
        self._awaits_reader = False
        self._parts: deque[BatchPart] = deque()
        """Parts on their way to the event loop, which `_hand_over_asked` has been told of."""
        self._hand_over_asked = False
        name = f"worker-{lane.model}-{lane.version}"
        # A thread that blocks in its model for ever must not prevent the process from exiting.
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._thread.start()

    def run(self, batch: Batch, expected_s: float, *, on_loop: bool = False) -> None:
        """Submits a batch to the thread, which calls `finished` after the run.

        Args:
            batch: not empty.
            expected_s: expected seconds of the run.
            on_loop: True to run it now, in the calling thread; `finished` is called in the next
                turn of the loop. The thread reruns a batch that fails.
        """
        self.batch, self.expected_s = batch, expected_s
        self.given_at = self.started_at = time.monotonic()
        if not (self._ran_on_loop(batch) if on_loop else self._begun_on_loop(batch)):
            self._inbox.put(batch)

    def abandon(self) -> None:
        """Abandons the thread: its later results are ignored. Kills an isolated worker process."""
        self.abandoned = True
        self._stop_awaiting()
        for entry in self.batch.entries if self.batch is not None else ():
            if entry.window is not None:
                entry.window.close()
        backend = self._backend  # its thread may drop it meanwhile
        if backend is not None:
            backend.kill()
        self._inbox.put(None)

    def stop(self) -> None:
        """Lets the thread close its backend and end."""
        self._inbox.put(None)

    @property
    def fits_loop(self) -> bool:
        """True if the event loop may run its batches."""
        return self._backend is not None and self._backend.fits_loop

    @property
    def is_alive(self) -> bool:
        """True until its thread has ended, or was abandoned."""
        return not self.abandoned and self._thread.is_alive()

    def join(self) -> None:
        """Waits until the thread has ended; an abandoned thread may never end."""
        self._thread.join()

    def running_s(self, now: float) -> float:
        """Returns the duration of the current run in seconds, or since its last part.

        It is 0 while the backend is reopened, or waits for a reader.
        """
        return 0.0 if self._opening or self._awaits_reader else now - self.started_at

    def _main(self) -> None:
        lower_priority(STEPS_BELOW_LOOP)
        if self._backend is None:
            try:
                self._backend = self._reopen()
            except Exception as error:  # a runtime may raise any exception
                self._tell(None, error)
                return
            self._tell(None, None)
        while (batch := self._inbox.get()) is not None:
            report = self._execute(batch)
            if self.abandoned:
                break
            self._tell(batch, report)
            del batch, report  # an idle model must not retain the arrays of its last batch
        # The pool retains a replaced instance until the next replacement; not its backend.
        backend, self._backend = self._backend, None
        with contextlib.suppress(Exception):  # no caller is left to report it to
            backend.close()

    def _tell(self, batch: Batch | None, report: BatchReport | Exception | None) -> None:
        with contextlib.suppress(RuntimeError):  # the event loop has closed: the process exits
            self._loop.call_soon_threadsafe(self._finished, self, batch, report)

    def _ran_on_loop(self, batch: Batch) -> bool:
        started_at, together, cpu_s = self.given_at, True, time.thread_time()
        results: list[Result]
        try:
            results = [*self._run(batch)]
        except DeviceError as error:  # nothing is rerun
            results, together = self._after_failure(batch, error), False
        except Exception:  # its thread reruns it, and deals with the failure
            return False
        cpu_s, seconds = time.thread_time() - cpu_s, time.monotonic() - started_at
        report = BatchReport(
            results, started_at, seconds, together, 0.0, cpu_s, True, self._input_s,
            started_at + seconds - self._ran_at,
        )  # fmt: skip
        self._loop.call_soon(self._finished, self, batch, report)
        return True

    def _begun_on_loop(self, batch: Batch) -> bool:
        """Begins a batch whose process the event loop can await. Returns True if it has begun.

        That saves the wake-ups of a thread, and its turns with the interpreter lock.
        """
        runs = None if self._backend is None else self._backend.awaited()
        if runs is None or batch.slot is not None or not is_small(batch, AWAITED_BYTES):
            return False
        try:
            inputs = self._arrays.join(batch, runs.place)
            self._input_s = time.monotonic() - self.given_at
            runs.begin(inputs)
        except Exception:  # the thread begins it, and deals with the failure
            return False
        self._awaited = runs
        self._loop.add_reader(runs.fileno(), self._ended)
        return True

    def _stop_awaiting(self) -> None:
        if self._awaited is not None:
            self._loop.remove_reader(self._awaited.fileno())
            self._awaited = None

    def _ended(self) -> None:
        """Takes the outputs of an awaited run; the thread deals with all that is not small."""
        runs, batch, started_at = self._awaited, self.batch, self.given_at
        assert runs is not None
        assert batch is not None
        self._stop_awaiting()
        results: list[Result] | None
        outputs = self._at_hand = runs.outputs_at_hand()
        try:
            results = None if outputs is None else [*self._split(outputs, batch)]
        except Exception:  # the thread meets it again, and deals with it
            results = None
        if results is None:
            self._begun = True
            self._inbox.put(batch)
            return
        self._at_hand, now = None, time.monotonic()
        report = BatchReport(
            results, started_at, now - started_at, True, 0.0, 0.0, False, self._input_s,
            now - self._ran_at,
        )  # fmt: skip
        self._finished(self, batch, report)

    def _execute(self, batch: Batch) -> BatchReport:
        """Runs a batch and returns one result per entry, in order."""
        started_at, together, cpu_s = time.monotonic(), True, time.thread_time()
        if self._begun:
            started_at = self.given_at
        self._has_given, self._waited_s = False, 0.0
        results: list[Result]
        try:
            results = [*self._run(batch)]
        except BaseException as error:  # any exception is answered, even a model's SystemExit
            results, together = self._after_failure(batch, error), False
        cpu_s, seconds = time.thread_time() - cpu_s, time.monotonic() - started_at
        return BatchReport(
            results, started_at, seconds, together, self._waited_s, cpu_s, False, self._input_s,
            started_at + seconds - self._ran_at,
        )  # fmt: skip

    def _run(self, batch: Batch) -> Sequence[Result]:
        backend = self._backend
        assert backend is not None
        if self._begun:
            runs = backend.awaited()
            assert runs is not None
            self._begun, outputs, self._at_hand = False, self._at_hand, None
            return self._split(runs.finish() if outputs is None else outputs, batch)
        self.started_at = time.monotonic()
        inputs = self._arrays.join(batch, backend.buffer)
        joined_at = time.monotonic()
        self._input_s = joined_at - self.started_at
        if not backend.gives_parts:
            return self._split(backend.run(inputs), batch)
        with contextlib.closing(backend.run_in_parts(inputs)) as parts:
            windows = self._give_parts(parts, batch, backend.owns_outputs)
        self._ran_at = time.monotonic()
        return [self._ending(window) for window in windows]

    def _split(self, outputs: Mapping[str, Array], batch: Batch) -> Sequence[Result]:
        """Returns the outputs of each entry of a batch that has just run."""
        self._ran_at = time.monotonic()
        backend = self._backend
        assert backend is not None
        return self._arrays.split(outputs, batch, owned=backend.owns_outputs)

    def _ending(self, window: PartWindow) -> Result:
        """Returns what ends a request with parts: no more outputs, or its reader's error."""
        if not window.is_unread:
            return {}
        return UnreadAnswersError(
            f"model {self._lane} has {window.unread} parts of the answer ready, and the caller has "
            f"read none for {READ_WITHIN_S:g} s; read the parts as they come"
        )

    def _give_parts(
        self, parts: Iterator[Mapping[str, Array]], batch: Batch, owned: bool
    ) -> Sequence[PartWindow]:
        """Hands over each answer of a backend that gives several, as fast as it is read.

        Returns the window of each entry.
        """
        started_at = self.started_at
        windows = [PartWindow() for _ in batch.entries]
        for entry, window in zip(batch.entries, windows, strict=True):
            entry.window = window
            if entry.dead:  # its window was not there to be closed
                window.close()
        for number, outputs in enumerate(parts):
            split = self._arrays.split(outputs, batch, owned=owned)
            now = time.monotonic()
            own_s = now - self.started_at
            self._awaits_reader = True
            give_up_at = now + READ_WITHIN_S  # for all: one reader's time is every reader's
            is_small = is_small_part(outputs)
            wanted = [
                window.give(give_up_at - time.monotonic(), is_small=is_small) for window in windows
            ]
            self.started_at = time.monotonic()
            self._awaits_reader = False
            self._waited_s += self.started_at - now
            if self.abandoned or not any(wanted):
                break
            results = [
                one if is_wanted else self._ending(window)
                for one, is_wanted, window in zip(split, wanted, windows, strict=True)
            ]
            part = BatchPart(batch, results, number, started_at, now - started_at, own_s)
            self._has_given = True
            self._parts.append(part)
            if not self._hand_over_asked:
                self._hand_over_asked = True
                with contextlib.suppress(RuntimeError):  # the loop has closed: the process exits
                    self._loop.call_soon_threadsafe(self._hand_over)
        return windows

    def _hand_over(self) -> None:
        """Hands over the parts that are there, on the event loop.

        Those of one wake-up leave in one write: 6 % more small parts (`make bench-front`).
        """
        self._hand_over_asked = False
        while self._parts:
            self._gave(self._parts.popleft())

    def _after_failure(self, batch: Batch, error: BaseException) -> list[Result]:
        died = isinstance(error, DeviceError) and not self.abandoned and self._replace(error)
        # What has been answered in part is not run again: its caller would get parts twice. Nor are
        # steps of sequences: the state may have changed.
        is_over = self.abandoned or self._has_given or batch.slot is not None
        if is_over or (isinstance(error, DeviceError) and not died):
            return [self._failure(entry, batch, error) for entry in batch.entries]
        if len(batch.entries) == 1 and not died:
            return [self._failure(batch.entries[0], batch, error)]
        logger.warning(
            "batch failed; running its requests one by one",
            extra={"model": self._lane.model, "version": self._lane.version,
                   "requests": len(batch.entries), "error": str(error)},
        )  # fmt: skip
        return [self._run_alone(entry, batch) for entry in batch.entries]

    def _run_alone(self, entry: Entry, batch: Batch) -> Result:
        if entry.dead or self.abandoned:
            return BackendError("the request was cancelled or has expired")
        was_down = self._is_down
        try:
            return self._run(self._rules.alone(entry, batch))[0]
        except WorkerProcessDiedError as error:
            self._replace(error)
            if was_down:
                return self._failure(entry, batch, error)
            how = f" ({error.how})" if error.how else ""
            fault = BackendError(f"model {self._lane} ended its process on this input{how}")
            fault.__cause__ = error
            return self._failure(entry, batch, fault)
        except BaseException as error:  # as above
            return self._failure(entry, batch, error)

    def _replace(self, error: DeviceError) -> bool:
        """Reopens the backend if its worker process died. Returns True if that succeeded."""
        if not isinstance(error, WorkerProcessDiedError):
            return False
        assert self._backend is not None
        logger.error(
            "worker process died; starting another",
            extra={"model": self._lane.model, "version": self._lane.version, "error": str(error)},
        )
        self._opening = self._is_down = True
        try:
            self._backend.close()
            self._backend = self._reopen()
            self._is_down = False
        except Exception:
            logger.exception("the worker process could not be restarted")
            return False
        finally:
            self.started_at, self._opening = time.monotonic(), False
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._restarted)
        return True

    def _failure(self, entry: Entry, batch: Batch, error: BaseException) -> BackendError:
        if isinstance(error, InputRefusedError):  # not logged as a failure of the backend
            return InputRefusedError(f"model {self._lane} does not take this input: {error}")
        line = plain_line(error_text(error))
        if self._is_about_sizes(batch, error, line):
            return self._sizes_refused(entry, line)
        logger.error(
            "backend failed",
            extra={"model": self._lane.model, "version": self._lane.version,
                   "request_id": entry.request.request_id},
            exc_info=error,
        )  # fmt: skip
        if isinstance(error, DeviceError):
            return type(error)(line)
        if str(self._lane) not in line:  # a BackendError may name it
            line = f"model {self._lane} failed on this input: {line}"
        return BackendError(line)

    def _is_about_sizes(self, batch: Batch, error: BaseException, line: str) -> bool:
        """Returns True if the cause is that the request's sizes do not fit the model.

        The signature leaves sizes free, these have never run here, and the runtime's error is about
        sizes. A Python model refuses inputs by a ValueError.
        """
        return (
            self._rules.sizes_free
            and not batch.curve.runs
            and isinstance(error, Exception)
            and not isinstance(error, DeviceError)
            and str(self._lane) not in line  # outputs that are not the signature's
            and self._backend is not None
            and self._backend.platform != PYTHON_PLATFORM
            and states_sizes(str(error))
        )

    def _sizes_refused(self, entry: Entry, line: str) -> InputRefusedError:
        shapes = ", ".join(
            f"'{name}' {shape_text(array.shape)}" for name, array in entry.request.inputs.items()
        )
        logger.warning(
            "the model does not take the sizes of a request",
            extra={"model": self._lane.model, "version": self._lane.version,
                   "request_id": entry.request.request_id, "error": line},
        )  # fmt: skip
        return InputRefusedError(
            f"model {self._lane} does not accept this combination of sizes, {shapes}: {line}; "
            "send sizes that fit the model and each other"
        )
