"""The key file: contents, rejected contents, and atomic changes by a command."""

import contextlib
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.access.api_keys import (
    ApiKey,
    ApiKeys,
    KeysFileError,
    add_key,
    digest_of,
    new_key,
    parse_keys,
    read_keys,
    revoke_key,
)
from services.access.grants import Grant, parse_grant
from tests.fixtures.credentials import keys_text


def key(name: str = "ci", secret: str = "x") -> ApiKey:
    digest = digest_of(secret).hex()
    return ApiKey.model_validate({"name": name, "sha256": digest, "grants": ["infer:digits*"]})


def test_a_key_is_added_listed_and_revoked_and_never_written(tmp_path: Path) -> None:
    path, secret = tmp_path / "new" / "keys.yaml", new_key()
    assert len(secret) == 47
    assert new_key() != secret
    add_key(path, key(secret=secret))
    add_key(path, key("other"))
    assert secret not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [found.name for found in read_keys(path).keys] == ["ci", "other"]
    assert read_keys(path).keys[0] == key(secret=secret)
    with pytest.raises(KeysFileError, match="a key named 'ci' exists"):
        add_key(path, key(secret="z"))
    with pytest.raises(KeysFileError, match=r"no key 'othr' \(did you mean 'other'\?\)"):
        revoke_key(path, "othr")
    revoke_key(path, "ci")
    revoke_key(path, "other")
    assert read_keys(path) == ApiKeys()
    assert [file.name for file in path.parent.iterdir()] == ["keys.yaml"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("keys: [", "not YAML"),
        ("- a", "is "),
        ("kyes: []", "unknown key 'kyes' (did you mean 'keys'?)"),
        (keys_text(expire="2030-01-01T00:00:00Z"), "(did you mean 'expires'?)"),
        (
            keys_text("infre:digits"),
            "'infre:digits' does not begin with a scope (did you mean 'infer'?)",
        ),
        (keys_text("infer:a b"), "names no models"),
        (keys_text(expires="soon"), "'keys.0.expires' is 'soon'"),
        (keys_text(requests_per_s=-1), "'keys.0.requests_per_s' is -1"),
        (keys_text().replace("sha256: ", "sha256: z"), "'keys.0.sha256'"),
        (keys_text() + keys_text().partition("\n")[2], "occurs 2 times"),
        ("keys: " + "[" * 100, "not YAML"),
        ("keys: " + "[" * 20_000, "over 64 lists and mappings in each other"),
        (keys_text() + "  expires: 2027-02-30T00:00:00Z\n", "day is out of range for month"),
        (keys_text() + "  expires: 2027-02-03T00:00:00+99:00\n", "not YAML"),
        ("keys: !!bool x", "not YAML: KeyError"),
        ("keys: !!timestamp x", "not YAML: AttributeError"),
        ('keys: "\\UFFFFFFFF"', "not YAML: OverflowError"),
        ("keys: " + "1" * 5000, "not YAML: ValueError"),
        ("keys: &all [*all]", "an alias refers to a value that contains it"),
    ],
)
def test_a_file_with_a_typo_is_refused_with_its_place(text: str, why: str) -> None:
    with pytest.raises(KeysFileError) as refused:
        parse_keys(text.encode())
    assert why in str(refused.value)


def test_a_time_without_a_zone_is_utc() -> None:
    (found,) = parse_keys(keys_text().encode() + b"  expires: 2030-01-01 00:00:00\n").keys
    assert found.expires_at == 1893456000


@given(st.text(max_size=30))
def test_a_grant_is_read_or_refused_in_words(text: str) -> None:
    found = None
    with contextlib.suppress(ValueError):
        found = parse_grant(text)
    if found is None:
        with pytest.raises(ValueError, match=r"does not begin with a scope|names no models"):
            parse_grant(text)
    else:
        assert parse_grant(str(found)) == found


@pytest.mark.parametrize(
    ("text", "model", "covers"),
    [
        ("infer", "anything", True),
        ("infer:digits*", "digits-large", True),
        ("infer:digits*", "my-digits", False),
        ("infer:digits", "Digits", False),
        ("manage:[ab]?", "a1", True),
        ("train:[ab]?", "c1", False),
    ],
)
def test_patterns(text: str, model: str, covers: bool) -> None:
    assert parse_grant(text).covers(model) is covers
    assert parse_grant("infer:x") == Grant("infer", "x")
