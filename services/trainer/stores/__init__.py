"""Where training jobs are kept: SQLite or Redis, with one set of transitions."""
