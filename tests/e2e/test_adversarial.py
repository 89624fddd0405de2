"""Some attacks, briefly, others in each run; `make adversarial` runs all, each for seconds."""

import math
import random
from pathlib import Path

import pytest

from tests.adversarial.attack import VICTIMS, VictimName, all_attacks, attacks_on
from tests.adversarial.campaign import Campaign
from tests.adversarial.victim import budget_bytes

SECONDS = 0.2
SHARE = 0.25
"""Share of a victim's attacks in a run: all of them would be a tenth of the time of `make test`."""
MAX_STALL_S = 2.0
"""Other tests use the cores meanwhile. A blocked event loop stalls for many seconds."""


@pytest.mark.parametrize(
    "victim",
    [pytest.param(name, marks=[] if name == "open" else pytest.mark.long) for name in VICTIMS],
)
def test_no_attack_ends_stalls_or_bloats_the_server(victim: VictimName, tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")  # pytest shows it when this fails
    campaign = Campaign(
        victim, tmp_path, seed, SECONDS, lambda row: print(row.line()), MAX_STALL_S, one_server=True
    )
    attacks = attacks_on(victim, all_attacks(), seed)
    chosen = set(random.Random(seed).sample(attacks, math.ceil(SHARE * len(attacks))))
    rows = campaign.run([attack for attack in attacks if attack in chosen])
    found = [words for row in rows for words in row.complaints(budget_bytes(victim), MAX_STALL_S)]
    assert found == []
