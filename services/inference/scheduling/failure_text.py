"""One plain line of what a runtime or a model's own code said when it failed.

In: the text of an error, which may be a traceback with names of files and lines of source, as that
of TorchScript is. Out: the line that says what went wrong, for callers; the log keeps all of it.
"""

import re

MAX_LINE = 500
"""Characters of the line."""
_ERROR = re.compile(r"[\w.]+(Error|Exception)\b")


def plain_line(text: str) -> str:
    """The error at the end of a traceback, or the first line of any other text."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return "it did not say why"
    line = lines[0]
    if any(one.startswith("Traceback ") for one in lines):
        line = next((one for one in reversed(lines) if _ERROR.match(one)), lines[-1])
    return line if len(line) <= MAX_LINE else f"{line[: MAX_LINE - 3]}..."
