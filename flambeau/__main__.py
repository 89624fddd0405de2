"""`python -m flambeau`: the command line. Ctrl-C ends it with one line at any time."""

import sys

INTERRUPTED = 130
"""Exit code of a program that Ctrl-C stopped, by shell convention."""

try:
    from flambeau.cli import main

    main()
except KeyboardInterrupt:
    sys.stderr.write("interrupted\n")
    sys.exit(INTERRUPTED)
