"""Functions of a user's, located for another process; those without a file are told."""

from typing import Any

import pytest

from flambeau.publishing.errors import PublishError
from flambeau.publishing.function_location import located, location_of
from training.recipe.targets import load_target


def agree(one: Any, other: Any) -> bool:
    """A function at the top of a file."""
    return bool(one == other)


def test_a_function_of_a_file_is_loaded_again_from_its_location() -> None:
    found = location_of(agree, "gates")
    assert found == f"{__file__}:agree"
    assert load_target(found, "gates")(1, 1)


def test_functions_in_mappings_are_located_and_other_values_stay() -> None:
    told = {"logits": agree, "boxes": {"iou": 0.9}, "text": "gates.py:same"}
    assert located(told, "gates") == {**told, "logits": f"{__file__}:agree"}
    assert located({"logits": {"function": agree, "min": 0.9}}, "gates") == {
        "logits": {"function": f"{__file__}:agree", "min": 0.9}
    }


class Holder:
    """Has a method."""

    def method(self) -> None:
        """Is bound to an object."""


def test_what_no_other_process_can_load_is_told() -> None:
    def inner() -> None: ...

    namespace: dict[str, Any] = {}
    exec("def typed(): pass", namespace)
    for function in (lambda: 0, inner, Holder().method, len, namespace["typed"]):
        with pytest.raises(PublishError, match=r"gates\['y'\]: .*move it to a file"):
            located({"y": function}, "gates")
