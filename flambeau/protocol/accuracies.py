"""Accuracies that a request may ask for; `artifact_rules` of the queue decides what gives each."""

from typing import Literal, get_args

Accuracy = Literal["exact", "balanced", "fast"]
ACCURACIES: tuple[str, ...] = get_args(Accuracy)
