"""Errors of exports, as one tree.

ExportError
├── ExportTargetError    the file cannot be written, or exists
├── NotExportableError   a version that the format cannot have
└── ExportCheckError     the written file does not answer as the version does
"""


class ExportError(Exception):
    """Root of the tree. The message says what was wrong, which value, and what to do."""


class ExportTargetError(ExportError):
    """A file that cannot be written, or that exists."""


class NotExportableError(ExportError):
    """A version that the format cannot have."""


class ExportCheckError(ExportError):
    """A written file that does not answer as the version does; it is removed."""
