"""The documents name everything there is: every setting, every metric, every verb."""

from pathlib import Path

import typer.main

from flambeau.cli import app
from services.standalone.config import ServerConfig
from services.telemetry.metrics import Metrics

ROOT = Path(__file__).parents[2]
DOCS = {path.name: path.read_text() for path in (ROOT / "docs").glob("*.md")}


def test_every_setting_is_in_the_table() -> None:
    missing = [name for name in ServerConfig.model_fields if f"`{name}`" not in DOCS["serving.md"]]
    assert missing == []


def test_every_metric_is_in_the_table() -> None:
    families = Metrics("test").registry.collect()
    names = [
        family.name + ("_total" if family.type == "counter" else "")
        for family in families
        if family.name.startswith("flambeau_")
    ]
    assert [name for name in names if f"`{name}" not in DOCS["serving.md"]] == []


def test_every_verb_is_shown_somewhere() -> None:
    everything = (ROOT / "README.md").read_text() + "".join(DOCS.values())
    group = typer.main.get_command(app)
    verbs = [name for name in group.commands if name not in ("models", "up", "demo")]  # type: ignore[attr-defined]
    verbs += [f"models {name}" for name in group.commands["models"].commands]  # type: ignore[attr-defined]
    assert [verb for verb in verbs if f"flambeau {verb}" not in everything] == []
