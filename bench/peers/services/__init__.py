"""The users' code of each peer. Copied into its folder and run in its own environment."""

from pathlib import Path

FOLDER = Path(__file__).parent
