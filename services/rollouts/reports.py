"""Reports of shadows and splits: figures with their intervals, in plain values. Blocks.

In: a store and a model. Out: the documents of `model_store.rollouts.status`, with what servers have
counted.
"""

from collections.abc import Sequence
from typing import Any

from model_store.manifest import Manifest
from model_store.rollouts.finding_text import named_figures_text
from model_store.rollouts.guard_choice import class_output, output_guard
from model_store.rollouts.guards import Guards
from model_store.rollouts.status import last_ended, shadow_status, split_status
from model_store.rollouts.traffic import Split
from model_store.store import ModelStore
from services.rollouts.comparison_files import shadow_figures, split_evidence
from services.rollouts.evidence.evidence import Evidence
from services.rollouts.shadow_figures import ShadowFigures

RISK = 0.05
"""Probability that any interval of an arm ever misses its value."""
QUANTILES = (0.5, 0.99)
SHOWN_FILES = 8
NOTHING_YET = "nothing is counted yet: servers that serve the model write their counts every 2 s"
NOTHING_LEFT = "nothing was counted before it ended"


def shadow_report(store: ModelStore, model: str) -> dict[str, Any]:
    """Describes the shadow, or the last one: `figures`, null if there are none, and `note`.

    Raises:
        ModelNotFoundError: the model has no version.
        StoreError: the store cannot be read.
    """
    document = shadow_status(store, model) | {"last": None, "figures": None, "note": ""}
    shown = document["shadow"]
    if shown is None:
        shown = document["last"] = last_ended(store, model, store.pointers(model), "shadow")
    if shown is None:
        return document
    figures, left_out = shadow_figures(store.storage, model, shown["id"])
    document["figures"] = None if figures is None else _shadow_document(figures)
    document["note"] = _note(figures is not None, left_out, is_over=document["shadow"] is None)
    return document


def split_report(store: ModelStore, model: str) -> dict[str, Any]:
    """Describes the split, or the last one: `arms` with their figures, and `note`.

    Raises:
        ModelNotFoundError: the model has no version.
        StoreError: the store cannot be read.
    """
    document = split_status(store, model) | {"last": None, "arms": [], "note": ""}
    shown = document["split"]
    if shown is None:
        shown = document["last"] = last_ended(store, model, store.pointers(model), "split")
    if shown is None:
        return document
    split = Split.model_validate({name: shown[name] for name in Split.model_fields})
    found = split_evidence(store.storage, model, split)
    base_version = store.manifest(model, split.arms[0].version)
    guards, labels = Guards(outputs=output_guard(base_version)), _labels(base_version)
    compared = {version: _compared(one.total, guards) for version, one in found.items()}
    base = next((one for one in compared.values() if one), {})
    first = split.arms[0]
    document["arms"] = [
        {"version": first.version, "share": first.share, "figures": _own(base, "live"), "text": []},
        *(
            {
                "version": arm.version,
                "share": arm.share,
                "figures": _own(compared[arm.version], "candidate"),
                "effects": compared[arm.version],
                "text": [
                    named_figures_text(name, one, labels)
                    for name, one in compared[arm.version].items()
                ],
            }
            for arm in split.arms[1:]
        ),
    ]
    left_out = {path: why for one in found.values() for path, why in one.left_out.items()}
    document["note"] = _note(bool(base), left_out, is_over=document["split"] is None)
    return document


def _labels(version: Manifest) -> Sequence[str]:
    """Returns the names of the classes that are counted; empty if there are none."""
    found = class_output(version)
    return version.signature.labels.get(found[0], ()) if found else ()


def _compared(evidence: Evidence, guards: Guards) -> dict[str, dict[str, float | None]]:
    """Returns the figures of one arm beside the first, by guard; empty without a request."""
    from services.rollouts.evidence.count_arrays import arrays_of  # NumPy
    from services.rollouts.evidence.effects import figures_of

    counts = arrays_of(evidence, guards)
    if not counts.requests.sum():
        return {}
    names = [name for name in guards.shares_of_risk() if name != "disagreement"]
    return {name: figures_of(name, counts, guards, RISK / len(names)) for name in names}


def _own(figures: dict[str, dict[str, float | None]], who: str) -> dict[str, float | None]:
    """Returns what the figures say about one of the two versions."""
    errors, latency = figures.get("errors", {}), figures.get("latency", {})
    found = {"requests": errors.get(f"{who}_requests"), "error_rate": errors.get(f"{who}_rate")}
    for quantile in QUANTILES:
        name = f"p{quantile * 100:g}_s"
        found[name] = latency.get(f"{who}_{name}")
    return found


def _shadow_document(figures: ShadowFigures) -> dict[str, Any]:
    plain = figures.as_plain()
    for name in ("live_s", "candidate_s"):
        del plain[name]
    pairs = figures.pairs
    return {
        **plain,
        "agreement": figures.agreed / pairs if pairs else None,
        "mean_disagreement": figures.disagreement / pairs if pairs else None,
        "latency_s": {
            version: {f"p{q * 100:g}": figures.latency_s(version, q) for q in QUANTILES}
            for version in ("live", "candidate")
        },
    }


def _note(is_counted: bool, left_out: dict[str, str], *, is_over: bool) -> str:
    texts = [] if is_counted else [NOTHING_LEFT if is_over else NOTHING_YET]
    texts += [f"left out: {why}" for why in list(left_out.values())[:SHOWN_FILES]]
    return "; ".join(texts)
