"""Words of commands that act on a store or at a server: rollouts, shadows, splits, aliases."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flambeau.cli import app
from model_store.store import ModelStore
from tests.fixtures.http_listener import QuietHandler, http_listener
from tests.fixtures.store_registry import store_registry, token_file_in
from tests.fixtures.store_versions import publish_in


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    """Returns a store with two versions of digits: production is 1, canary 2."""
    found = ModelStore(str(tmp_path / "store"))
    for _ in range(2):
        publish_in(found, tmp_path / "draft")
    found.promote("digits", 1)
    found.promote("digits", 2, "canary")
    return found


@pytest.fixture(params=["store", "server"])
def place(
    request: pytest.FixtureRequest, store: ModelStore, tmp_path: Path
) -> Iterator[tuple[str, ...]]:
    """Yields the options of a place that has the versions."""
    if request.param == "store":
        yield ("--store", store.url)
        return
    with store_registry(store) as registry:
        yield ("--server", registry.url, "--token-file", str(token_file_in(tmp_path)))


def run(*arguments: str) -> tuple[int, str]:
    found = CliRunner().invoke(app, [*arguments], env={"COLUMNS": "200"})
    return found.exit_code, " ".join(found.output.replace("│", " ").split())


@pytest.mark.parametrize("named", [("digits", "2"), ("digits/2",), ("digits@2",)])
def test_a_version_is_named_by_one_word_or_by_two(
    place: tuple[str, ...], named: tuple[str, ...]
) -> None:
    for kind, end in (("rollout", "abort"), ("shadow", "stop")):
        code, told = run(kind, "start", *named, *place)
        assert (code, f"{kind} of 2 at 1" in told) == (0, True), told
        assert run(kind, end, "digits", *place)[0] == 0


def test_an_alias_names_the_candidate(place: tuple[str, ...]) -> None:
    assert run("shadow", "start", "digits@canary", *place)[0] == 0
    code, told = run("rollout", "start", "digits@nothing", *place)
    assert (code, "'digits' has no alias 'nothing'" in told) == (1, True)


def test_an_act_that_ends_says_what_ended(place: tuple[str, ...]) -> None:
    run("rollout", "start", "digits/2", *place)
    run("shadow", "start", "digits/2", *place)
    said = "digits shadow of version 2 ended, production → 1, rollout of 2 at 1% (generation 5)"
    assert run("shadow", "stop", "digits", *place) == (0, said)
    said = "digits rollout of version 2 aborted at 1%, production → 1 (generation 6)"
    assert run("rollout", "abort", "digits", *place) == (0, said)
    assert run("split", "start", "digits", "colours", "1=50%", "2=50%", *place)[0] == 0
    said = "digits split 'colours' ended, production → 1 (generation 8)"
    assert run("split", "end", "digits", *place) == (0, said)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("rollout start digits", "which version of 'digits'? Give MODEL/VERSION, as digits/2"),
        ("rollout start digits/2 2", "'digits/2' and 2: give one version"),
        ("rollout start digits/two", "'two' is not a version number"),
        ("rollout start digits/1", "error: version 1 is already in production; name another"),
        ("rollout start digits/2 --steps 50%,10%", "error: steps are 50%, 10%; write ascending"),
        ("rollout start digits/2 --sticky x-user", "write header:NAME or parameter:NAME, as in"),
        (
            "split start digits 1=50% 2=50%",
            "the split a name before it, as in colours 1=50%",
        ),
        ("split start digits colours 1=50%", "a split compares two versions or more"),
        ("split start digits colours 1=50% 2=40%", "the shares add up to 90%; they must add up"),
        ("split start digits colours 1=50% 1=50%", "the versions are 1, 1; name each once"),
    ],
)
def test_a_start_that_cannot_be_is_refused_in_the_words_of_the_command_line(
    store: ModelStore, words: str, told: str
) -> None:
    code, output = run(*words.split(), "--store", store.url)
    assert code == 2
    assert told in output
    assert "[{" not in output


@pytest.mark.parametrize(
    "words",
    [
        "models promote digits/2 --at",
        "models rollback digits --at",
        "models history digits --server",
        "rollout start digits/2 --server",
        "shadow status digits --at",
        "split report digits --server",
    ],
)
def test_a_store_and_a_server_exclude_each_other(store: ModelStore, words: str) -> None:
    code, told = run(*words.split(), "http://127.0.0.1:1", "--store", store.url)
    assert code == 2
    assert "a server has a store of its own; give --store or --" in told
    assert "not both" in told


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ("models promote digits/2", "aliases production"),
        ("models delete digits/2", "versions 2"),
        ("models describe digits words", "digits"),
        ("rollout pause digits", "rollout pause"),
    ],
)
def test_an_answer_that_is_no_document_is_an_error_of_the_server(words: str, what: str) -> None:
    class Listing(QuietHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("content-length") or 0))
            self.send_response(200)
            self.send_header("content-length", "2")
            self.end_headers()
            self.wfile.write(b"[]")

        do_PATCH = do_DELETE = do_POST

    with http_listener(Listing) as url:
        code, told = run(*words.split(), "--at", url)
    assert (code, told) == (1, f"error: {url} answered without a document of {what}")
