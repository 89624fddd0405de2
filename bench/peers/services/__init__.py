"""User code of each peer. Copied into the peer's folder and run in its own environment."""

from pathlib import Path

FOLDER = Path(__file__).parent
