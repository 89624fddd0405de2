"""Authenticates callers by API keys and JSON Web Tokens.

In: the headers of a call (`Authorization: Bearer …`, or `x-api-key`). Out: a `Caller`, or
`UnauthenticatedError` with the same message for every fault; the log has the reason.

Rules:
- keys are looked up by their SHA-256, so that the lookup time reveals nothing about them;
- a token is verified once, and then cached by its digest until it expires or the keys change;
- files are reloaded when they change, as a whole or not at all, off the event loop;
- no call waits here: missing keys are fetched in the background, and the caller has to retry.

`admit` may be called in any thread; everything else belongs to the event loop.
"""

import asyncio
import contextlib
import logging
import threading
import time

from services.access.api_keys import ApiKey, ApiKeys, KeysFileError, digest_of, parse_keys
from services.access.audit import refusals_audited
from services.access.caller import Caller, Principal
from services.access.config import AccessSettings
from services.access.grants import Scope
from services.access.key_set import KeySetError
from services.access.tenants import Tenants
from services.access.watched_file import WatchedFile
from services.access.web_tokens import TokenError, WebTokens
from services.errors import AccessUnavailableError, UnauthenticatedError
from services.settings import ConfigError
from services.telemetry.access_metrics import AccessMetrics
from services.telemetry.line_allowance import LineAllowance

logger = logging.getLogger("flambeau.access")

LOOK_EVERY_S = 1.0
"""Interval of the checks for changed files: one system call each."""
MAX_TOKENS = 4096
"""Limit of the cache of verified tokens."""
REFUSALS_LOGGED_A_SECOND = 10
UNKNOWN = (
    "a valid credential is required; send it as 'Authorization: Bearer …' or as 'x-api-key: …'"
)
"""Message of every fault, so that an attacker gets no hint."""


class Authenticator:
    """Authenticates the callers of a server.

    Args:
        settings: sources of the credentials.
        metrics: counts refusals.
        tenants: tenants that share the server.

    Raises:
        ConfigError: a file is unreadable or invalid; the libraries for tokens are not installed.
    """

    def __init__(self, settings: AccessSettings, metrics: AccessMetrics, tenants: Tenants) -> None:
        self._settings = settings
        self._metrics = metrics
        self._tenants = tenants
        self._file = WatchedFile(settings.api_keys_file) if settings.api_keys_file else None
        self._tokens = WebTokens(settings) if settings.jwt_keys else None
        self._keys: dict[bytes, tuple[ApiKey, Caller]] = {}
        self._bearers: dict[bytes, Caller] = {}
        self._lock = threading.Lock()
        self._asked: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._faults: dict[str, str] = {}
        """Reason why the last read of a source failed, by source."""
        self._lines = LineAllowance(REFUSALS_LOGGED_A_SECOND)
        self._read_first()

    def admit(self, secret: str) -> Caller:
        """Returns the bearer of a credential.

        Args:
            secret: result of `secret_of`.

        Raises:
            UnauthenticatedError: the credential is missing, unknown or expired.
            AccessUnavailableError: the keys that verify the token are not available yet.
        """
        digest = digest_of(secret)
        found = self._keys.get(digest)
        caller = found[1] if found else self._bearers.get(digest)
        if caller is not None and not caller.is_over():
            return caller
        if found or not secret:
            raise self._refusal("the key has expired" if found else "no credential was sent")
        if self._tokens is None or secret.count(".") != 2:
            raise self._refusal("unknown key")
        return self._verify(self._tokens, secret, digest)

    def principal(self, secret: str, peer: str, act: str = "", target: str = "") -> Principal:
        """Authenticates a call, and counts one request against the caller's rate.

        Args:
            secret: result of `secret_of`.
            peer: address of the caller.
            act: the management act that the call is for, whose refusal is audited; or empty.
            target: object of the act, if known.

        Raises:
            ServingError: as `admit`; RateLimitedError if the rate is exceeded.
        """
        with refusals_audited(act, target, "", peer):
            caller = self.admit(secret)
        with refusals_audited(act, target, caller.name, peer):
            caller.tenant.take_request()
        return Principal(caller, peer)

    def authorization(self, secret: str, scope: Scope) -> "CachedAuthorization":
        """Makes the authorization of a credential that is used repeatedly."""
        return CachedAuthorization(self, secret, scope)

    async def run(self) -> None:
        """Checks the sources for changes, until cancelled."""
        self._loop = asyncio.get_running_loop()
        self._asked = asyncio.Event()
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_EVERY_S):
                    await self._asked.wait()
            self._asked.clear()
            await self.look()

    async def look(self) -> None:
        """Loads changed sources; a faulty one is logged once, and its last state stays in force."""
        for source, look in (("api_keys", self._look_at_file), ("jwt_keys", self._look_at_set)):
            try:
                has_changed = await look()
            except (OSError, KeysFileError, KeySetError) as error:
                self._tell_fault(source, str(error))
            except Exception as error:
                # Sources are external: no content may end a server that has loaded its keys.
                self._tell_fault(source, repr(error), error)
            else:
                if has_changed is not None:
                    self._tell_read(source, has_changed)

    async def _look_at_file(self) -> bool | None:
        """Loads the API keys; None if their file has not changed."""
        keys = await asyncio.to_thread(self._read_file) if self._file is not None else None
        if keys is None:
            return None
        self._take_keys(keys)
        return True

    async def _look_at_set(self) -> bool | None:
        """Loads the keys of the identity provider; None if they were not read."""
        if self._tokens is None or not self._tokens.keys.is_due():
            return None
        has_changed = await asyncio.to_thread(self._tokens.keys.read)
        if has_changed:
            self._forget_bearers()
        return has_changed

    def _read_file(self) -> ApiKeys | None:
        """Reads the file of keys if it has changed; blocks, a second for thousands of keys."""
        assert self._file is not None, "there is one to look at"
        data = self._file.read_if_changed()
        return None if data is None else parse_keys(data)

    def _read_first(self) -> None:
        """Reads the sources at startup: files must be valid, a URL may be read later."""
        try:
            if self._file is not None:
                self._take_keys(self._read_file() or ApiKeys())
            if self._tokens is not None and not self._tokens.keys.is_remote:
                self._tokens.keys.read()
        except KeySetError as error:
            raise ConfigError(str(error)) from error
        except (OSError, KeysFileError) as error:
            words = error.strerror if isinstance(error, OSError) else error
            raise ConfigError(
                f"api_keys_file {self._settings.api_keys_file}: {words}; write the file with "
                "`flambeau access`, or correct the path"
            ) from error

    def _take_keys(self, keys: ApiKeys) -> None:
        """Replaces the keys by those of a file; unchanged keys keep their `Caller`."""
        before: dict[bytes, tuple[ApiKey, Caller]] = self._keys
        now: dict[bytes, tuple[ApiKey, Caller]] = {}
        with self._lock:
            for key in keys.keys:
                digest = bytes.fromhex(key.sha256)
                known = before.get(digest)
                now[digest] = known if known and known[0] == key else (key, self._caller_of(key))
        self._keys = now
        for digest, (_, caller) in before.items():
            caller.ended = now.get(digest, (None, None))[1] is not caller

    def _caller_of(self, key: ApiKey) -> Caller:
        name = f"key:{key.name}"
        tenant = self._tenants.find(name, key.requests_per_s, key.rows_per_s)
        return Caller(name, key.parsed_grants, key.expires_at, tenant, self._metrics)

    def _verify(self, tokens: WebTokens, secret: str, digest: bytes) -> Caller:
        try:
            bearer = tokens.check(secret)
        except TokenError as error:
            raise self._refusal(f"the token: {error}") from error
        except AccessUnavailableError:
            self._metrics.refused.labels("unavailable").inc()
            if self._loop is not None and self._asked is not None:
                self._loop.call_soon_threadsafe(self._asked.set)
            raise
        settings, name = self._settings, f"jwt:{bearer.subject}"
        with self._lock:
            tenant = self._tenants.find(name, settings.jwt_requests_per_s, settings.jwt_rows_per_s)
            caller = Caller(name, bearer.grants, bearer.expires_at, tenant, self._metrics)
            if len(self._bearers) >= MAX_TOKENS:
                del self._bearers[next(iter(self._bearers))]
            self._bearers[digest] = caller
        return caller

    def _forget_bearers(self) -> None:
        """Clears the cache of tokens, which are then verified again: a key may be revoked."""
        with self._lock:
            bearers, self._bearers = self._bearers, {}
        for caller in bearers.values():
            caller.ended = True

    def _tell_fault(self, source: str, reason: str, unforeseen: Exception | None = None) -> None:
        """Logs a new fault of a source once, with the traceback of an unforeseen exception."""
        if reason != self._faults.get(source):
            self._faults[source] = reason
            self._metrics.read(source, False)
            logger.error(
                f"{source} cannot be read: the previous ones stay in force",
                exc_info=unforeseen,
                extra={"reason": reason},
            )

    def _tell_read(self, source: str, has_changed: bool) -> None:
        """Logs that a source was read, if it has changed or was faulty before."""
        if self._faults.pop(source, None) is None and not has_changed:
            return
        self._metrics.read(source, True)
        if source == "api_keys":
            logger.info("API keys read", extra={"keys": len(self._keys)})
        else:
            logger.info("keys of the identity provider read")

    def _refusal(self, reason: str) -> UnauthenticatedError:
        """Counts and logs a refusal, and returns its error."""
        self._metrics.refused.labels("unauthenticated").inc()
        if self._lines.take(time.monotonic()) is not None:
            logger.warning("call refused: unauthenticated", extra={"reason": reason})
        return UnauthenticatedError(UNKNOWN)


class CachedAuthorization:
    """One credential for one scope: remembers its bearer and the last model.

    Args:
        authenticator: authenticator of the server.
        secret: the credential.
        scope: required scope.
    """

    __slots__ = ("_authenticator", "_known", "_model", "_scope", "_secret")

    def __init__(self, authenticator: Authenticator, secret: str, scope: Scope) -> None:
        self._authenticator = authenticator
        self._secret = secret
        self._scope: Scope = scope
        self._known: Caller | None = None
        self._model = ""

    def check(self) -> None:
        """Authenticates the bearer, for any model.

        Raises:
            ServingError: as `Authenticator.admit`.
        """
        self._authenticator.admit(self._secret)

    def caller(self, model: str) -> Caller:
        """Returns the bearer after checking its scope on a model.

        Raises:
            ServingError: as `Authenticator.admit` and `Caller.require`.
        """
        known = self._known
        if known is not None and model == self._model and not known.is_over():
            return known
        self._known = None
        caller = self._authenticator.admit(self._secret)
        caller.require(self._scope, model)
        self._known, self._model = caller, model
        return caller
