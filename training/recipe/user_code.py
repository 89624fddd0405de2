"""Formats errors of the code that a recipe names.

In: an exception of that code. Out: the error in one line, and below it one line for each call in
that code, with its file and line. Frames of this project, of torch and of other packages are left
out, because the reader cannot change them.
"""

import contextlib
import linecache
import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel, ValidationError

from flambeau.protocol.strict import explain
from model_store.errors import StoreError
from training.errors import TargetError, TrainingError

LINES_TOLD = 4
"""Number of calls that a message lists: the innermost ones."""
MOST_CHARACTERS = 400
"""Longest message of the error itself; longer ones are cut."""
_ROOT = Path(__file__).parents[2]
_OURS = tuple(
    _ROOT / name for name in ("flambeau", "model_store", "protos", "services", "training")
)
_LIBRARIES = tuple(Path(sysconfig.get_path(key)) for key in ("stdlib", "purelib", "platlib"))


def failure_in_words(error: BaseException) -> str:
    """Returns `KeyError: 'x'`, and a line for each call in the recipe's own code, outermost first.

    Args:
        error: exception that the code raised.
    """
    return "\n".join([headline(error), *own_lines(error)])


def headline(error: BaseException) -> str:
    """Returns the type and the message of an error in one line."""
    if isinstance(error, ValidationError):
        text = explain(error, _validated_model(error))
    elif isinstance(error, SyntaxError):
        text = f"{error.msg} ({_short(error.filename or '')}:{error.lineno})"
    else:
        text = " ".join(str(error).split())
    if len(text) > MOST_CHARACTERS:
        text = text[: MOST_CHARACTERS - 3] + "..."
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def place_in_words(filename: str, line: int) -> str:
    """Returns a line of code with its place: `nets.py:7: if x.sum() > 0:`."""
    return f"{_short(filename)}:{line}: {linecache.getline(filename, line).strip()}"


def own_lines(error: BaseException) -> list[str]:
    """Lists the calls in the recipe's code behind an error: `  nets.py:7 in forward: ...`."""
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if _is_own(frame.filename)
    ]
    return [
        f"  {_short(frame.filename)}:{frame.lineno} in {frame.name}: {frame.line}"
        for frame in frames[-LINES_TOLD:]
    ]


@contextlib.contextmanager
def own_code_named() -> Iterator[None]:
    """Reports exceptions of the recipe's own code in the block with their source lines.

    It is the fallback below the call sites that know which recipe key named the code. An exception
    with no frame in that code is a bug of this project, and passes unchanged.

    Raises:
        TargetError: the recipe's code raised.
    """
    try:
        yield
    except (TrainingError, StoreError, MemoryError):
        raise
    except Exception as error:  # user code may raise anything
        if not own_lines(error):
            raise
        raise TargetError(f"the recipe's code fails: {failure_in_words(error)}") from error


def _is_own(filename: str) -> bool:
    """Checks that a file is not part of this project, of Python or of an installed package."""
    if filename.startswith("<"):
        return False
    path = Path(filename)
    return not any(path.is_relative_to(folder) for folder in (*_OURS, *_LIBRARIES))


def _short(filename: str) -> str:
    """Returns a path relative to the working directory if it lies below it."""
    path = Path(filename)
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def _validated_model(error: ValidationError) -> type[BaseModel]:
    """Returns the model that supplies the known names for explaining an error."""
    from training.recipe.recipe import Recipe

    return Recipe if error.title == Recipe.__name__ else BaseModel
