"""Errors in the code that a recipe names, in words.

In: what that code raised. Out: the error in one line, and below it a line for each call in that
code, with its file and line. Our own lines, torch's and those of other packages are left out: the
reader can change none of them.
"""

import contextlib
import linecache
import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel, ValidationError

from model_store.errors import StoreError
from model_store.strict import explain
from training.errors import TargetError, TrainingError

LINES_TOLD = 4
"""Calls that a message lists: the innermost ones."""
MOST_CHARACTERS = 400
"""Of what the error itself says."""
_ROOT = Path(__file__).parents[2]
_OURS = tuple(
    _ROOT / name for name in ("flambeau", "model_store", "protos", "services", "training")
)
_LIBRARIES = tuple(Path(sysconfig.get_path(key)) for key in ("stdlib", "purelib", "platlib"))


def failure_in_words(error: BaseException) -> str:
    """`KeyError: 'x'`, and a line for each call in the recipe's own code, outermost first.

    Args:
        error: what that code raised.
    """
    return "\n".join([headline(error), *own_lines(error)])


def headline(error: BaseException) -> str:
    """The type of an error and what it says, in one line."""
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
    """A line of code: `nets.py:7: if x.sum() > 0:`."""
    return f"{_short(filename)}:{line}: {linecache.getline(filename, line).strip()}"


def own_lines(error: BaseException) -> list[str]:
    """The calls in the recipe's own code that led to an error: `  nets.py:7 in forward: ...`."""
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if _is_own(frame.filename)
    ]
    return [
        f"  {_short(frame.filename)}:{frame.lineno} in {frame.name}: {frame.line}"
        for frame in frames[-LINES_TOLD:]
    ]


@contextlib.contextmanager
def own_code_named() -> Iterator[None]:
    """While the block lasts, what the recipe's own code raises is told with its lines.

    It is the net below the places that know which key of the recipe named the code. What comes from
    nowhere in that code is an error of ours, and stays as it is.

    Raises:
        TargetError: the recipe's code raised.
    """
    try:
        yield
    except (TrainingError, StoreError, MemoryError):
        raise
    except Exception as error:  # the code is the user's: it may raise anything
        if not own_lines(error):
            raise
        raise TargetError(f"the recipe's code fails: {failure_in_words(error)}") from error


def _is_own(filename: str) -> bool:
    """Whether a file is none of ours, of Python's or of an installed package."""
    if filename.startswith("<"):
        return False
    path = Path(filename)
    return not any(path.is_relative_to(folder) for folder in (*_OURS, *_LIBRARIES))


def _short(filename: str) -> str:
    """A path from the working directory on, where it lies there."""
    path = Path(filename)
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def _validated_model(error: ValidationError) -> type[BaseModel]:
    """The model whose names an error can be explained by."""
    from training.recipe.recipe import Recipe

    return Recipe if error.title == Recipe.__name__ else BaseModel
