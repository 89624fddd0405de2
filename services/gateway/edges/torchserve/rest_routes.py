"""The tables of routes of TorchServe's REST API: inference, and management.

In: heads of requests. Out: their handlers. One port may have both tables, as TorchServe's has where
both addresses are the same.

Rules: a call is refused without the right token before its body is awaited, and so is a call to
register or unregister where the model API is off.
Source: TorchServe 0.12 for paths, parameters and their defaults.
"""

import asyncio
import json
import re
from collections.abc import Awaitable
from functools import partial
from typing import Any
from urllib.parse import parse_qsl

from model_store.archives.handler_calls import HandlerRequest, Part
from model_store.archives.server_properties import ServerProperties
from services.errors import ServingError
from services.gateway.edges.torchserve.api_description import describe_api, describe_model
from services.gateway.edges.torchserve.request_parts import type_of
from services.gateway.edges.torchserve.rest_exchange import (
    NO_NEW_KEY,
    UNTOLD,
    Asked,
    Call,
    CallExchange,
    Common,
    RefusedExchange,
    RestExchange,
    common_fields,
)
from services.gateway.edges.torchserve.rest_prediction import (
    MODEL_NAME,
    InvocationExchange,
    PredictionExchange,
    PredictionRoute,
    nameless,
)
from services.gateway.request_accounting import REQUEST_ID
from services.gateway.torchserve.management import USUAL_LIMIT, Management, Registering, Said
from services.gateway.torchserve.predictions import EXPLAIN, Predictions
from services.gateway.torchserve.refusals import (
    METHOD_NOT_ALLOWED,
    NO_SUCH_METHOD,
    NO_SUCH_RESOURCE,
    RESOURCE_NOT_FOUND,
    Refusal,
    RefusedError,
    bad_request,
)
from services.gateway.torchserve.tokens import Kind, Tokens
from services.wire.body import Body
from services.wire.http1.exchange import Exchange, ExchangeConnection, Opener
from services.wire.http1.head import Head

URL_PATH = "url_path"
"""Header with the part of a path behind the version, for handlers."""
MAX_PARAMETERS = 100
_WHOLE = re.compile(r"[+-]?[0-9]{1,10}")
_NOT_FOUND = RefusedError(Refusal(404, RESOURCE_NOT_FOUND, NO_SUCH_RESOURCE))
_NOT_ALLOWED = RefusedError(Refusal(405, METHOD_NOT_ALLOWED, NO_SUCH_METHOD))
_CALLS = {"predict": "False", "infer": "False", "explain": "True"}


class RestRoutes:
    """The routes of one port.

    Args:
        predictions: the calls of handlers.
        management: the calls of management.
        tokens: tokens that callers need; None if they need none.
        properties: settings of the server.
        infers: True for the table of inference.
        manages: True for the table of management.
    """

    def __init__(
        self,
        predictions: Predictions,
        management: Management,
        tokens: Tokens | None,
        properties: ServerProperties,
        *,
        infers: bool,
        manages: bool,
    ) -> None:
        self._predictions, self._management = predictions, management
        self._tokens = tokens
        self._common = Common(common_fields(properties), predictions.responded)
        self._infers, self._manages = infers, manages
        self._accounting = predictions.path.accounting
        self._tasks: set[asyncio.Task[None]] = set()

    def route(self, head: Head) -> Opener:
        """Finds the handler of a request."""
        names = head.path.rstrip("/").split("/")[1:]
        if not names or names == ["api-description"]:
            if not names and head.method != "OPTIONS":
                return self._refused(_NOT_ALLOWED)
            return self._call(partial(self._described, "", ""))
        usual: Kind = "inference" if self._infers else "management"
        kind = usual
        try:
            found = self._inference(head, names) if self._infers else None
            if found is None and self._manages:
                kind = "API" if names == ["token"] else "management"
                found = self._managed(head, names)
        except RefusedError as error:
            found = self._refused(error)
        if found is None:
            found, kind = self._refused(_NOT_FOUND), usual
        if self._tokens is None:
            return found
        return partial(self._checked, self._tokens, kind, found)

    def _checked(
        self, tokens: Tokens, kind: Kind, found: Opener, connection: ExchangeConnection, head: Head
    ) -> Exchange:
        """Opens an exchange whose caller has the token for it, now."""
        if not tokens.admits(head.text("authorization") or "", kind):
            found = self._refused(NO_NEW_KEY if kind == "API" else UNTOLD)
        return found(connection, head)

    def unread(self, connection: ExchangeConnection, head: Head) -> Exchange:
        """Opens an exchange for what is no request."""
        return RestExchange(self._common, self._accounting.new_id(), connection, head)

    # The table of inference.

    def _inference(self, head: Head, names: list[str]) -> Opener | None:
        first = names[0]
        if first == "ping":
            return self._call(lambda *_: self._management.ping())
        if first in ("predictions", "explanations"):
            return self._prediction_of(head, names[1:], first == "explanations")
        if names == ["invocations"] or (len(names) == 3 and names[::2] == ["models", "invoke"]):
            return self._invocation(head, names[1] if len(names) == 3 else None)
        if names[-1] == "predict" and len(names) in (2, 3):
            version = names[1] if len(names) == 3 else ""
            return self._predict(head, first, version, given=_given(head))
        if names[:2] == ["v1", "models"] and len(names) == 3:
            model, _, verb = names[2].partition(":")
            if verb in ("predict", "explain"):
                return self._predict(head, model, told={EXPLAIN: _CALLS[verb]})
        if names[:2] == ["v2", "models"] and len(names) == 4 and names[3] in ("infer", "explain"):
            return self._predict(head, names[2], told={EXPLAIN: _CALLS[names[3]]})
        return None

    def _prediction_of(self, head: Head, names: list[str], explains: bool) -> Opener:
        if not names:
            raise _NOT_FOUND
        version = names[1] if len(names) > 1 else ""
        told = {URL_PATH: "/".join(names[2:]), EXPLAIN: str(explains)}
        return self._predict(head, names[0], version, told)

    def _invocation(self, head: Head, named: str | None) -> Opener:
        given = _given(head)
        model = named or _parameters(head).get(MODEL_NAME, "")
        if model:
            return self._predict(head, model, given=given)
        if head.method == "OPTIONS":
            return self._call(self._described_at_start)
        route = PredictionRoute(self._predictions, self._common.fields, head, "", given=given)
        return partial(InvocationExchange, route, has_place=named is not None)

    async def _described_at_start(self, *_: Any) -> Said:
        model = self._predictions.only_at_start()
        if not model:
            raise nameless()
        return await self._described(model, "")

    def _predict(
        self,
        head: Head,
        model: str,
        version: str = "",
        told: dict[str, str] | None = None,
        given: tuple[Part, ...] = (),
    ) -> Opener:
        if head.method == "OPTIONS":
            return self._call(partial(self._described, model, version))
        route = PredictionRoute(
            self._predictions, self._common.fields, head, model, version, told, given
        )
        return partial(PredictionExchange, route)

    # The table of management.

    def _managed(self, head: Head, names: list[str]) -> Opener | None:
        management, method = self._management, head.method
        if names == ["token"]:
            return self._call(self._renewed) if self._tokens is not None else None
        if names[:2] == ["v1", "models"] and len(names) == 3:
            if method != "GET":
                raise _NOT_ALLOWED
            return self._call(lambda *_: management.is_model_ready(names[2].partition(":")[0]))
        if names[0] != "models" or not (len(names) <= 3 or names[3:] == ["set-default"]):
            return None
        if method in ("POST", "DELETE"):
            management.check_model_api()
        if len(names) == 1:
            if method not in ("GET", "POST"):
                raise _NOT_ALLOWED
            return self._call(self._listed if method == "GET" else self._registered)
        model, version = names[1], names[2] if len(names) == 3 else ""
        calls: dict[str, Call] = {
            "GET": partial(self._describes, model, version),
            "PUT": partial(self._scaled, model, version),
            "DELETE": lambda *_: management.unregister(model, version),
            "OPTIONS": partial(self._described, model, version),
        }
        if len(names) == 4 and method == "PUT":
            return self._call(lambda *_: management.set_default(model, names[2]))
        if method not in calls:
            raise _NOT_ALLOWED
        return self._call(calls[method])

    def _listed(self, asked: Asked) -> Awaitable[Said]:
        given = _parameters(asked.head)
        return self._management.list(
            _whole(given, "limit", USUAL_LIMIT), _whole(given, "next_page_token", 0)
        )

    def _describes(self, model: str, version: str, asked: Asked) -> Awaitable[Said]:
        head = asked.head
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in head.headers}
        return self._management.describe(
            model,
            version,
            is_customized=_is_true(_parameters(head).get("customized", "")),
            request=HandlerRequest(id=asked.id, headers=headers),
        )

    def _scaled(self, model: str, version: str, asked: Asked) -> Awaitable[Said]:
        given = _parameters(asked.head)
        least = _whole(given, "min_worker", 1)
        return self._management.scale(
            model,
            version or given.get("model_version", ""),
            least,
            _whole(given, "max_worker", least),
            is_synchronous=_is_true(given.get("synchronous", "")),
        )

    def _registered(self, asked: Asked) -> Awaitable[Said]:
        given: dict[str, Any] = _parameters(asked.head)
        if type_of(asked.head.text("content-type") or "").lower() == "application/json":
            given = _object(asked.body)
        return self._management.register(registering(given), asked.caller_left)

    async def _described(self, model: str, version: str, *_: Any) -> Said:
        if model:
            await self._management.describe(model, version)  # it is registered
            return Said(200, describe_model(model))
        return Said(200, describe_api(infers=self._infers, manages=self._manages))

    def _renewed(self, asked: Asked) -> Said:
        head = asked.head
        kind = _parameters(head).get("type", "")
        tokens = self._tokens
        assert tokens is not None, "there is no such route without"
        if kind not in ("management", "inference") or head.method not in ("GET", "POST"):
            raise NO_NEW_KEY
        try:
            tokens.renew("management" if kind == "management" else "inference")
        except OSError as error:
            raise ServingError(
                f"the key file cannot be written: {error.strerror}; free some space"
            ) from error
        return Said(200, None)  # the file has the key

    def _call(self, call: Call) -> Opener:
        return lambda connection, head: CallExchange(
            call, self._tasks, self._common, self._id_of(head), connection, head
        )

    def _refused(self, error: RefusedError) -> Opener:
        return lambda connection, head: RefusedExchange(
            error, self._common, self._id_of(head), connection, head
        )

    def _id_of(self, head: Head) -> str:
        given = head.text(REQUEST_ID)
        return self._accounting.safe_id(given) if given else self._accounting.new_id()


def registering(given: dict[str, Any]) -> Registering:
    """Returns a registration by the parameters of a query, or the keys of an object of JSON.

    Numbers that are none have their defaults, as with TorchServe.
    """

    def text(name: str) -> str | None:
        value = given.get(name)
        return None if value is None else str(value)

    def number(name: str, none: int = -1) -> int | None:
        value = _whole(given, name, none)
        return None if value == none else value

    workers = number("initial_workers")
    return Registering(
        url=text("url"),
        model_name=text("model_name"),
        runtime=text("runtime"),
        handler=text("handler"),
        batch_size=number("batch_size"),
        max_batch_delay_ms=number("max_batch_delay", -100),
        initial_workers=None if workers is None else max(0, workers),
        response_timeout_s=number("response_timeout"),
        startup_timeout_s=number("startup_timeout"),
        is_synchronous=_is_true(str(given.get("synchronous", "true"))),
    )


def _parameters(head: Head) -> dict[str, str]:
    """Returns the parameters of a query; the first of several with one name.

    Raises:
        RefusedError: there are too many.
    """
    try:
        found = parse_qsl(
            head.query.decode("latin-1"), keep_blank_values=True, max_num_fields=MAX_PARAMETERS
        )
    except ValueError as error:
        raise bad_request(f"the query has over {MAX_PARAMETERS} parameters; give fewer") from error
    given: dict[str, str] = {}
    for name, value in found:
        given.setdefault(name, value)
    return given


def _given(head: Head) -> tuple[Part, ...]:
    """Returns the parameters of a query as parts."""
    return tuple(Part(name, "", value.encode()) for name, value in _parameters(head).items())


def _whole(given: dict[str, Any], name: str, otherwise: int) -> int:
    text = str(given.get(name, ""))
    number = int(text) if _WHOLE.fullmatch(text) else otherwise
    return number if -(2**31) <= number < 2**31 else otherwise


def _is_true(text: str) -> bool:
    return text.lower() == "true"


def _object(body: Body) -> dict[str, Any]:
    try:
        found = json.loads(bytes(body))
    except (ValueError, RecursionError) as error:
        raise bad_request(f"the body is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise bad_request("the body is no object of JSON; give url and further parameters")
    return found
