"""Callers whose recent requests a new version would refuse, or answer in another form.

In: recent requests, and the signatures of the live and the new version. Out: words.
"""

from collections.abc import Sequence

from flambeau.protocol.signature import Signature, SignatureError
from services.interpreter_lock import lending
from services.registry.callers.recent_callers import SeenCaller, SentKind

MOST_TOLD = 8
"""Callers that a message names, those with most requests first."""
MOST_CHARACTERS = 200
"""Length of the reason of one caller in a message."""
MOST_OF_NAME = 80
LEND_EVERY = 4
"""Kinds of requests between two chances of the event loop to run."""


def callers_text(
    seen: Sequence[SeenCaller], live: Signature, version: Signature, where: str
) -> str:
    """Returns the callers that a version breaks, in words; empty if no caller was seen. Blocks.

    Args:
        seen: callers of the last hour.
        live: signature of the live version, as callers see it.
        version: signature of the new one, likewise.
        where: place where they were seen.
    """
    if not seen:
        return ""
    broken = []
    for caller in seen:
        found = [
            (kind.times, reason)
            for kind in lending(caller.kinds, LEND_EVERY)
            if (reason := broken_by(kind, live, version))
        ]
        if found:
            _, reason = max(found)
            broken.append((sum(times for times, _ in found), caller.name, reason))
    if not broken:
        callers = f"{len(seen)} caller{'s' * (len(seen) > 1)}"
        return f"no request of the last hour seen {where} breaks, of {callers}"
    broken.sort(key=lambda one: (-one[0], one[1]))
    told = [
        f"{name[:MOST_OF_NAME]} (about {times:,} request{'s' * (times > 1)}): "
        f"{reason[:MOST_CHARACTERS]}"
        for times, name, reason in broken[:MOST_TOLD]
    ]
    if len(broken) > MOST_TOLD:
        told.append(f"and {len(broken) - MOST_TOLD} more")
    return f"callers of the last hour seen {where} whose requests break: {'; '.join(told)}"


def broken_by(kind: SentKind, live: Signature, version: Signature) -> str:
    """Returns why a version breaks requests that the live one answers; empty if it does not."""
    if version.sequence is not None and not kind.is_step:
        return "the requests belong to no sequence"
    if version.sequence is None and live.sequence is not None and kind.is_step:
        return "the requests are steps of sequences"
    try:
        for shapes in (kind.largest, kind.smallest):
            sent = zip(kind.inputs, shapes, strict=True)
            version.check_inputs({name: (datatype, sizes) for (name, datatype, _), sizes in sent})
        version.check_outputs(kind.outputs)
    except SignatureError as error:
        return str(error)
    return _answers_break(kind.outputs, live, version)


def _answers_break(asked: Sequence[str], live: Signature, version: Signature) -> str:
    """Returns the first difference of the answers; empty if there is none.

    Args:
        asked: names of outputs; empty for all.
        live: signature of the version that answers now.
        version: signature of the new one.
    """
    before = {spec.name: spec for spec in live.outputs if not asked or spec.name in asked}
    after = {spec.name: spec for spec in version.outputs}
    for name, spec in before.items():
        if name not in after:
            return f"the answers lack output '{name}'"
        if after[name] != spec:
            was, now = (f"{one.datatype} {list(one.shape)}" for one in (spec, after[name]))
            return f"output '{name}' of the answers changes from {was} to {now}"
        if live.labels.get(name) != version.labels.get(name):
            return f"labels of output '{name}' of the answers change"
    if not asked and [*before] != [name for name in after if name in before]:
        return "the outputs of the answers are in a different order"
    return ""
