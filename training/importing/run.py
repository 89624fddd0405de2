"""`python -m training.importing.run FOLDER DESCRIPTOR`: imports what a caller's process captures.

In: a folder, and an open pipe: its first byte says that the request is in the folder, its end that
there will be none. Libraries are loaded meanwhile. Out: the lines of `requested.py`.
"""

import os
import sys
from pathlib import Path

from flambeau.protocol.heavy_imports import heavy_imports
from training.process.isolated_run import (
    fork_process_server,
    process_context,
    start_process_server,
)


def main(folder: Path, descriptor: int) -> int:
    """Imports the model in the folder. Returns the exit code."""
    with heavy_imports():
        from training.importing.requested import publish_requested
    fork_process_server()
    start_process_server()  # it imports the exporters, beside this process and the caller's
    process_context()
    return publish_requested(folder) if os.read(descriptor, 1) else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
