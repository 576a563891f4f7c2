"""Dashboards of Grafana as typed values, and their JSON (schemaVersion 39, Grafana 11; newer versions migrate it).

Source of the fields: grafana/grafana, kinds/dashboard/dashboard_kind.cue.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

GRID_COLUMNS = 24
SCHEMA_VERSION = 39
PANEL_ROWS = {"stat": 4, "timeseries": 8, "table": 9}
"""Height of a panel by its type, in rows of the grid."""
_HIDDEN_COLUMNS = ("Time", "__name__", "job", "Value", "endpoint", "container", "namespace")
"""Of tables of series whose value is always 1; the namespace is that of the agent's pod."""
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}


@dataclass(frozen=True, slots=True)
class Query:
    """One PromQL expression; `legend` is a template such as "{{state}}"."""

    expr: str
    legend: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel. `unit` is an id of Grafana's: short, bytes, s, percentunit."""

    title: str
    description: str
    queries: tuple[Query, ...]
    type: Literal["stat", "timeseries", "table"] = "timeseries"
    unit: str = "short"
    width: int = 12
    stacked: bool = False
    value_column: str = ""
    """Of a table: the title of the column with the value, by which it is sorted; "" if the value is always 1."""


@dataclass(frozen=True, slots=True)
class Dashboard:
    """One dashboard; `uid` is its stable address and the name of its file."""

    uid: str
    title: str
    description: str
    panels: tuple[Panel, ...]
    per_node: bool = False
    """Has a variable `instance`, which its expressions use."""

    def to_json(self) -> str:
        """Return the JSON that Grafana imports and provisions."""
        variables: list[dict[str, Any]] = [
            {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}
        ]
        if self.per_node:
            query = "label_values(dra_agent_build_info, instance)"
            variables.append(
                {
                    "name": "instance",
                    "label": "Agent",
                    "type": "query",
                    "datasource": DATASOURCE,
                    "definition": query,
                    "query": {"query": query, "refId": "instance"},
                    "refresh": 2,
                    "sort": 1,
                    "multi": True,
                    "includeAll": True,
                    "allValue": ".*",
                    "current": {"selected": True, "text": "All", "value": "$__all"},
                }
            )
        content = {
            "uid": self.uid,
            "title": self.title,
            "description": self.description,
            "tags": ["dra-agent"],
            "schemaVersion": SCHEMA_VERSION,
            "version": 1,
            "editable": True,
            "graphTooltip": 1,
            "refresh": "30s",
            "time": {"from": "now-6h", "to": "now"},
            "timezone": "browser",
            "annotations": {"list": []},
            "links": [
                {
                    "type": "dashboards",
                    "title": "dra-agent",
                    "tags": ["dra-agent"],
                    "asDropdown": True,
                    "keepTime": True,
                }
            ],
            "templating": {"list": variables},
            "panels": _placed(self.panels),
        }
        return json.dumps(content, indent=1) + "\n"


def _placed(panels: tuple[Panel, ...]) -> list[dict[str, Any]]:
    """Return the panels from left to right, in rows as high as their highest panel."""
    placed = []
    x = y = height = 0
    for number, panel in enumerate(panels, 1):
        if x + panel.width > GRID_COLUMNS:
            x, y, height = 0, y + height, 0
        rows = PANEL_ROWS[panel.type]
        placed.append(_panel(number, panel, {"x": x, "y": y, "w": panel.width, "h": rows}))
        x, height = x + panel.width, max(height, rows)
    return placed


def _panel(number: int, panel: Panel, position: dict[str, int]) -> dict[str, Any]:
    instant = panel.type != "timeseries"
    custom = {"fillOpacity": 10, "stacking": {"mode": "normal"}} if panel.stacked else {}
    content: dict[str, Any] = {
        "id": number,
        "type": panel.type,
        "title": panel.title,
        "description": panel.description,
        "datasource": DATASOURCE,
        "gridPos": position,
        "fieldConfig": {"defaults": {"unit": panel.unit, "custom": custom}, "overrides": []},
        "targets": [
            {
                "refId": chr(ord("A") + position),
                "datasource": DATASOURCE,
                "expr": query.expr,
                "legendFormat": query.legend,
                "instant": instant,
                "range": not instant,
                **({"format": "table"} if panel.type == "table" else {}),
            }
            for position, query in enumerate(panel.queries)
        ],
    }
    if panel.type == "table":
        columns: dict[str, Any] = {"excludeByName": dict.fromkeys(_HIDDEN_COLUMNS, True)}
        if panel.value_column:
            columns = {"excludeByName": {"Time": True}, "renameByName": {"Value": panel.value_column}}
            content["options"] = {"sortBy": [{"displayName": panel.value_column, "desc": True}]}
        content["transformations"] = [{"id": "organize", "options": columns}]
    if panel.type == "stat":
        content["options"] = {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "none", "graphMode": "area"}
    return content
