"""The texts of requests for moves, by which a second person decides."""

from typing import Any

import pytest

from flambeau.commands.text.move_requests import move_text
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
