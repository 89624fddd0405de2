"""Errors of publishing from Python, as one tree.

PublishError
├── ExampleError    example inputs that do not fit the model, or each other
├── CaptureError    a model that cannot be captured, or whose answers cannot be verified
├── RefusedError    no artifact could be made and verified, or the store refused the version
└── NotPromotedError   a server has the version, and refused to move the alias
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flambeau.publishing.published import PublishedVersion


class PublishError(Exception):
    """Root of the tree. The message says what was wrong, which value, and what to do."""


class ExampleError(PublishError):
    """Example inputs that do not fit the model, or each other."""


class CaptureError(PublishError):
    """A model that cannot be captured, or whose answers change from run to run."""


class RefusedError(PublishError):
    """Nothing was published: the message has the reason."""


class NotPromotedError(PublishError):
    """A server has the version, and refused to move the alias to it.

    Attributes:
        version: the version, without the alias.
    """

    def __init__(self, message: str, version: "PublishedVersion") -> None:
        super().__init__(message)
        self.version = version
