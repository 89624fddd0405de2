"""The rules of names, which a caller can check before work begins. Pure."""

import re
from collections.abc import Iterable

from flambeau.protocol.strict import nearest_name

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")

ARTIFACT_NAMES = (
    "onnx", "onnx-fp16", "onnx-int8", "openvino", "openvino-bf16", "openvino-int8",
    "pt2", "pt2-bf16", "pt2-int8", "aoti", "aoti-bf16", "aoti-int8", "torchscript", "python",
)  # fmt: skip
"""Names of the artifacts that can be asked for."""


def is_name(name: str) -> bool:
    """Returns True if the name is valid as one segment of a path."""
    return _NAME.fullmatch(name) is not None


def name_problem(name: str, what: str) -> str | None:
    """Returns why a name is not valid, in words; None if it is.

    Args:
        name: the name.
        what: its owner, such as `model name`.
    """
    if is_name(name):
        return None
    return (
        f"{what} {name[:200]!r} is not allowed; use 1 to 128 letters, digits, '.', '_' or '-', "
        "starting with a letter or digit"
    )


def alias_problem(alias: str) -> str | None:
    """Returns why an alias is not valid, in words; None if it is."""
    if alias.isdecimal():
        return (
            f"alias {alias!r} is not allowed: a number names a version, as in digits@{alias}; "
            "use a word, such as canary"
        )
    return name_problem(alias, "alias")


def artifact_problem(names: Iterable[str]) -> str | None:
    """Returns which name is that of no artifact, in words; None if all are known."""
    for name in names:
        if name not in ARTIFACT_NAMES:
            return f"no artifact is named '{name}'{nearest_name(name, ARTIFACT_NAMES)}"
    return None
