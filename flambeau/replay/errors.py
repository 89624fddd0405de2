"""Errors of replay and capture, as one tree.

ReplayError
├── ServerUrlError      an invalid URL of a server, or address to listen on
├── RequestFileError    requests that cannot be read: the message names file and line
├── RulesError          an invalid rule of a comparison
├── ReportFolderError   the folder of reports has another replay in it
├── FramingError        bytes that are no HTTP/1, or framing without an end
└── NoAnswerError       a server did not answer a request
    └── UnreachableError    a server takes no connections
"""


class ReplayError(Exception):
    """Root of the tree."""


class ServerUrlError(ReplayError):
    """An invalid URL of a server, or an invalid address to listen on."""


class RequestFileError(ReplayError):
    """Requests that cannot be read."""


class RulesError(ReplayError):
    """An invalid rule of a comparison."""


class ReportFolderError(ReplayError):
    """A folder of reports whose replay must be continued or given up first."""


class FramingError(ReplayError):
    """Bytes that are no HTTP/1, or more framing than any message needs."""


class NoAnswerError(ReplayError):
    """A server that did not answer a request whole, within the limits."""


class UnreachableError(NoAnswerError):
    """A server that takes no connections."""
