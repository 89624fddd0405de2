"""`flambeau alerts`: rules for Prometheus, with the objectives of the models in a store."""

import json
from pathlib import Path
from typing import Annotated

import typer

from flambeau.commands.options.as_json import AsJson
from flambeau.commands.options.output import writable_file
from flambeau.commands.options.store import (
    DEFAULT_STORE,
    STORE_FAILURES,
    StoreUrl,
    existing_store,
)
from flambeau.commands.text.failures import failing_with


@failing_with({**STORE_FAILURES, OSError: 1})
def alerts(
    store: StoreUrl = DEFAULT_STORE,
    output: Annotated[
        Path | None, typer.Option(callback=writable_file, help="Output file; printed unless given.")
    ] = None,
    operator: Annotated[
        bool,
        typer.Option("--operator", help="Write a PrometheusRule, for the Prometheus Operator."),
    ] = False,
    runbook_url: Annotated[
        str | None,
        typer.Option(
            help="URL pattern of the runbooks: {alert} is the name of the alert, {panel} its panel "
            "in the dashboard flambeau-runbooks. Unless given, that dashboard on Grafana at "
            "localhost:3000.",
        ),
    ] = None,
    namespace: Annotated[
        str,
        typer.Option(
            help="Kubernetes namespace to limit the rules to, so that one Prometheus can load the "
            "rules of several stores.",
        ),
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Print Prometheus alert rules for the service-level objectives of each model in the store."""
    from flambeau.monitoring.objectives import stored_objectives
    from flambeau.monitoring.rules import prometheus_rule, rules_file
    from flambeau.monitoring.runbooks import RUNBOOK_URL

    objectives = stored_objectives(existing_store(store))
    make = prometheus_rule if operator else rules_file
    text = make(objectives, runbook_url or RUNBOOK_URL, namespace)
    if as_json:
        from model_store.yaml_text import read_yaml

        text = json.dumps(read_yaml(text), indent=2, ensure_ascii=False) + "\n"
    if output is None:
        typer.echo(text, nl=False)
        return
    output.write_text(text, encoding="utf-8")
    typer.echo(f"wrote {output}: {len(objectives)} models")
