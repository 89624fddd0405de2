"""Errors of the evidence about a rollout.

InvalidRequestError
└── InvalidEvidenceError    400 INVALID_ARGUMENT    counts that are malformed or beyond a limit
"""

from services.errors import InvalidRequestError


class InvalidEvidenceError(InvalidRequestError):
    """Counts cannot be what a process of a rollout has counted."""
