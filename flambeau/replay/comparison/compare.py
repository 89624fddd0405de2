"""Compares two answers: status, headers, and bodies by what they hold.

A body is JSON, raw tensors behind JSON, text, or bytes. What it is, both bodies say, and not the
header: TorchServe sends JSON without one. Only what its header calls an image, sound or a file is
bytes, whatever it looks like.
"""

import zlib

from flambeau.replay.comparison.findings import Findings, Rules, first_unlike
from flambeau.replay.comparison.json_paths import IgnoredPaths
from flambeau.replay.comparison.json_values import MISSING, compare_json, parse_json
from flambeau.replay.comparison.raw_tensors import compare_tensor, parse_binary
from flambeau.replay.records import Answer

CHANGING_HEADERS = frozenset(
    ("connection", "content-encoding", "content-length", "date", "keep-alive", "server", "trailer",
     "transfer-encoding", "via", "x-request-id")
)  # fmt: skip
"""Headers that `*` leaves out: of one connection, of one request, or about its server."""
MAX_PLAIN_BYTES = 256 * 2**20
"""Largest body after decompression."""
_OPAQUE = ("image/", "audio/", "video/", "font/", "application/octet-stream", "application/zip",
           "application/pdf")  # fmt: skip
_ANY_ZLIB = 47
"""`wbits` of zlib for both gzip and deflate."""


class Comparer:
    """Compares answers by the same rules.

    Args:
        rules: the rules.

    Raises:
        RulesError: a path of `rules.ignored` is none.
    """

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._ignored = IgnoredPaths(rules.ignored)

    def compare(self, old: Answer, new: Answer) -> Findings:
        """Returns what differs."""
        found = Findings(self._rules)
        if old.status != new.status:
            found.add("status", "status", str(old.status), str(new.status))
        self._headers(found, old, new)
        self._bodies(found, old, new)
        return found

    def _headers(self, found: Findings, old: Answer, new: Answer) -> None:
        names = [name for name in self._rules.headers if name != "*"]
        if "*" in self._rules.headers:
            sent = {name for answer in (old, new) for name, _ in answer.headers}
            names += sorted(sent - CHANGING_HEADERS - {*names})
        for name in names:
            one, other = old.header(name), new.header(name)
            if name == "content-type":
                one, other = _media_type(one), _media_type(other)
            if one == other:
                continue
            probe = Findings(self._rules)
            probe.texts(name, one, other)
            if probe.count:
                found.add("header", name, one or MISSING, other or MISSING)
            found.by_rules |= probe.by_rules

    def _bodies(self, found: Findings, old: Answer, new: Answer) -> None:
        if old.body == new.body and _encoding(old) == _encoding(new):
            return
        one, other = plain_body(old), plain_body(new)
        if one == other or self._are_binary(found, old, one, new, other):
            return
        types = {old.header("content-type").lower(), new.header("content-type").lower()}
        if not any(name.startswith(_OPAQUE) for name in types) and self._are_texts(
            found, one, other
        ):
            return
        at = first_unlike(one, other)
        shown = (f"0x{body[at : at + 8].hex()} of {len(body)} bytes" for body in (one, other))
        found.add("body", f"byte {at}", *shown)

    def _are_texts(self, found: Findings, one: bytes, other: bytes) -> bool:
        """Compares two bodies of JSON or text. Returns False if they are neither."""
        try:
            documents = parse_json(one), parse_json(other)
        except ValueError:
            try:
                texts = one.decode(), other.decode()
            except UnicodeDecodeError:
                return False
            if "\0" in texts[0] or "\0" in texts[1]:
                return False
            found.texts("body", *texts)
        else:
            compare_json(found, *documents, self._ignored)
        return True

    def _are_binary(
        self, found: Findings, old: Answer, one: bytes, new: Answer, other: bytes
    ) -> bool:
        """Compares two answers with raw tensors. Returns False if they are none."""
        first, second = parse_binary(old, one), parse_binary(new, other)
        if first is None or second is None:
            return False
        before = found.count
        compare_json(found, first.document, second.document, self._ignored)
        forms = [[(t.name, t.datatype, len(t.data)) for t in x.tensors] for x in (first, second)]
        if forms[0] == forms[1]:
            for pair in zip(first.tensors, second.tensors, strict=True):
                compare_tensor(found, *pair)
        elif found.count == before:  # a path that is left out had the reason
            found.add("body", "raw outputs", str(forms[0]), str(forms[1]))
        return True


def plain_body(answer: Answer) -> bytes:
    """Returns the body without gzip or deflate; as it came if it is neither, or too large."""
    if _encoding(answer) not in ("gzip", "x-gzip", "deflate"):
        return answer.body
    unpacker = zlib.decompressobj(_ANY_ZLIB)
    try:
        plain = unpacker.decompress(answer.body, MAX_PLAIN_BYTES + 1)
    except zlib.error:
        return answer.body
    return plain if unpacker.eof and len(plain) <= MAX_PLAIN_BYTES else answer.body


def _encoding(answer: Answer) -> str:
    return answer.header("content-encoding").strip().lower()


def _media_type(value: str) -> str:
    """Returns a content type in one form: lower case, parameters in order, without quotes."""
    kind, *parameters = (part.strip().replace('"', "").lower() for part in value.split(";"))
    return "; ".join([kind, *sorted(filter(None, parameters))])
