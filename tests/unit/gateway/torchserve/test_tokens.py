"""Tokens open what they are for until they expire; a renewed one closes the old one."""

import json
import stat
import time
from pathlib import Path

import pytest

from services.gateway.torchserve.tokens import MAX_KEY_FILE_BYTES, Kind, Tokens

DAY_S = 86_400.0


def made(path: Path, lifetime_s: float = DAY_S) -> Tokens:
    """Returns tokens with a new file."""
    tokens = Tokens(path, lifetime_s)
    tokens.create()
    return tokens


def key_of(path: Path, kind: str) -> str:
    """Returns the header with a key of the file."""
    return f"Bearer {json.loads(path.read_text())[kind]['key']}"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "key_file.json"


def test_each_key_opens_its_own_calls(path: Path) -> None:
    tokens = made(path)
    kinds: tuple[Kind, ...] = ("inference", "management", "API")
    for kind in kinds:
        header = key_of(path, kind)
        assert [tokens.admits(header, other) for other in kinds] == [o == kind for o in kinds]
        assert tokens.admits(header.replace(" ", "  "), kind)
        assert not tokens.admits(header.removeprefix("Bearer "), kind)
        assert not tokens.admits(header + " x", kind)
        assert not tokens.admits(header.lower(), kind)
    assert not tokens.admits("", "inference")


def test_the_file_is_as_torchserves_and_private(path: Path) -> None:
    made(path)
    document = json.loads(path.read_text())
    assert set(document) == {"management", "inference", "API"}
    assert set(document["API"]) == {"key"}
    assert set(document["inference"]) == {"key", "expiration time"}
    assert document["inference"]["expiration time"].endswith("Z")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_keys_expire_but_that_of_the_token_api(path: Path) -> None:
    tokens = made(path, lifetime_s=-1)
    assert not tokens.admits(key_of(path, "inference"), "inference")
    assert not tokens.admits(key_of(path, "management"), "management")
    assert tokens.admits(key_of(path, "API"), "API")


def test_a_renewed_key_closes_the_old_one_at_once(path: Path) -> None:
    tokens = made(path)
    old = key_of(path, "inference")
    assert tokens.admits(old, "inference")
    tokens.renew("inference")
    assert not tokens.admits(old, "inference")


def test_another_process_renews_a_key(path: Path) -> None:
    tokens, other = made(path), Tokens(path, DAY_S)
    old, kept = key_of(path, "inference"), key_of(path, "management")
    assert tokens.admits(old, "inference")
    other.renew("inference")
    new = key_of(path, "inference")
    assert new != old
    assert tokens.admits(new, "inference")
    assert not tokens.admits(old, "inference")
    assert tokens.admits(kept, "management")
    other.renew("management")
    assert tokens.admits(new, "inference")
    assert tokens.admits(key_of(path, "management"), "management")


LONG = "x" * (MAX_KEY_FILE_BYTES + 1)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"inference": 1}', LONG, "[" * 50_000])
def test_a_file_that_cannot_be_read_admits_nobody(path: Path, text: str) -> None:
    made(path)
    header = key_of(path, "inference")
    path.write_text(text)
    assert not Tokens(path, DAY_S).admits(header, "inference")
    path.unlink()
    assert not Tokens(path, DAY_S).admits(header, "inference")


def test_a_check_is_quick(path: Path) -> None:
    tokens = made(path)
    header = key_of(path, "inference")
    began = time.thread_time()
    for _ in range(1000):
        assert tokens.admits(header, "inference")
    assert time.thread_time() - began < 0.5
