"""docs/training-service.md names every setting and every metric of the service."""

import re
from pathlib import Path

from services.access.config import AccessSettings
from services.trainer.config import TrainerConfig
from services.trainer.metrics import TrainerMetrics

TEXT = (Path(__file__).parents[3] / "docs/training-service.md").read_text()


def test_every_setting_is_in_the_table() -> None:
    table = TEXT.split("## Every setting")[1].split("## ")[0]
    named = re.findall(r"`(\w+)`", "".join(row.split("|")[1] for row in table.splitlines()
                                           if row.startswith("| `")))  # fmt: skip
    own = AccessSettings.model_fields.keys()  # which have a table in docs/security.md
    assert sorted(named) == sorted(TrainerConfig.model_fields.keys() - own)


def test_every_metric_is_in_the_table() -> None:
    names = [
        family.name + ("_total" if family.type == "counter" else "")
        for family in TrainerMetrics("test").registry.collect()
        if family.name.startswith("flambeau_training")
    ]
    assert len(names) == 6
    assert [name for name in names if f"`{name}" not in TEXT] == []
