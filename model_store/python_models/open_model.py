"""Opens a Python model and runs batches through it. The class is the user's: it may do anything.

In: verified source, its side files in a folder, and permission to run them here. Out: answers that
match the signature. Servers and verification use this same code.

Errors are of three classes: a ValueError of the model refuses the input, which is the caller's
fault; `PythonModelError` is a fault of the model, in one line; a MemoryError is passed on.
"""

import asyncio
import contextlib
import inspect
import logging
import traceback
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from flambeau.protocol.python_model import Context, Network
from flambeau.protocol.signature import TensorSpec
from flambeau.protocol.tensors import Array
from model_store.manifest import PythonModel
from model_store.python_models.answers import (
    MAX_FOLDER_TEXT_BYTES,
    MAX_TEXT_BYTES,
    AnswerError,
    Answers,
)
from model_store.user_code import UserCodeError, forget, load_name

MAX_SOURCE_BYTES = 2**20
"""Maximum size of the class's source file."""
MAX_REPLAYED_PARTS = 10_000
"""Most answers of one request whose last one is compared."""
_READ_ONLY = "read-only"
"""NumPy's word, in a ValueError, for an array that may not be changed."""


class PythonModelError(Exception):
    """The model is faulty: its file, its class, its code or its answers."""


class OpenModel:
    """One instance of a user's class. One thread at a time uses it.

    Args:
        source: the class's file in UTF-8. It is executed: the caller has decided to trust it.
        file: path of that file, in the folder of the side files.
        described: class, settings and side files.
        outputs: outputs of the signature; None to find out what the model returns.
        device: device that it serves on.
        open_network: opens a side file as a network.

    Raises:
        PythonModelError: the file does not run or lacks the class, or the class fails.
    """

    def __init__(
        self,
        source: bytes,
        file: Path,
        described: PythonModel,
        outputs: Sequence[TensorSpec] | None,
        *,
        device: str,
        open_network: Callable[[Path], Network],
    ) -> None:
        self._file, self._name = file, described.name
        self._loop: asyncio.AbstractEventLoop | None = None
        context = Context(
            files={entry.file: file.parent / entry.file for entry in described.files},
            args=described.args,
            device=device,
            logger=logging.getLogger(f"flambeau.python_model.{described.name}"),
            open_network=open_network,
        )
        try:
            made = load_name(source, described.name, str(file))
        except UserCodeError as error:
            raise PythonModelError(str(error)) from error.__cause__
        self._model = self._calling("__init__", lambda: made())
        method, self._is_by_row = self._method()
        is_async_parts = inspect.isasyncgenfunction(inspect.unwrap(method))
        self._infer = method
        self._is_async_parts = is_async_parts
        self.gives_parts = is_async_parts or inspect.isgeneratorfunction(inspect.unwrap(method))
        """True if requests have many answers, from `run_in_parts`."""
        most_text = MAX_TEXT_BYTES if described.folder is None else MAX_FOLDER_TEXT_BYTES
        self._answers = Answers(f"{self._name}.{method.__name__}", outputs, most_text)
        if hasattr(self._model, "load"):
            self._calling("load", lambda: self._awaited(self._model.load(context)))

    @property
    def answers_row_by_row(self) -> bool:
        """True if its method is `infer_one`."""
        return self._is_by_row

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Answers a batch; of many answers, returns the last.

        Args:
            inputs: every input, [rows, ...].

        Raises:
            ValueError: the model refuses the input.
            PythonModelError: it failed, or its answer does not match the signature.
            MemoryError: memory is exhausted.
        """
        if not self.gives_parts:
            found: dict[str, Array] = self._guarded(self._run, _read_only(inputs))
            return found
        last: dict[str, Array] | None = None
        with contextlib.closing(self.run_in_parts(inputs)) as parts:
            for number, part in enumerate(parts):
                last = part
                if number >= MAX_REPLAYED_PARTS:
                    raise PythonModelError(
                        f"{self._name} gave more than {MAX_REPLAYED_PARTS:,} answers to one "
                        "request; verification needs their end"
                    )
        if last is None:
            raise PythonModelError(f"{self._name} gave no answer; it must yield at least one")
        return last

    def run_in_parts(self, inputs: Mapping[str, Array]) -> Generator[dict[str, Array], None, None]:
        """Yields each of the model's answers to a batch; raises as `run`."""
        given = _read_only(inputs)
        rows = len(next(iter(given.values())))
        if self._is_by_row and rows != 1:
            raise PythonModelError(
                f"{self._name}.infer_one yields its answers to one row at a time, and a batch has "
                f"{rows} rows; publish it with max_batch_size 1"
            )
        if self._is_by_row:
            begin = partial(self._infer, **next(_rows(given)))
        else:
            begin = partial(self._infer, given)
        parts = self._drained(begin)
        try:
            while (found := self._guarded(next, parts, _END)) is not _END:
                if self._is_by_row:
                    yield self._checked(self._answers.of_rows, [found])
                else:
                    yield self._checked(self._answers.of_batch, found, rows)
        finally:
            self._guarded(parts.close)

    def close(self) -> None:
        """Calls the model's `close`, whose exceptions are logged, and forgets its module."""
        try:
            if hasattr(self._model, "close"):
                self._calling("close", lambda: self._awaited(self._model.close()))
        except (PythonModelError, ValueError, MemoryError):
            logging.getLogger("flambeau.python_model").exception("a Python model did not close")
        finally:
            forget(type(self._model))
            if self._loop is not None:
                self._loop.close()

    def _method(self) -> tuple[Callable[..., Any], bool]:
        """Returns the method that answers, and whether it takes one row."""
        found = [name for name in ("infer", "infer_one") if hasattr(self._model, name)]
        if len(found) != 1:
            has = "both 'infer' and 'infer_one'" if found else "neither 'infer' nor 'infer_one'"
            raise PythonModelError(f"class {self._name} has {has}; write one of them")
        return getattr(self._model, found[0]), found[0] == "infer_one"

    def _run(self, given: Mapping[str, Array]) -> dict[str, Array]:
        if not self._is_by_row:
            rows = len(next(iter(given.values())))
            return self._checked(self._answers.of_batch, self._awaited(self._infer(given)), rows)
        found = [self._infer(**row) for row in _rows(given)]
        if found and inspect.isawaitable(found[0]):
            found = self._awaited(_together(found))
        return self._checked(self._answers.of_rows, found)

    def _checked(self, check: Callable[..., dict[str, Array]], *found: Any) -> dict[str, Array]:
        try:
            return check(*found)
        except AnswerError as error:
            raise PythonModelError(str(error)) from error

    def _awaited(self, found: Any) -> Any:
        """Returns a value, or the result of an awaitable, which runs on the model's event loop."""
        if not inspect.isawaitable(found):
            return found
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        return self._loop.run_until_complete(_result_of(found))

    def _drained(self, begin: Callable[[], Any]) -> Generator[object, None, None]:
        parts = begin()
        if not self._is_async_parts:
            yield from parts
            return
        try:
            while True:
                try:
                    yield self._awaited(anext(parts))
                except StopAsyncIteration:
                    return
        finally:
            self._awaited(parts.aclose())

    def _calling(self, method: str, call: Callable[[], Any]) -> Any:
        """Calls a method for which no caller is at fault: its ValueErrors are the model's."""
        try:
            return call()
        except (PythonModelError, MemoryError):
            raise
        except BaseException as error:  # it may even call `sys.exit`
            raise self._fault(error, method) from error

    def _guarded(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Calls the method that answers, and sorts its exceptions."""
        try:
            return call(*arguments)
        except (PythonModelError, MemoryError):
            raise
        except BaseException as raised:  # as above
            error = raised
            while isinstance(error, BaseExceptionGroup):  # of rows that ran together
                error = error.exceptions[0]
            is_refusal = isinstance(error, ValueError) and _READ_ONLY not in str(error)
            if is_refusal or isinstance(error, MemoryError):
                raise error from error.__cause__
            raise self._fault(error, "infer_one" if self._is_by_row else "infer") from raised

    def _fault(self, error: BaseException, method: str) -> PythonModelError:
        """Describes an exception of the user's code in one line, with its place."""
        text = " ".join(str(error).split())
        if isinstance(error, ValueError) and _READ_ONLY in text:
            text += "; inputs must not be changed, so copy the array first"
        raised = f"{type(error).__name__}: {text}" if text else type(error).__name__
        return PythonModelError(f"{self._name}.{method} raised {raised}{self._place(error)}")

    def _place(self, error: BaseException) -> str:
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if Path(frame.filename).parent == self._file.parent]
        if not own:
            return ""
        # The class's file may be made of a program or a notebook: users know its functions alone.
        path, last = Path(own[-1].filename), own[-1]
        where = f"function {last.name}" if path == self._file else path.name
        return f" ({where}, line {last.lineno})"


_END = object()


def _read_only(inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Returns views that cannot be written to: the arrays are the requests' own."""
    views = {}
    for name, array in inputs.items():
        view = views[name] = array.view()
        view.flags.writeable = False
    return views


def _rows(inputs: Mapping[str, Array]) -> Iterator[dict[str, Any]]:
    """Yields the inputs of each row, without the batch dimension."""
    names = list(inputs)
    for values in zip(*inputs.values(), strict=True):
        yield dict(zip(names, values, strict=True))


async def _result_of(awaitable: Any) -> Any:
    return await awaitable


async def _together(found: Sequence[Any]) -> list[Any]:
    """Awaits the answers to all rows; if one fails, cancels the others."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_result_of(one)) for one in found]
    return [task.result() for task in tasks]
