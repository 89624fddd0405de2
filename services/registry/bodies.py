"""Parameters and JSON of the registry's calls over REST: what is read, and what is answered."""

from typing import Any, TypeVar

from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import Response

from flambeau.protocol.strict import StrictModel, explain
from model_store.document import LARGE, SMALL, parse_document
from model_store.errors import DocumentError
from services.errors import InvalidRequestError, NotFoundError, PayloadTooLargeError
from services.registry.call_arguments import USUAL_PAGE, check_page
from services.registry.encoding import encoded
from services.wire.http1.asgi import RESERVE

_JSON = "application/json"
_M = TypeVar("_M", bound=StrictModel)


async def json_body(request: Request) -> bytes:
    """Returns the body of a request that says that it is JSON.

    Raises:
        InvalidRequestError: it says otherwise.
        PayloadTooLargeError: it is too large.
    """
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != _JSON:
        raise InvalidRequestError(
            f"the Content-Type is '{content_type[:60]}'; send JSON as {_JSON}"
        )
    body = (await request.receive())["body"]
    if len(body) > LARGE.max_bytes:
        raise PayloadTooLargeError(
            f"the body has {len(body):,} bytes, over the limit {LARGE.max_bytes:,}; send less"
        )
    return bytes(body)


async def parsed(model: type[_M], request: Request) -> _M:
    """Reads a small JSON body; no value is converted from another type, as "2" to 2.

    Raises:
        InvalidRequestError: it is not JSON, too large, or violates the schema.
    """
    body = await json_body(request)
    try:
        parse_document(body, "the body", SMALL)
        return model.model_validate_json(body, strict=True)
    except DocumentError as error:
        raise InvalidRequestError(str(error)) from error
    except ValidationError as error:
        raise InvalidRequestError(f"the body: {explain(error, model)}") from error


def document(request: Request, data: bytes) -> Response:
    """Returns a document, which counts against the memory of large responses.

    Raises:
        BufferFullError: there is no room for it.
    """
    request.scope[RESERVE](len(data))
    return Response(data, media_type=_JSON)


def as_json(found: dict[str, Any], status: int = 200) -> Response:
    """Returns a small answer: at most the state of an upload, or a page of annotations."""
    return Response(encoded(found), status, media_type=_JSON)


def page_size(request: Request) -> int:
    """Returns the number of entries that a call asks for.

    Raises:
        InvalidRequestError: it is not one.
    """
    return check_page(whole_number(request.query_params.get("limit", str(USUAL_PAGE)), "limit"))


def whole_number(text: str, name: str) -> int:
    """Returns a number of the path or the query.

    Raises:
        NotFoundError: it is none, and names a version or a request.
        InvalidRequestError: it is none.
    """
    if not (text.isdecimal() and text.isascii() and len(text) < 19):
        kind = NotFoundError if name in ("version", "number") else InvalidRequestError
        raise kind(f"'{name}' is '{text[:40]}'; give a whole number")
    return int(text)
