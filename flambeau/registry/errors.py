"""Errors of calls to a registry, as one tree.

RegistryError                 the registry refused the call; the message is its own
├── RegistryConflictError     409: another version, another offset, or a use that forbids it
├── RegistryBusyError         503: it is overloaded or draining; tried again first
├── RegistryAwayError         no answer: no server, or the connection broke again and again
└── RegistryUnknownError      the answer was lost, and it is not known whether the call took effect
"""


class RegistryError(Exception):
    """The registry refused the call, or could not answer it.

    Args:
        message: the registry's message.
        status: HTTP status; 0 for no answer, or one of no registry.
    """

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class RegistryConflictError(RegistryError):
    """The call contradicts the state of the registry."""


class RegistryBusyError(RegistryError):
    """The registry cannot take the call at present."""


class RegistryAwayError(RegistryError):
    """The registry does not answer."""


class RegistryUnknownError(RegistryError):
    """The call may have taken effect, or not."""
