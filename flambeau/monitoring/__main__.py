"""Writes the generated files: dashboards, alert rules, the list of metrics.

    python -m flambeau.monitoring [FOLDER]

Args: FOLDER is the root of the repository; the current one unless given.
"""

import sys
from pathlib import Path

from flambeau.monitoring.generated import write_all

if __name__ == "__main__":
    for path in write_all(Path(sys.argv[1] if len(sys.argv) > 1 else ".")):
        print(path)
