"""Lua scripts that Redis runs atomically: files beside this one, each with its keys at its head."""

import hashlib
from collections.abc import Sequence
from importlib import resources
from typing import Any

from redis.exceptions import NoScriptError

from services.queueing.redis_streams.clients import Commands, Trip


class Script:
    """One Lua file.

    Args:
        name: of the file, without `.lua`.
        package: in whose folder `lua` it lies.
    """

    def __init__(self, name: str, package: str = "services.queueing.redis_streams") -> None:
        folder = resources.files(package) / "lua"
        self._text = (folder / f"{name}.lua").read_text()
        self._digest = hashlib.sha1(self._text.encode(), usedforsecurity=False).hexdigest()

    async def __call__(self, redis: Commands, keys: Sequence[str], *args: object) -> Any:
        """Runs it; its text is sent only to a Redis that does not know it.

        Raises:
            RedisError: Redis is out of reach, or the script failed.
        """
        try:
            return await redis.send("EVALSHA", self._digest, len(keys), *keys, *args)
        except NoScriptError:
            return await redis.send("EVAL", self._text, len(keys), *keys, *args)

    def add(self, trip: Trip, keys: Sequence[str], *args: object) -> None:
        """Adds it to a trip; where Redis does not know it, its result is a `NoScriptError`."""
        trip.add("EVALSHA", self._digest, len(keys), *keys, *args)
