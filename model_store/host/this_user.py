"""The user of this process, for histories."""

import getpass
import socket


def this_user() -> str:
    """Returns the user and the machine: `ann@host`."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # a container may run as a user id without a name
        name = "unknown"
    return f"{name}@{socket.gethostname()}"
