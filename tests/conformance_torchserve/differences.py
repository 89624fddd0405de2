"""Differences on purpose, each with its reason; docs/reference/torchserve.md has the table."""

from collections.abc import Callable, Mapping, Sequence

from tests.conformance_torchserve.inference_scripts import GRPC, INFERENCE, Script
from tests.conformance_torchserve.management_scripts import SINGLE

REASONS: Mapping[str, Sequence[str]] = {
    "an archive that is no zip is refused by that reason": (
        "register, text (REST)", "register, text (gRPC)",
    ),
    "a model without a name is not found; TorchServe breaks off: UNKNOWN": (
        "scale, no model (gRPC)",
    ),
    "an OpenAPI document has the paths of its port, in fewer words": (
        "prediction by OPTIONS (REST)", "description of inference (REST)",
        "description of management (REST)",
    ),
}  # fmt: skip
"""By reason, the names of the scripts whose answers differ, as of `named`."""

Explains = Callable[[Script, str, str], bool]
"""True if it explains the difference of TorchServe's answer to a script, and of ours."""
RULES: Mapping[str, tuple[str, Explains]] = {
    "over gRPC, a version that is registered already, or the default one that is unregistered "
    "beside others": (
        "ABORTED or PERMISSION_DENIED with the words of REST; TorchServe breaks off: UNKNOWN",
        lambda script, theirs, ours: (
            script.protocol == GRPC
            and theirs.startswith("UNKNOWN")
            and ours.startswith(("ABORTED", "PERMISSION_DENIED"))
        ),
    ),
}
"""By kind of calls, the difference, and what recognises it; for calls in random orders."""


def named(script: Script) -> str:
    """Returns the name of a script with its protocol."""
    return f"{script.name} ({script.protocol})"


def known_names() -> set[str]:
    """Returns the names of all scripts."""
    return {named(script) for script in (*SINGLE, *INFERENCE)}


def reason_of(script: Script) -> str:
    """Returns why the answers to a script differ; empty if it is none of `REASONS`."""
    return next((reason for reason, names in REASONS.items() if named(script) in names), "")


def rule_of(script: Script, theirs: str, ours: str) -> str:
    """Returns the rule that explains a difference; empty for none."""
    found = (what for what, (_, explains) in RULES.items() if explains(script, theirs, ours))
    return next(found, "")


def table() -> str:
    """Returns the differences as a table of Markdown."""
    lines = [f"| {', '.join(names)} | {reason} |" for reason, names in REASONS.items()]
    lines += [f"| {what} | {difference} |" for what, (difference, _) in RULES.items()]
    return "\n".join(["| calls | difference |", "|---|---|", *lines])
