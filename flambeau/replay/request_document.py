"""A request as JSON: a line of a capture, or a file that somebody wrote.

In: bytes of JSON. Out: a `RecordedRequest`, or an error that says what is wrong with which key.
"""

import base64
import binascii
import json
import stat
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError

from flambeau.protocol.strict import Matching, StrictModel, explain
from flambeau.replay.errors import RequestFileError
from flambeau.replay.records import MAX_BODY_BYTES, STATUSES, Answer, Headers, RecordedRequest

MAX_NAME = 80
"""Characters of a request's name in a report."""
MAX_HEADERS = 200

Method = Annotated[str, Matching("^[A-Z-]{1,20}$", "a method in upper case, such as POST")]
PathText = Annotated[
    str,
    Matching("^/[!-~\u0080-\u00ff]*$", "a path with its query, such as /predictions/m?x=1"),
]
HeaderName = Annotated[str, Matching("^[A-Za-z0-9!#$%&'*+.^_`|~-]+$", "the name of a header")]
HeaderValue = Annotated[
    str, Matching("^[ \t!-~\u0080-\u00ff]*$", "a header's value, in one line of Latin-1")
]
HeaderMapping = Annotated[
    dict[HeaderName, HeaderValue | tuple[HeaderValue, ...]], Field(max_length=MAX_HEADERS)
]


class BodyDocument(StrictModel):
    """The forms of a body; at most one is given."""

    headers: HeaderMapping = Field(default_factory=dict)
    body: str | None = None
    """As text, sent in UTF-8."""
    body_base64: str | None = None
    """As bytes."""

    def octets(self) -> bytes:
        """Returns the body.

        Raises:
            RequestFileError: two bodies, or a wrong or too large one.
        """
        if self.body is not None and self.body_base64 is not None:
            raise RequestFileError("'body' and 'body_base64' are both given; give one")
        try:
            if self.body_base64 is not None:
                found = base64.b64decode(self.body_base64, validate=True)
            else:
                found = (self.body or "").encode()
        except binascii.Error as error:
            raise RequestFileError(f"'body_base64' is no base64: {error}") from error
        except UnicodeEncodeError as error:
            raise RequestFileError(f"'body' cannot be written in UTF-8: {error}") from error
        if len(found) > MAX_BODY_BYTES:
            raise RequestFileError(f"the body has over {MAX_BODY_BYTES} bytes; leave it out")
        return found

    def pairs(self) -> Headers:
        """Returns the headers, their names in lower case."""
        return tuple(
            (name.lower(), value)
            for name, values in self.headers.items()
            for value in ((values,) if isinstance(values, str) else values)
        )


class AnswerDocument(BodyDocument):
    """The answer of the old server."""

    status: int = Field(ge=STATUSES.start, lt=STATUSES.stop)
    ms: float = Field(default=0, ge=0)

    def record(self) -> Answer:
        """Returns the answer; raises as `octets`."""
        return Answer(self.status, self.pairs(), self.octets(), self.ms / 1000)


class RequestDocument(BodyDocument):
    """A request."""

    method: Method = "POST"
    path: PathText
    content: Any = Field(default=None, alias="json")
    """A body of JSON, in place of its text."""
    body_file: str | None = None
    """A file with the body, beside the file of the request."""
    time: str = ""
    """When the request was captured; it is not sent."""
    answer: AnswerDocument | None = None


def read_request(
    text: bytes, number: int, name: str = "", folder: Path | None = None
) -> RecordedRequest:
    """Parses a request.

    Args:
        text: its JSON.
        number: its place among the requests, from 1.
        name: its name in reports; made from number, method and path unless given.
        folder: folder of its `body_file`; None where there is none to read.

    Raises:
        RequestFileError: it is no request; the message names the key.
    """
    try:
        document = RequestDocument.model_validate_json(text)
    except ValidationError as error:
        raise RequestFileError(explain(error, RequestDocument)) from error
    answer = document.answer
    headers, body = document.pairs(), _body_of(document, folder)
    if document.content is not None and not any(n == "content-type" for n, _ in headers):
        headers += (("content-type", "application/json"),)
    return RecordedRequest(
        number=number,
        name=name or f"line {number}: {document.method} {document.path}"[:MAX_NAME],
        method=document.method,
        path=document.path,
        headers=headers,
        body=body,
        answer=None if answer is None else answer.record(),
    )


def _body_of(document: RequestDocument, folder: Path | None) -> bytes:
    forms = {
        "body": document.body, "body_base64": document.body_base64, "json": document.content,
        "body_file": document.body_file,
    }  # fmt: skip
    given = [name for name, value in forms.items() if value is not None]
    if len(given) > 1:
        raise RequestFileError(f"'{given[0]}' and '{given[1]}' are both given; give one")
    if document.body_file is not None:
        return _file_body(document.body_file, folder)
    if document.content is not None:
        return json.dumps(document.content, separators=(",", ":")).encode()
    return document.octets()


def _file_body(name: str, folder: Path | None) -> bytes:
    if folder is None:
        raise RequestFileError("'body_file' is for a folder of requests; give 'body_base64' here")
    try:
        path = (folder / name).resolve()
        if not path.is_relative_to(folder.resolve()):
            raise RequestFileError(f"'body_file' {name!r} is outside the folder; copy it there")
        if not stat.S_ISREG(path.stat().st_mode):
            raise RequestFileError(f"'body_file' {name!r} is no file; give a file of the folder")
        with path.open("rb") as file:
            found = file.read(MAX_BODY_BYTES + 1)
    except (OSError, ValueError) as error:
        raise RequestFileError(f"'body_file' {name!r} cannot be read: {error}") from error
    if len(found) > MAX_BODY_BYTES:
        raise RequestFileError(f"'body_file' {name!r} has over {MAX_BODY_BYTES} bytes")
    return found
