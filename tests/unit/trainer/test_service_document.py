"""The documents name every setting and every metric of the training service."""

import re
from pathlib import Path

from services.access.config import AccessSettings
from services.trainer.config import TrainerConfig
from services.trainer.metrics import TrainerMetrics

DOCS = Path(__file__).parents[3] / "docs"


def test_every_setting_is_in_the_table() -> None:
    page = (DOCS / "reference/settings.md").read_text()
    table = page.split("## Every setting of the training service")[1].split("## ")[0]
    named = re.findall(r"`(\w+)`", "".join(row.split("|")[1] for row in table.splitlines()
                                           if row.startswith("| `")))  # fmt: skip
    own = AccessSettings.model_fields.keys()  # which have a table of their own
    assert sorted(named) == sorted(TrainerConfig.model_fields.keys() - own)


def test_every_metric_is_in_the_table() -> None:
    names = [
        family.name + ("_total" if family.type == "counter" else "")
        for family in TrainerMetrics("test").registry.collect()
        if family.name.startswith("flambeau_training")
    ]
    assert len(names) == 6
    page = (DOCS / "guides/training-service.md").read_text()
    assert [name for name in names if f"`{name}" not in page] == []
