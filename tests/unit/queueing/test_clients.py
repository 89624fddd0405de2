"""The URL of a queue."""

from pathlib import Path

import pytest
from redis.exceptions import RedisError

from services.queueing.redis_streams.clients import QueueUrlError, RedisClients, redacted


@pytest.mark.parametrize(
    "url",
    [
        "redis://host",
        "redis://user:secret@host:6380/2",
        "rediss://host:6379",
        "unix:///run/redis.sock",
        "redis+cluster://host:6379",
        "redis+sentinel://one:26379,two/name/1",
    ],
)
async def test_every_way_to_set_redis_up_has_its_url(url: str) -> None:
    clients = RedisClients(url)
    for client in (clients.open(), clients.open_blocking()):
        await client.close()


@pytest.mark.parametrize("url", ["", "here", "http://host", "redis://", "redis://host:port"])
def test_what_is_no_such_url_is_said(url: str) -> None:
    with pytest.raises(QueueUrlError, match="URL"):
        RedisClients(url)


@pytest.mark.parametrize("name", ["ssl_ca_certs", "ssl_certfile"])
def test_certificates_that_are_not_there_are_named(name: str, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    for file, words in (("none.pem", "cannot be read"), ("empty", "holds no certificate")):
        with pytest.raises(QueueUrlError, match=f"{name} .*{words}"):
            RedisClients(f"rediss://host?{name}={tmp_path}/{file}")


def test_a_service_behind_sentinels_must_be_named() -> None:
    with pytest.raises(QueueUrlError, match="name the service"):
        RedisClients("redis+sentinel://host:26379")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://user:secret@host:1/2", "redis://user:***@host:1/2"),
        ("redis://:secret@host", "redis://:***@host"),
        ("redis://host", "redis://host"),
        ("redis://host?password=secret", "redis://host"),
    ],
)
def test_a_password_is_not_shown(url: str, shown: str) -> None:
    assert redacted(url) == shown
    assert RedisClients(url).url == shown
    with pytest.raises(QueueUrlError) as caught:
        RedisClients(url.replace("redis", "mysql", 1))
    assert "secret" not in str(caught.value)


def test_what_has_no_scheme_is_not_shown() -> None:
    assert redacted("user:secret@host") == "***"


async def test_a_cluster_nobody_answers_for_is_out_of_reach_like_any_redis() -> None:
    clients = RedisClients("redis+cluster://127.0.0.1:1")
    redis = clients.open()
    trip = redis.trip()
    trip.add("PING")
    for attempt in (redis.send("PING"), trip.execute()):
        with pytest.raises(RedisError):
            await attempt
    with pytest.raises(RedisError):
        async with clients.subscribed("x"):
            """Nothing: it fails before."""
    await redis.close()
