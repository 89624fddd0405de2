"""Grafana dashboards as plain records, and their JSON.

In: dashboards of rows of panels of PromQL. Out: a document in the format of Grafana's export
(https://grafana.com/docs/grafana/latest/dashboards/build-dashboards/view-dashboard-json-model/).

Rules: `id` is null and `uid` is constant, so that an import replaces the dashboard; the data source
is a variable, so that no installation's own is hard-coded; panels never overlap.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

SCHEMA_VERSION = 39
"""Schema of Grafana 10.4 and 11; newer versions migrate it when they load it."""
WIDTH = 24
"""Columns of Grafana's grid."""
STAT_HEIGHT, GRAPH_HEIGHT = 4, 8
NOTE_LINES_A_UNIT = 1.4
"""Lines of a note per unit of height."""
PALETTE = "palette-classic"
TAG = "flambeau"
"""Tag of every dashboard; the top of each links to all that have it."""

Unit = Literal["reqps", "ops", "s", "percentunit", "bytes", "short", "none", "celsius", "watt"]
"""Grafana's unit names."""

DATA_SOURCE = {"type": "prometheus", "uid": "${datasource}"}


@dataclass(frozen=True, slots=True)
class Query:
    """One expression of a panel, and the legend of its series."""

    expression: str
    """PromQL; may use the dashboard's variables and `$__rate_interval`."""
    legend: str
    """Legend with labels as `{{model}}`."""
    quiet: bool = False
    """True if the query may return no data before the first event of its kind."""


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel."""

    title: str
    description: str
    """Meaning of the panel and advice; it is read on call, at night."""
    unit: Unit
    queries: tuple[Query, ...]
    kind: Literal["timeseries", "stat"] = "timeseries"
    stacked: bool = False
    warn_above: float | None = None
    """Value above which a single number is red."""


@dataclass(frozen=True, slots=True)
class PanelRow:
    """Panels side by side, under a heading."""

    title: str
    panels: tuple[Panel, ...]
    absent: str = ""
    """Text of its panels in place of numbers if the monitored component does not run; empty for
    rows that every installation fills."""
    note: str = ""
    """Markdown above the panels."""


@dataclass(frozen=True, slots=True)
class Variable:
    """A selector at the top of a dashboard."""

    name: str
    label: str
    query: str
    """Query of its values: `label_values(metric, label)`."""


@dataclass(frozen=True, slots=True)
class Dashboard:
    """One dashboard."""

    uid: str
    title: str
    description: str
    rows: tuple[PanelRow, ...]
    variables: tuple[Variable, ...] = ()

    def panels(self) -> Iterator[Panel]:
        """Yields all panels, from top to bottom."""
        for row in self.rows:
            yield from row.panels


def dashboard_json(dashboard: Dashboard) -> dict[str, Any]:
    """Returns the JSON document of a dashboard."""
    return {
        "annotations": {"list": [_alert_annotation()] if dashboard.variables else []},
        "description": dashboard.description,
        "editable": True,
        "fiscalYearStartMonth": 0,
        "graphTooltip": 1,
        "id": None,
        "links": [
            {
                "asDropdown": True, "icon": "external link", "includeVars": True, "keepTime": True,
                "tags": [TAG], "title": TAG, "type": "dashboards",
            }
        ],
        "panels": list(_placed(dashboard.rows)),
        "refresh": "10s",
        "schemaVersion": SCHEMA_VERSION,
        "tags": [TAG],
        "templating": {"list": list(_choices(dashboard))},
        "time": {"from": "now-1h", "to": "now"},
        "timepicker": {},
        "timezone": "browser",
        "title": dashboard.title,
        "uid": dashboard.uid,
        "version": 1,
        "weekStart": "",
    }  # fmt: skip


@dataclass(frozen=True, slots=True)
class GridPosition:
    """Position of a panel in the grid of 24 columns; heights are about 38 pixels each."""

    x: int
    y: int
    width: int
    height: int


def places(row: PanelRow, top: int) -> list[tuple[Panel, GridPosition]]:
    """Places the panels of a row side by side, at most six numbers or three graphs.

    Args:
        row: row with the panels.
        top: first grid line below its heading.
    """
    found = []
    x, y = 0, top
    most = 6 if all(panel.kind == "stat" for panel in row.panels) else 3
    columns = max(1, min(len(row.panels), most))
    width = WIDTH // columns
    for panel in row.panels:
        height = STAT_HEIGHT if panel.kind == "stat" else GRAPH_HEIGHT
        if x + width > WIDTH:
            x, y = 0, y + height
        found.append((panel, GridPosition(x, y, width, height)))
        x += width
    return found


def _placed(rows: Sequence[PanelRow]) -> Iterator[dict[str, Any]]:
    number, y = 0, 0
    for row in rows:
        number, y = number + 1, y + 1
        grid = {"x": 0, "y": y - 1, "w": WIDTH, "h": 1}
        yield {"collapsed": False, "gridPos": grid, "id": number, "panels": [],
               "title": row.title, "type": "row"}  # fmt: skip
        if row.note:
            number += 1
            height = note_height(row.note)
            yield _text(row, GridPosition(0, y, WIDTH, height), number)
            y += height
        for panel, place in places(row, y):
            number += 1
            yield _panel(panel, place, number, row.absent)
            y = max(y, place.y + place.height)


def note_height(note: str) -> int:
    """Returns the height units of a note, for lines of about 160 characters."""
    lines = sum(1 + len(line) // 160 for line in note.splitlines())
    return max(2, round(lines / NOTE_LINES_A_UNIT) + 1)


def _text(row: PanelRow, place: GridPosition, number: int) -> dict[str, Any]:
    return {
        "gridPos": {"x": place.x, "y": place.y, "w": place.width, "h": place.height},
        "id": number,
        "options": {"content": row.note, "mode": "markdown"},
        "title": "" if row.panels else row.title,
        "type": "text",
    }


def _panel(panel: Panel, place: GridPosition, number: int, absent: str) -> dict[str, Any]:
    return {
        "datasource": DATA_SOURCE,
        "description": panel.description,
        "fieldConfig": {"defaults": _field_defaults(panel, absent), "overrides": []},
        "gridPos": {"x": place.x, "y": place.y, "w": place.width, "h": place.height},
        "id": number,
        "options": _options(panel),
        "targets": [
            {
                "datasource": DATA_SOURCE, "editorMode": "code",
                "exemplar": "_bucket" in one.expression, "expr": one.expression,
                "legendFormat": one.legend, "range": True, "refId": chr(65 + n),
            }
            for n, one in enumerate(panel.queries)
        ],
        "title": panel.title,
        "type": panel.kind,
    }  # fmt: skip


def _field_defaults(panel: Panel, absent: str) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
    if panel.warn_above is not None:
        steps.append({"color": "red", "value": panel.warn_above})
    defaults: dict[str, Any] = {
        "color": {"mode": "thresholds" if panel.kind == "stat" else PALETTE},
        "min": 0,
        "thresholds": {"mode": "absolute", "steps": steps},
        "unit": panel.unit,
    }
    if absent:
        defaults["noValue"] = absent
    if panel.kind == "timeseries":
        defaults["custom"] = {
            "drawStyle": "line", "fillOpacity": 20 if panel.stacked else 6, "lineWidth": 1,
            "showPoints": "never", "spanNulls": False,
            "stacking": {"mode": "normal" if panel.stacked else "none", "group": "A"},
        }  # fmt: skip
    return defaults


def _options(panel: Panel) -> dict[str, Any]:
    if panel.kind == "stat":
        return {
            "colorMode": "value", "graphMode": "area", "justifyMode": "auto",
            "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
            "textMode": "auto",
        }  # fmt: skip
    return {
        "legend": {"calcs": ["lastNotNull", "max"], "displayMode": "table", "placement": "bottom",
                   "showLegend": True},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }  # fmt: skip


def _choices(dashboard: Dashboard) -> Iterator[dict[str, Any]]:
    if dashboard.variables:  # a page of texts has no selectors
        yield _data_source()
    yield from map(_variable, dashboard.variables)


def _data_source() -> dict[str, Any]:
    return {
        "hide": 0, "includeAll": False, "label": "Data source", "multi": False,
        "name": "datasource", "options": [], "query": "prometheus", "refresh": 1, "regex": "",
        "type": "datasource",
    }  # fmt: skip


def _variable(variable: Variable) -> dict[str, Any]:
    return {
        # With ".*" series without the label are shown too, as outside Kubernetes.
        "allValue": ".*", "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
        "datasource": DATA_SOURCE, "definition": variable.query, "hide": 0, "includeAll": True,
        "label": variable.label, "multi": True, "name": variable.name, "options": [],
        "query": {"qryType": 1, "query": variable.query, "refId": variable.name}, "refresh": 2,
        "regex": "", "skipUrlSync": False, "sort": 3, "type": "query",
    }  # fmt: skip


def _alert_annotation() -> dict[str, Any]:
    return {
        "datasource": DATA_SOURCE, "enable": True, "hide": False, "iconColor": "red",
        "expr": 'ALERTS{alertname=~"Flambeau.*",alertstate="firing",severity="page",'
        'namespace=~"$namespace"}',
        "name": "Pages", "step": "60s", "titleFormat": "{{alertname}} {{model}}",
    }  # fmt: skip
