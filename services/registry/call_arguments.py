"""Arguments and refusals that calls of the registry have in common, and who calls."""

from services.access.caller import Principal
from services.errors import InvalidRequestError

MAX_PAGE = 100
USUAL_PAGE = 20
MAX_WHY = 500
NOWHERE = (
    "this process has no registry: registry=off turns it off, and in the split form it is "
    "a process of its own, `flambeau registry`, since gateways have no model store; send the call "
    "there"
)
NO_UPLOADS = (
    "this registry takes no uploads: its store is a bucket, and no upload_folder is set, where the "
    "files of an upload are collected and checked"
)


def check_page(limit: int) -> int:
    """Returns the size of a page.

    Raises:
        InvalidRequestError: it is not one.
    """
    if not 0 < limit <= MAX_PAGE:
        raise InvalidRequestError(f"'limit' is {limit}; give 1 to {MAX_PAGE}")
    return limit


def who_of(principal: Principal) -> str:
    """Returns the caller for histories."""
    return principal.name or f"anonymous at {principal.peer}"


def owner_of(principal: Principal) -> str:
    """Returns the owner of the caller's uploads; all callers without credentials are one."""
    return principal.name


def check_why(why: str) -> None:
    """Checks a reason.

    Raises:
        InvalidRequestError: it is too long.
    """
    if len(why) > MAX_WHY:
        raise InvalidRequestError(
            f"'why' has {len(why):,} characters, over {MAX_WHY}; give a shorter reason"
        )
