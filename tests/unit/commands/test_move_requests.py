"""The texts of requests for moves, by which a second person decides."""

from typing import Any

import pytest

from flambeau.commands.text.move_requests import move_text, request_lines
from model_store.approvals.asked_move import AskedMove, started
from model_store.rollouts.requests import RolloutRequest

ROLLOUT = {
    "version": 4,
    "steps": [0.1, 1],
    "every_s": 600,
    "risk": 0.05,
    "guards": {"latency": None, "disagreement": {"limit": 0.02}},
}


def request_of(move: AskedMove, target: int | None = None) -> dict[str, Any]:
    return {"move": move.model_dump(mode="json", exclude_none=True), "target": target}


@pytest.mark.parametrize(
    ("move", "target", "text"),
    [
        (AskedMove(act="promote", version=4), 4, "production → 4"),
        (AskedMove(act="rollback"), 3, "rollback production → 3"),
        (AskedMove(act="remove alias", alias="canary"), None, "remove alias canary"),
        (AskedMove(act="rollout promote"), 4, "rollout promote production → 4"),
        (
            started(RolloutRequest.model_validate(ROLLOUT)),
            None,
            "rollout start of 4: 10%, 100%, every 10m, risk 5%, disagreement: limit 0.02, no "
            "latency",
        ),
    ],
)
def test_a_move_says_which_version_moves_and_what_a_rollout_risks(
    move: AskedMove, target: int | None, text: str
) -> None:
    assert move_text(request_of(move, target)) == text


def test_a_move_says_what_it_would_end() -> None:
    move = AskedMove(act="promote", version=4, allow_breaking=True)
    request = {**request_of(move, 4), "ends": ["shadow of version 4", "split 'ab'"]}
    assert move_text(request) == (
        "production → 4, breaking allowed, ends shadow of version 4 and split 'ab'"
    )


def test_a_move_says_that_it_is_the_first_of_its_alias() -> None:
    request = request_of(AskedMove(act="promote", version=4, first=True), 4)
    assert move_text(request) == "production → 4, if it names no version yet"


def test_reasons_of_both_persons_have_columns_of_their_own() -> None:
    asked = {
        **request_of(AskedMove(act="promote", version=4, why="0.3 points better"), 4),
        "number": 7,
        "state": "refused",
        "who": "key:ann",
        "until": "2026-11-29T11:20:04+00:00",
        "decision": {"who": "key:ben", "why": "not on a Friday"},
    }
    head, line, damaged = request_lines([asked, {"number": 6, "error": "no JSON"}])
    for title, cell in (("WHO", "key:ann"), ("WHY", "0.3 points"), ("REASON", "not on a Friday")):
        assert line[head.index(title) :].startswith(cell)
    assert line[head.index("DECIDED BY") :].startswith("key:ben")
    assert damaged.split(maxsplit=2) == ["6", "unreadable", "no JSON"]
