"""Reduces the error text of a runtime or of a model's own code to one line.

In: the text of an error, which may be a traceback with file names and lines of source, as
TorchScript's is. Out: the line that states the error.
"""

import re

MAX_TEXT = 8192
"""Maximum length of a text with several lines, in characters; what is longer loses its middle."""
MAX_LINE = 500
"""Maximum length of the line, in characters: enough for a message of ONNX Runtime, and little
beside the answers that each request of a failed batch gets."""
_ERROR = re.compile(r"[\w.]+(Error|Exception)\b")
_PLACE = "Exception from "
"""Start of the lines that name OpenVINO's own sources, before the error."""
_ONNX_RUNTIME = "[ONNXRuntimeError]"
_CODES = re.compile(r"^\[ONNXRuntimeError\] : \d+ : \w+ : (?:Load model from .*? failed: ?)?")
"""Codes, and the path of the file, which may be a temporary one."""
_NODE = re.compile(r"running (\w+) node\. Name:'([^']*)'")
_NODE_STATUS = re.compile(r"^Non-zero status code returned while .*?Status Message: ")
_SOURCES = re.compile(r"/\S*onnxruntime\S* .*?\) (?:\S.*? was false\. )?|^\w+\.\w+:\d+ \w+ ")
"""A source file of ONNX Runtime, the function, and the condition that did not hold."""
_SIZES = re.compile(r"shape|dimension|\bdims?\b|\bsizes?\b|\bsize\(\)|broadcast", re.IGNORECASE)
_MEMORY = re.compile(r"memory|alloc|bytes", re.IGNORECASE)


def error_text(error: BaseException) -> str:
    """Returns the message of an error of a model's own code, of at most `MAX_TEXT` characters.

    Lone surrogates, which no protocol can carry, become question marks.
    """
    try:
        text = str(error) or repr(error)
    except Exception:
        text = f"{type(error).__name__}, whose text cannot be read"
    return sendable(text)


def sendable(text: str) -> str:
    """Returns a text that any protocol can carry, of at most `MAX_TEXT` characters."""
    if len(text) > MAX_TEXT:
        half = MAX_TEXT // 2  # the end of a traceback has the error
        text = f"{text[:half]}\n...\n{text[-half:]}"
    return text.encode(errors="replace").decode()


def error_line(text: str) -> str:
    """Returns the error at the end of a traceback, or the first line of any other text."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    line = lines[0] if lines else ""
    if line.startswith(_ONNX_RUNTIME):
        return _of_onnx_runtime(" ".join(lines))
    if line.startswith(_PLACE):
        return " ".join(one for one in lines if not one.startswith(_PLACE)) or line
    if any(one.startswith("Traceback ") for one in lines):
        return next((one for one in reversed(lines) if _ERROR.match(one)), lines[-1])
    return line


def _of_onnx_runtime(line: str) -> str:
    """Returns what ONNX Runtime says, without its codes, sources and a repetition of the node."""
    reason = _NODE_STATUS.sub("", _CODES.sub("", line))
    node = _NODE.search(line)
    reason = _SOURCES.sub("", reason).strip()
    if node is None or not reason:
        return reason or line
    name = f" '{node[2]}'" if node[2] else ""
    return f"{node[1]} node{name}: {reason}"


def plain_line(text: str) -> str:
    """Returns `error_line` for a client: at most `MAX_LINE` characters, and never empty."""
    line = error_line(sendable(text)) or "no reason was given"
    return line if len(line) <= MAX_LINE else f"{line[: MAX_LINE - 3]}..."


def states_sizes(text: str) -> bool:
    """Returns True for a runtime's error about sizes that do not fit, and not about memory.

    ONNX Runtime, torch and OpenVINO raise one type for all errors of operators, so only words tell.
    """
    return _SIZES.search(text) is not None and _MEMORY.search(text) is None
