"""Authentication: keys and tokens, valid and invalid, and files that change while it runs."""

import asyncio
import functools
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from services.access import key_set as key_sets
from services.access.authenticator import UNKNOWN, Authenticator
from services.access.config import AccessSettings, check_open
from services.access.credential import secret_among, secret_of
from services.access.tenants import Tenants
from services.access.web_tokens import claim_values
from services.errors import (
    AccessUnavailableError,
    ForbiddenError,
    InvalidRequestError,
    UnauthenticatedError,
    UnknownModelError,
)
from services.settings import ConfigError
from services.telemetry.access_metrics import AccessMetrics
from tests.fixtures.credentials import (
    KEY,
    key_set,
    keys_text,
    signing_key,
    token,
    token_signed_by_the_public_key,
    token_without_signature,
    write_credentials,
)
from tests.fixtures.http_listener import QuietHandler, http_listener


def access(**settings: Any) -> AccessSettings:
    """Returns the default settings with the given replacements."""
    return AccessSettings(**settings)


class Place:
    """An authenticator and its files."""

    def __init__(self, folder: Path, *grants: str, **settings: Any) -> None:
        self.folder = folder
        found = write_credentials(folder, *grants) | settings
        self.registry = CollectorRegistry()
        metrics = AccessMetrics(self.registry)
        self.authenticator = Authenticator(AccessSettings(**found), metrics, Tenants(metrics))

    def value(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(f"flambeau_access_{name}", labels) or 0.0

    def is_refused(self, secret: str) -> bool:
        with pytest.raises(UnauthenticatedError) as refused:
            self.authenticator.admit(secret)
        return str(refused.value) == UNKNOWN


@pytest.mark.parametrize(
    ("authorization", "api_key", "secret"),
    [
        ("Bearer a", "", "a"),
        ("bEARER  a", "", "a"),
        ("", " b ", "b"),
        ("Basic a", "", ""),
        ("Bearer", "", ""),
        ("Bearer a b", "", ""),
        ("", "", ""),
    ],
)
def test_where_a_credential_is_found(authorization: str, api_key: str, secret: str) -> None:
    assert secret_of(authorization, api_key) == secret
    given = [("x-other", "c"), ("authorization", authorization), ("x-api-key", api_key)]
    assert secret_among(given) == secret


@pytest.mark.parametrize("authorization", ["Bearer a", "Basic a"])
def test_two_kinds_of_credentials_are_refused(authorization: str) -> None:
    with pytest.raises(InvalidRequestError, match="two credentials, authorization and x-api-key"):
        secret_of(authorization, "b")


@pytest.mark.parametrize("name", ["authorization", "x-api-key"])
def test_two_credentials_of_a_kind_are_refused(name: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"{name} occurs twice"):
        secret_among([(name, "Bearer a"), ("x-other", ""), (name, "Bearer a")])


def test_a_key_is_good_for_its_grants(tmp_path: Path) -> None:
    place = Place(tmp_path, "infer:digits*", "manage:staging-*")
    caller = place.authenticator.admit(KEY)
    assert caller.name == "key:ci"
    caller.require("infer", "digits")
    caller.require("manage", "staging-x")
    with pytest.raises(
        ForbiddenError, match="key:ci does not have the scope 'manage' on model 'digits'"
    ):
        caller.require("manage", "digits")
    with pytest.raises(UnknownModelError, match=r"^model 'other' is not served$"):
        caller.require("infer", "other")
    assert place.value("refusals_total", reason="forbidden") == 2


def test_a_token_is_good_for_what_its_claims_say(tmp_path: Path) -> None:
    authenticator = Place(tmp_path).authenticator
    caller = authenticator.admit(token("openid infer:digits* profile"))
    assert caller.name == "jwt:ann"
    assert [caller.may("infer", "digits"), caller.may("infer", "x")] == [True, False]
    grants = {"team": ("infer:a", "train"), "boss": ("manage",)}
    mapped = Place(tmp_path, jwt_grants=grants, jwt_claim="realm.roles").authenticator
    secret = token("manage", realm={"roles": ["team", "nobody", 7]})
    caller = mapped.admit(secret)
    assert mapped.admit(secret) is caller, "it is proven once"
    found = [caller.may("infer", "a"), caller.may("train", "x"), caller.may("manage", "x")]
    assert found == [True, True, False]


def test_claims_are_texts_or_lists_under_names_that_may_have_dots() -> None:
    claims = {"https://a.b/c": "x y", "a": {"b": ["z", 1]}, "n": None}
    assert claim_values(claims, "https://a.b/c") == ["x", "y"]
    assert claim_values(claims, "a.b") == ["z"]
    assert [claim_values(claims, name) for name in ("n", "a", "q.r")] == [[], [], []]


NOW = time.time()


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (lambda: "", "no credential"),
        (lambda: "flb_wrong", "unknown key"),
        (token_without_signature, "algorithm is 'none'"),
        (token_signed_by_the_public_key, "algorithm is 'HS256'"),
        (lambda: token(aud="another"), "InvalidAudienceError"),
        (lambda: token(iss="https://evil.example"), "InvalidIssuerError"),
        (lambda: token(exp=int(NOW) - 60), "ExpiredSignatureError"),
        (lambda: token(nbf=int(NOW) + 600), "ImmatureSignatureError"),
        (lambda: token(iat=int(NOW) + 600), "ImmatureSignatureError"),
        (lambda: token(exp=None), "MissingRequiredClaimError"),
        (lambda: token(aud=None), "MissingRequiredClaimError"),
        (lambda: token(kid="two"), "its key is unknown: 'two'"),
        (lambda: token(key=signing_key("two")), "InvalidSignatureError"),
        (lambda: token()[:-4] + "AAAA", "InvalidSignatureError"),
        (lambda: "a.b.c", "DecodeError"),
        (lambda: f"{'W1tb' * 1500}.b.c", "DecodeError"),
        (lambda: token("x" * 9000), "more than 8192"),
    ],
)
def test_who_is_refused_learns_nothing_and_the_log_all(
    wrong: Any, why: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = Place(tmp_path)
    with caplog.at_level(logging.WARNING, "flambeau.access"):
        assert place.is_refused(wrong())
    assert why in caplog.records[0].reason  # type: ignore[attr-defined]
    assert place.value("refusals_total", reason="unauthenticated") == 1


def test_a_key_ends_with_its_time(tmp_path: Path) -> None:
    place = Place(tmp_path)
    (tmp_path / "keys.yaml").write_text(keys_text(expires="2020-01-01T00:00:00Z"))
    asyncio.run(place.authenticator.look())
    assert place.is_refused(KEY)


def test_a_token_ends_with_its_time_although_it_was_proven(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(tmp_path, jwt_leeway_s=0)
    secret = token(exp=int(time.time()) + 60)
    caller = place.authenticator.admit(secret)
    monkeypatch.setattr("services.access.caller.time.time", lambda: NOW + 3600)
    assert caller.is_over()


def test_a_file_that_changes_is_taken_over_and_a_broken_one_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place, file = Place(tmp_path), tmp_path / "keys.yaml"
    caller = place.authenticator.admit(KEY)
    impossible = keys_text() + "  expires: 2027-02-30T00:00:00Z\n"
    for broken in ("keys: [", "kyes: []", impossible, None):
        file.unlink() if broken is None else file.write_text(broken)
        asyncio.run(place.authenticator.look())
        assert place.authenticator.admit(KEY) is caller
        assert place.value("source_stale", source="api_keys") == 1
    assert "(did you mean 'keys'?)" in caplog.text or any(
        "(did you mean 'keys'?)" in getattr(record, "reason", "") for record in caplog.records
    )
    assert place.value("reloads_total", source="api_keys", outcome="failed") == 4
    file.write_text(keys_text())
    asyncio.run(place.authenticator.look())
    assert place.authenticator.admit(KEY) is caller, "it did not change"
    assert place.value("source_stale", source="api_keys") == 0
    file.write_text(keys_text("infer:other", name="ci"))
    asyncio.run(place.authenticator.look())
    assert caller.ended
    assert not place.authenticator.admit(KEY).may("infer", "digits")
    file.write_text(keys_text(secret="another"))
    asyncio.run(place.authenticator.look())
    assert place.is_refused(KEY)


def test_a_key_set_that_changes_has_tokens_proven_anew(tmp_path: Path) -> None:
    place = Place(tmp_path)
    old = token()
    caller = place.authenticator.admit(old)
    (tmp_path / "jwks.json").write_bytes(key_set("two"))
    asyncio.run(place.authenticator.look())
    assert caller.ended
    assert place.is_refused(old)
    assert place.authenticator.admit(token(kid="two", key=signing_key("two"))).name == "jwt:ann"
    (tmp_path / "jwks.json").write_text("{}")
    asyncio.run(place.authenticator.look())
    assert place.authenticator.admit(token(kid="two", key=signing_key("two")))
    assert place.value("source_stale", source="jwt_keys") == 1


def test_a_file_that_could_not_be_read_for_a_while_is_read_again(tmp_path: Path) -> None:
    place = Place(tmp_path)
    for name, source in (("keys.yaml", "api_keys"), ("jwks.json", "jwt_keys")):
        (tmp_path / name).rename(tmp_path / "away")
        asyncio.run(place.authenticator.look())
        assert place.value("source_stale", source=source) == 1
        (tmp_path / "away").rename(tmp_path / name)
        asyncio.run(place.authenticator.look())
        assert place.value("source_stale", source=source) == 0, "it is the same file as before"


@pytest.mark.parametrize("name", ["keys.yaml", "jwks.json"])
def test_what_is_no_file_in_its_place_is_told_and_the_watch_goes_on(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place, file = Place(tmp_path), tmp_path / name
    good, caller = file.read_bytes(), place.authenticator.admit(KEY)
    source = {"keys.yaml": "api_keys", "jwks.json": "jwt_keys"}[name]
    for kind in ("pipe", "device"):
        file.unlink()
        if kind == "pipe":
            os.mkfifo(file)
        else:
            file.symlink_to("/dev/zero")
        asyncio.run(place.authenticator.look())
        assert place.value("source_stale", source=source) == 1
        assert place.authenticator.admit(KEY) is caller
    assert any("it is not a regular file" in getattr(r, "reason", "") for r in caplog.records)
    file.unlink()
    file.write_bytes(good)
    asyncio.run(place.authenticator.look())
    assert place.value("source_stale", source=source) == 0


def test_nothing_that_a_source_holds_ends_the_watch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    place = Place(tmp_path)
    caller = place.authenticator.admit(KEY)

    def broken(*_: object) -> None:
        raise ZeroDivisionError("nobody thought of this")

    monkeypatch.setattr("services.access.authenticator.parse_keys", broken)
    monkeypatch.setattr("services.access.key_set.parse_key_set", broken)
    for name in ("keys.yaml", "jwks.json"):
        (tmp_path / name).write_text("changed")
    for _ in range(2):
        asyncio.run(place.authenticator.look())
    assert place.authenticator.admit(KEY) is caller
    for source in ("api_keys", "jwt_keys"):
        assert place.value("source_stale", source=source) == 1
        assert place.value("reloads_total", source=source, outcome="failed") == 1
    assert [r.exc_info is not None for r in caplog.records if r.levelname == "ERROR"] == [True] * 2


class Provider(QuietHandler):
    """Serves a key set, and counts requests."""

    protocol_version = "HTTP/1.1"
    keys = b""
    asked = 0
    raw = b""
    """Complete raw response, if it is to be invalid HTTP."""

    def do_GET(self) -> None:
        type(self).asked += 1
        self.close_connection = True
        if self.raw:
            self.wfile.write(self.raw)
            return
        self.send_response(302 if not self.keys else 200)
        self.send_header("location", "http://127.0.0.1:1/")
        self.end_headers()
        self.wfile.write(self.keys)


@pytest.fixture
def provider() -> Iterator[tuple[type[Provider], str]]:
    kind = type("_Provider", (Provider,), {})
    with http_listener(kind) as url:
        yield kind, f"{url}/jwks"


def test_keys_from_a_url_are_fetched_beside_and_not_for_every_stranger(
    tmp_path: Path, provider: tuple[type[Provider], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, url = provider
    place = Place(tmp_path, jwt_keys=url)
    with pytest.raises(AccessUnavailableError):
        place.authenticator.admit(token())
    asyncio.run(place.authenticator.look())
    assert place.value("source_stale", source="jwt_keys") == 1, "a redirect is not followed"
    monkeypatch.setattr(key_sets, "FETCH_FLOOR_S", 0.0)
    kind.keys = key_set()
    asyncio.run(place.authenticator.look())
    assert place.authenticator.admit(token()).name == "jwt:ann"
    monkeypatch.setattr(key_sets, "FETCH_FLOOR_S", 60.0)
    rotated = functools.partial(token, kid="two", key=signing_key("two"))
    for _ in range(5):
        assert place.is_refused(rotated())
    asyncio.run(place.authenticator.look())
    assert kind.asked == 2
    kind.keys = key_set("one", "two")
    monkeypatch.setattr(key_sets, "FETCH_FLOOR_S", 0.0)
    with pytest.raises(AccessUnavailableError):
        place.authenticator.admit(rotated())
    asyncio.run(place.authenticator.look())
    assert place.authenticator.admit(rotated())


@pytest.mark.parametrize(
    "raw",
    [
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n400\r\n{",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nno number\r\n",
        b"what?\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 1000 + b"\r\n",
        b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n" + b"[" * 100_000,
        b'HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n{"keys": [{"kty": "EC", "alg": ["x"]}]}',
    ],
)
def test_a_bad_answer_of_the_provider_leaves_the_keys_and_is_told_until_a_good_one(
    tmp_path: Path,
    provider: tuple[type[Provider], str],
    raw: bytes,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kind, url = provider
    monkeypatch.setattr(key_sets, "FETCH_FLOOR_S", 0.0)
    kind.keys = key_set()
    place = Place(tmp_path, jwt_keys=url)
    asyncio.run(place.authenticator.look())
    secret = token()
    caller = place.authenticator.admit(secret)
    for answer, stale in ((raw, 1), (raw, 1), (b"", 0)):
        kind.raw = answer
        with pytest.raises(AccessUnavailableError):  # so that they are fetched
            place.authenticator.admit(token(kid="two", key=signing_key("two")))
        asyncio.run(place.authenticator.look())
        assert place.value("source_stale", source="jwt_keys") == stale
        assert place.authenticator.admit(secret) is caller, "the keys are those from before"
    assert place.value("reloads_total", source="jwt_keys", outcome="failed") == 1, "said once"


def test_a_missing_key_wakes_who_fetches_it(
    tmp_path: Path, provider: tuple[type[Provider], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    provider[0].keys = key_set()
    monkeypatch.setattr("services.access.authenticator.LOOK_EVERY_S", 60.0)
    place = Place(tmp_path, jwt_keys=provider[1])

    async def test() -> None:
        read, look = asyncio.Event(), place.authenticator.look

        async def seen() -> None:
            await look()
            read.set()

        monkeypatch.setattr(place.authenticator, "look", seen)
        running = asyncio.create_task(place.authenticator.run())
        await asyncio.sleep(0)
        with pytest.raises(AccessUnavailableError):
            place.authenticator.admit(token())
        async with asyncio.timeout(10):
            await read.wait()
        assert place.authenticator.admit(token())
        running.cancel()

    asyncio.run(test())


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"api_keys_file": "missing.yaml"}, "api_keys_file missing.yaml"),
        ({"jwt_keys": "http://login.example/jwks"}, "a URL with https"),
        ({"jwt_keys": "missing.json"}, "cannot read jwt_keys"),
        ({"jwt_grants": {"a": ("infre",)}}, "did you mean 'infer'"),
    ],
)
def test_settings_that_cannot_be_right_stop_start_up(
    tmp_path: Path, settings: dict[str, Any], why: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        Place(tmp_path, **settings)
    assert why in str(refused.value)
    with pytest.raises(ConfigError, match="jwt_issuer and jwt_audience"):
        check_open(access(jwt_keys="x", jwt_issuer="y"), "127.0.0.1")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "models.internal", ""])
def test_strangers_reach_no_server_that_knows_nobody(host: str) -> None:
    with pytest.raises(ConfigError, match="flambeau access add") as refused:
        check_open(access(), host)
    assert "open_to_strangers" not in str(refused.value), "it opens gateways alone"
    with pytest.raises(ConfigError, match="set open_to_strangers=true, which opens inference"):
        check_open(access(), host, is_opened=False)
    check_open(access(), host, is_opened=True)
    check_open(access(api_keys_file="keys.yaml"), host)
    for local in ("127.0.0.1", "::1", "[::1]", "localhost", "127.8.8.8"):
        check_open(access(), local)
