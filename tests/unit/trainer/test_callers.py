"""Who may train, and with whose code."""

from pathlib import Path

import pytest

from services.errors import NotAllowedError, UnauthenticatedError
from services.settings import ConfigError
from services.trainer.callers import read_callers
from services.trainer.recipe_code import foreign_targets
from tests.fixtures.training_jobs import BEARER, TOKENS


@pytest.fixture
def tokens(tmp_path: Path) -> str:
    (tmp_path / "tokens").write_text(f"# who\n\n{TOKENS}bob fedcba9876543210\n")
    return str(tmp_path / "tokens")


def test_a_token_tells_its_caller(tokens: str) -> None:
    callers = read_callers(tokens, "0.0.0.0", api=True)
    assert callers.identify(BEARER) == "ann"
    assert callers.identify("bearer  fedcba9876543210") == "bob"
    callers.check_code("ann", "a code bundle")


@pytest.mark.parametrize("header", ["", "Basic abc", "Bearer", "Bearer a b"])
def test_a_call_without_a_token_is_told_how_to_send_one(tokens: str, header: str) -> None:
    with pytest.raises(UnauthenticatedError, match="--token-file"):
        read_callers(tokens, "127.0.0.1", api=True).identify(header)


def test_an_unknown_token_is_refused(tokens: str) -> None:
    with pytest.raises(UnauthenticatedError, match="nobody here has this token"):
        read_callers(tokens, "127.0.0.1", api=True).identify("Bearer 0123456789abcdeX")


def test_without_tokens_nobody_brings_code() -> None:
    callers = read_callers("", "127.0.0.1", api=True)
    assert callers.identify("") == callers.identify(BEARER) == ""
    with pytest.raises(NotAllowedError, match=r"a code bundle runs only .* \(tokens_file\)"):
        callers.check_code("", "a code bundle")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "trainer.internal"])
def test_strangers_reach_no_service_that_knows_nobody(host: str) -> None:
    with pytest.raises(ConfigError, match="tokens_file"):
        read_callers("", host, api=True)
    read_callers("", host, api=False)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.8.8.8"])
def test_a_local_service_needs_no_tokens(host: str) -> None:
    read_callers("", host, api=True)


@pytest.mark.parametrize(
    ("text", "why"),
    [("ann\n", "line 1"), ("ann short\n", "line 1"), ("# nobody\n", "names nobody")],
)
def test_a_file_of_tokens_is_checked(text: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text(text)
    with pytest.raises(ConfigError, match=why):
        read_callers(str(tmp_path / "tokens"), "127.0.0.1", api=True)
    with pytest.raises(ConfigError, match="cannot read tokens_file"):
        read_callers(str(tmp_path / "missing"), "127.0.0.1", api=True)


def test_foreign_code_is_found_wherever_a_recipe_names_it() -> None:
    document = {
        "name": "a:b c",
        "model": {"target": "nets.py:Net", "args": {"inner": [{"target": "os:system"}]}},
        "data": {"target": "training.datasets:digits", "args": {"path": "s3://bucket/x:y/z"}},
        "loss": {"target": "my_company.losses:Focal"},
        "hooks": ["training_evil:x", "training:x"],
    }
    assert foreign_targets(document, ["my_company"]) == [
        "model.target: nets.py:Net",
        "model.args.inner.0.target: os:system",
        "hooks.0: training_evil:x",
    ]
    assert "loss.target: my_company.losses:Focal" in foreign_targets(document, [])
    assert foreign_targets({"model": {"target": "../../x.py:Y"}}, ["my"]) == [
        "model.target: ../../x.py:Y"
    ]
