"""The generated files, which are committed, so that a plain checkout has them.

In: this code, and the runbooks. Out: each file's path and text.
"""

import json
from pathlib import Path

from flambeau.monitoring.dashboards import DASHBOARDS
from flambeau.monitoring.metric_reference import metrics_document
from flambeau.monitoring.panels import dashboard_json
from flambeau.monitoring.rules import prometheus_rule, rules_file
from flambeau.monitoring.runbooks import read_runbooks, runbook_dashboard


def generated_files(root: Path) -> dict[str, str]:
    """Returns their texts, by path from the root of the repository.

    Args:
        root: root of the repository.
    """
    runbooks = runbook_dashboard(read_runbooks(root))
    return {
        **{
            f"deploy/grafana/dashboards/{one.uid}.json": json.dumps(
                dashboard_json(one), indent=1, ensure_ascii=False
            )
            + "\n"
            for one in (*DASHBOARDS, runbooks)
        },
        "deploy/prometheus/rules/flambeau.yaml": rules_file({}),
        "deploy/prometheus/operator/flambeau.yaml": prometheus_rule({}),
        "docs/reference/metrics.md": metrics_document(),
    }


def write_all(root: Path) -> list[Path]:
    """Writes all generated files. Returns their paths.

    Args:
        root: root of the repository.
    """
    written = []
    for name, text in generated_files(root).items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        written.append(path)
    return written
