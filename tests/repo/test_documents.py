"""The documents name everything there is: settings, metrics, verbs, decisions; and it is there."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main

from flambeau.cli import app
from services.access.config import AccessSettings
from services.gateway.config import GatewayConfig
from services.gateway.edges.rest_infer import TIMEOUT_HEADER
from services.inference.config import InferenceConfig, ModelSettings
from services.registry_server.config import RegistryConfig
from services.standalone.config import ServerConfig
from services.telemetry.metrics import Metrics
from services.trainer.config import TrainerConfig
from training.recipe.reference import reference
from training.recipe.schema import recipe_schema

ROOT = Path(__file__).parents[2]
RUNBOOKS = sorted((ROOT / "docs/runbooks").glob("*.md"))
DECISIONS = sorted((ROOT / "docs/adr").glob("*.md"))
PAGES = sorted({*(ROOT / "docs").rglob("*.md")} - {*RUNBOOKS, *DECISIONS})
DOCS = {str(path.relative_to(ROOT / "docs")): path.read_text() for path in PAGES}
MERGED_DECISIONS = range(31, 36)
"""Numbers of decisions that became part of 45; their files are gone."""
MAX_DECISION_LINES = 60
DOCUMENTS = [*ROOT.glob("*.md"), *PAGES, *RUNBOOKS, *DECISIONS]

DEFAULTS_IN_WORDS = {
    "models": "all",
    "upload_folder": ".uploads in the store",
    "registry_webhooks": "none",
    "registry_two_person": "none",
    "webhook_secret_file": "none",
    "keep_artifacts": "none",
    "artifact": "fastest",
    "max_concurrent_runs": "by the cores",
    "preferred_batch_sizes": "none",
    "onnx_providers": "cuda",
    "max_memory_mib": "9/10 of the device",
    "model_settings": "none",
    "tls_certificate_file": "none",
    "tls_key_file": "none",
    "tls_client_ca_file": "none",
    "shared_memory_objects": "none",
    "torchserve": "none",
    "trace_endpoint": "none",
    "payload_samples": "none",
    "payload_sample_store": "the model store",
    "trusted_keys": "those of flambeau keys trust",
}
"""Text of the table for defaults that mean nothing by themselves."""


def settings_in_the_table() -> Iterator[tuple[str, str]]:
    """Name and default of each; a row has two of them, a cell perhaps several."""
    section = DOCS["reference/settings.md"].split("## Every setting of a server")[1].split("## ")[0]
    for row in section.splitlines():
        cells = [cell.strip().replace("`", "") for cell in row.strip("|").split("|")]
        if row.startswith("| `"):
            for names, defaults in ((cells[0], cells[1]), (cells[3], cells[4])):
                yield from zip(names.split(", "), defaults.split(", "), strict=True)


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_every_setting_is_in_the_table_with_its_default() -> None:
    def said(value: object) -> str:
        text = str(value).lower() if isinstance(value, bool) else str(value)
        return text.removesuffix(".0")

    own = AccessSettings.model_fields  # which have a table of their own
    fields = {name: f for name, f in ServerConfig.model_fields.items() if name not in own}
    expected = {name: said(field.default) for name, field in fields.items()} | DEFAULTS_IN_WORDS
    table = list(settings_in_the_table())
    assert dict(table) == expected
    assert len(table) == len(expected), "a setting stands there twice"


def test_every_setting_of_who_may_do_what_is_in_its_table() -> None:
    section = DOCS["reference/settings.md"].split("## Every setting of access")[1].split("## ")[0]
    cells = "".join(row.split("|")[1] for row in section.splitlines() if row.startswith("| `"))
    assert sorted(re.findall(r"`(\w+)`", cells)) == sorted(AccessSettings.model_fields)


def test_every_setting_of_the_other_processes_is_in_a_table() -> None:
    kinds = (GatewayConfig, InferenceConfig, RegistryConfig, TrainerConfig)
    missing = [
        f"{kind.__name__}.{name}"
        for kind in kinds
        for name in kind.model_fields
        if f"`{name}`" not in DOCS["reference/settings.md"]
    ]
    assert missing == []


def test_every_setting_a_model_may_have_of_its_own_is_named() -> None:
    paragraph = DOCS["reference/settings.md"].split("`model_settings` gives")[1].split("\n\n")[0]
    assert [name for name in ModelSettings.model_fields if f"`{name}`" not in paragraph] == []


def test_code_for_contributors_is_an_excerpt_of_a_test() -> None:
    blocks = re.findall(r"^```python\n# (\S+)\n(.*?)^```", DOCS["guides/extending.md"], re.M | re.S)
    assert len(blocks) == DOCS["guides/extending.md"].count("```python") >= 4
    for path, excerpt in blocks:
        assert path.startswith("tests/")
        assert excerpt in (ROOT / path).read_text(), f"the block differs from {path}"


def test_the_header_with_a_time_limit_is_named() -> None:
    assert f"`{TIMEOUT_HEADER}`" in DOCS["concepts/batching.md"]


def test_every_metric_is_in_the_reference() -> None:
    families = Metrics("test").registry.collect()
    names = [
        family.name + ("_total" if family.type == "counter" else "")
        for family in families
        if family.name.startswith("flambeau_")
    ]
    assert [name for name in names if f"`{name}" not in DOCS["reference/metrics.md"]] == []
    assert "(../reference/metrics.md)" in DOCS["guides/serving.md"]


def test_runbooks_and_operations_name_verbs_that_there_are() -> None:
    texts = [DOCS["guides/operations.md"], *(path.read_text() for path in RUNBOOKS)]
    group = typer.main.get_command(app)
    for words in re.findall(r"`flambeau ([a-z][a-z -]*)", "\n".join(texts)):
        command = group
        for word in words.split():
            if not hasattr(command, "commands"):
                break
            assert word in command.commands, f"flambeau {words}"
            command = command.commands[word]


def test_the_reference_of_recipes_is_what_the_schema_says() -> None:
    assert DOCS["reference/recipe.md"] == reference(recipe_schema()), "run make docs"


def test_every_part_of_a_recipe_is_linked_and_there_once() -> None:
    anchors = re.findall(r'<a id="(\w+)">', DOCS["reference/recipe.md"])
    assert len(anchors) == len({*anchors})
    linked = {*re.findall(r"\]\(#(\w+)\)", DOCS["reference/recipe.md"])}
    assert linked == {*anchors} - {"Recipe"}


def test_the_messages_of_troubleshooting_are_in_the_code() -> None:
    """Without the values that they quote: what is between those is looked up."""
    folders = ("flambeau", "model_store", "services", "training")
    files = [path for name in folders for path in sorted((ROOT / name).rglob("*.py"))]
    code = re.sub(r'"\s*\n\s*f?"', "", "\n".join(path.read_text() for path in files))
    cells = re.findall(r"^\| ([^|]+) \|", DOCS["troubleshooting.md"], re.MULTILINE)
    messages = [message for cell in cells for message in re.findall(r"`([^`]+)`", cell)]
    assert len(messages) > 40
    values = r"…|'[^']*'|\d+(?:\.\d+)*|\[[^\]]*\]|FP64|FP32|rows\.csv|bytes"
    parts = {part.strip(" ;,.():?") for message in messages for part in re.split(values, message)}
    assert sorted(part for part in parts if len(part) > 7 and part not in code) == []


def test_every_verb_is_shown_somewhere() -> None:
    everything = (ROOT / "README.md").read_text() + "".join(DOCS.values())
    group = typer.main.get_command(app)
    verbs = [name for name in group.commands if name not in ("models", "up", "demo")]  # type: ignore[attr-defined]
    verbs += [f"models {name}" for name in group.commands["models"].commands]  # type: ignore[attr-defined]
    assert [verb for verb in verbs if f"flambeau {verb}" not in everything] == []


def test_every_verb_of_the_makefile_is_shown_somewhere() -> None:
    shown = subprocess.run(["make", "help"], cwd=ROOT, check=True, capture_output=True, text=True)
    verbs = [line.split()[0] for line in shown.stdout.splitlines()]
    everything = "".join(path.read_text() for path in DOCUMENTS)
    missing = [v for v in verbs if not re.search(rf"make {v}(?![\w-])|`{v}`", everything)]
    assert missing == [], "name them in CONTRIBUTING.md or where they belong"


def test_files_that_are_named_are_there() -> None:
    path = re.compile(r"(?<![\w/.-])(?:bench|deploy|docs|k8s|services|tests)/[\w/.-]*\.(?:\w+)")
    missing = [
        f"{relative(document)}: {name}"
        for document in DOCUMENTS
        for name in path.findall(document.read_text())
        if not (ROOT / name).exists() and not (document.parent / name).exists()
    ]
    assert missing == []


def test_decisions_are_numbered_without_a_gap_and_listed() -> None:
    numbers = [int(path.name[:4]) for path in DECISIONS]
    assert numbers == [n for n in range(1, max(numbers) + 1) if n not in MERGED_DECISIONS]
    architecture = (ROOT / "ARCHITECTURE.md").read_text()
    missing = [relative(path) for path in DECISIONS if f"({relative(path)})" not in architecture]
    assert missing == [], "link them at the end of ARCHITECTURE.md"


@pytest.mark.parametrize("path", DECISIONS, ids=relative)
def test_a_decision_is_short_and_says_what_was_decided_and_when(path: Path) -> None:
    lines = path.read_text().splitlines()
    assert len(lines) <= MAX_DECISION_LINES
    assert lines[0].startswith(f"# {int(path.name[:4])}. ")
    assert re.fullmatch(r"Status: .*\d{4}-\d\d-\d\d.*", lines[2])


@pytest.mark.parametrize("path", DOCUMENTS, ids=relative)
def test_files_a_document_names_are_there(path: Path) -> None:
    """Those given from the root, as `services/errors.py`; other names are examples."""
    folders = "|".join(
        folder.name for folder in ROOT.iterdir() if (folder / "__init__.py").exists()
    )
    named = re.findall(rf"`((?:{folders}|docs|tests)/[\w./-]+\.\w+)`", path.read_text())
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_no_document_installs_from_an_index_that_has_no_flambeau() -> None:
    """From a clone it is `-e '.[data]'`, from a wheel `'flambeau[data] @ file:...'`."""
    told = {
        f"{relative(path)}: {found}"
        for path in DOCUMENTS
        for found in re.findall(r"pip install ['\"]?flambeau[^`\n]*", path.read_text())
        if " @ file:" not in found
    }
    assert told == set()
