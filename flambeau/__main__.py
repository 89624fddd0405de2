"""`python -m flambeau`: the command line. Ctrl-C ends it with one line at any time."""

import sys

INTERRUPTED = 130
"""The exit code of a program that Ctrl-C stopped, as shells count it."""

try:
    from flambeau.cli import main

    main()
except KeyboardInterrupt:
    sys.stderr.write("interrupted\n")
    sys.exit(INTERRUPTED)
