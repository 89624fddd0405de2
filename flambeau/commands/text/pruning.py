"""Formats the plan of `flambeau models prune`."""

from typing import TYPE_CHECKING, Any

from flambeau.commands.text.tables import columns, size_text

if TYPE_CHECKING:
    from model_store.retention.pruning import PrunePlan


def plan_lines(plan: "PrunePlan") -> list[str]:
    """Returns a line for each version and leftover, and the sum."""
    rows = [
        [
            f"{one.facts.model} {one.facts.version}",
            "keep" if one.is_kept else "delete",
            size_text(plan.sizes[one.facts.key]),
            "; ".join(one.reasons) or _why_deleted(one.facts.is_cut_off),
        ]
        for one in plan.decisions
    ]
    rows += [
        [one.folder, "remove", size_text(one.size_bytes), one.reason] for one in plan.leftovers
    ]
    gone = sum(not one.is_kept for one in plan.decisions)
    lines = columns([["VERSION", "", "SIZE", "WHY"], *rows]) if rows else []
    if not gone and not plan.leftovers:
        return [*lines, "nothing would be deleted"]
    freed = size_text(plan.freed_bytes)
    left = f" and {_counted(len(plan.leftovers), 'leftover')}" if plan.leftovers else ""
    whole = f"{_counted(gone, 'version')}{left} would be deleted, which frees {freed}"
    return [*lines, f"{whole}; add --yes to do it"]


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def plan_document(plan: "PrunePlan") -> dict[str, Any]:
    """Returns the plan as plain values for JSON."""
    return {
        "versions": [
            {
                "model": one.facts.model,
                "version": one.facts.version,
                "is_kept": one.is_kept,
                "reasons": list(one.reasons),
                "size_bytes": plan.sizes[one.facts.key],
            }
            for one in plan.decisions
        ],
        "leftovers": [
            {"folder": one.folder, "reason": one.reason, "size_bytes": one.size_bytes}
            for one in plan.leftovers
        ],
        "freed_bytes": plan.freed_bytes,
    }


def _why_deleted(is_cut_off: bool) -> str:
    return "its deletion was cut off" if is_cut_off else "not used, not new, not young"
