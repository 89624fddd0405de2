"""Runbooks as a dashboard of texts, beside the others, for the links of alerts.

In: `docs/runbooks/*.md`. Out: the dashboard `flambeau-runbooks`, and the URL of each alert's
runbook. Grafana is up when flambeau is not, and every installation with these dashboards has it: so
the links of the alerts need no other server.
"""

import re
from collections.abc import Mapping
from pathlib import Path

from flambeau.monitoring.alerts import ALERTS, BUDGET_ALERTS
from flambeau.monitoring.panels import Dashboard, PanelRow

UID = "flambeau-runbooks"
RUNBOOK_URL = f"http://localhost:3000/d/{UID}?viewPanel={{panel}}"
"""Pattern of a runbook's URL: `{alert}` is the alert's name, `{panel}` the number of its panel in
the dashboard. The default is Grafana of `deploy/compose.yaml`, or of a cluster through `kubectl
port-forward`; `flambeau alerts --runbook-url` sets another."""
NAMES = tuple(sorted({alert.name for alert in ALERTS} | {*BUDGET_ALERTS}))
_LINK = re.compile(r"\[([^\]]+)\]\((?:\.\./)?(?!https?:)([^)#]+)[^)]*\)")


def url_of_runbook(alert: str, pattern: str = RUNBOOK_URL) -> str:
    """Returns the URL of an alert's runbook.

    Args:
        alert: name of the alert.
        pattern: see `RUNBOOK_URL`.
    """
    # Each row has two panels: its heading, then its text.
    panel = 2 * (NAMES.index(alert) + 1)
    return pattern.replace("{alert}", alert).replace("{panel}", str(panel))


def read_runbooks(root: Path) -> dict[str, str]:
    """Reads the text of each runbook, by alert.

    Args:
        root: root of the repository.
    """
    folder = root / "docs/runbooks"
    return {name: (folder / f"{name}.md").read_text(encoding="utf-8") for name in NAMES}


def runbook_dashboard(texts: Mapping[str, str]) -> Dashboard:
    """Builds a dashboard with a row for each alert, which has its runbook as text.

    Args:
        texts: Markdown, by alert. Links within the repository become plain text.
    """
    return Dashboard(
        uid=UID,
        title="flambeau: runbooks",
        description="Meaning, diagnosis and remedy of each alert. Alerts link here.",
        rows=tuple(PanelRow(name, (), note=_without_links(texts[name])) for name in NAMES),
    )


def _without_links(text: str) -> str:
    _, _, body = text.partition("\n")  # the row has that heading
    return _LINK.sub(r"\1 (docs/\2)", body).strip()
