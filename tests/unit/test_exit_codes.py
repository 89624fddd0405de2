"""Exit codes of server processes: the error of a user, of the surroundings, or our own."""

import pytest

from model_store.errors import StorageError
from services.errors import QueueUnavailableError
from services.exit_codes import exit_code
from services.ports import PortError
from services.queueing.redis_streams.clients import QueueUrlError
from services.settings import ConfigError


def raising(error: Exception) -> None:
    raise error


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("x"), 2),
        (QueueUrlError("x"), 2),
        (PortError("x"), 1),
        (StorageError("x"), 1),
        (QueueUnavailableError("x"), 1),
        (TimeoutError("x"), 1),
    ],
)
def test_error_is_printed_and_gives_its_code(
    error: Exception, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(lambda: raising(error), OSError) == code
    assert capsys.readouterr().err == "error: x\n"


def test_other_errors_are_raised() -> None:
    with pytest.raises(TimeoutError):
        exit_code(lambda: raising(TimeoutError("x")))
    assert exit_code(lambda: None) == 0
