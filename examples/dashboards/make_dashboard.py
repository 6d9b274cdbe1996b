"""Writes agentkv.json, the Grafana dashboard: `python examples/dashboards/make_dashboard.py`.

What: `panels.py` has the panels; what Grafana wants around them is the same for all.
Why made by a script: a dashboard edited by hand is a thousand lines that nobody reads, and its
names of metrics rot. Load it with Dashboards → New → Import → Upload, and choose the Prometheus
that scrapes vLLM's /metrics; or put it where Grafana's provisioning looks.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from panels import ROWS, Kind, Panel

FILE = Path(__file__).with_name("agentkv.json")

_WIDTH = 24
_DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}

# What stands for the choice of model and engine in every query.
_CHOSEN = 'model_name=~"$model", engine=~"$engine"'


def dashboard() -> dict[str, Any]:
    """The whole of it, as Grafana imports it."""
    return {
        "uid": "agentkv",
        "title": "agentkv",
        "description": "What becomes of the KV of agents' pauses on vLLM.",
        "tags": ["vllm", "agentkv"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "templating": {"list": _variables()},
        "annotations": {"list": []},
        "panels": list(_panels()),
    }


def _variables() -> list[dict[str, Any]]:
    source = {
        "name": "datasource",
        "label": "Prometheus",
        "type": "datasource",
        "query": "prometheus",
        "current": {},
        "hide": 0,
    }
    return [
        source,
        _choice("model", "Model", "label_values(vllm:num_requests_running, model_name)"),
        _choice(
            "engine",
            "Engine",
            'label_values(vllm:num_requests_running{model_name=~"$model"}, engine)',
        ),
    ]


def _choice(name: str, label: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": _DATASOURCE,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
        "hide": 0,
    }


def _panels() -> Iterator[dict[str, Any]]:
    y, number = 0, 0
    for title, panels in ROWS.items():
        number += 1
        place = {"x": 0, "y": y, "w": _WIDTH, "h": 1}
        yield {"id": number, "type": "row", "title": title, "collapsed": False, "gridPos": place}
        x, y = 0, y + 1
        height = 0
        for panel in panels:
            if x + panel.width > _WIDTH:
                x, y = 0, y + height
            height = 4 if panel.kind == "stat" else 8
            number += 1
            yield _panel(panel, number, {"x": x, "y": y, "w": panel.width, "h": height})
            x += panel.width
        y += height


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    targets = [
        {
            "refId": chr(ord("A") + index),
            "datasource": _DATASOURCE,
            "expr": query.replace("@", _CHOSEN),
            "legendFormat": legend,
        }
        for index, (legend, query) in enumerate(panel.queries.items())
    ]
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.meaning,
        "datasource": _DATASOURCE,
        "gridPos": place,
        "targets": targets,
        "fieldConfig": {"defaults": _defaults(panel), "overrides": []},
        "options": _options(panel.kind),
    }


def _defaults(panel: Panel) -> dict[str, Any]:
    made: dict[str, Any] = {"unit": panel.unit, "min": 0}
    if panel.top is not None:
        made["max"] = panel.top
    if panel.kind == "timeseries":
        stacking = {"mode": "normal" if panel.is_stacked else "none"}
        made["custom"] = {"fillOpacity": 25 if panel.is_stacked else 0, "stacking": stacking}
    return made


def _options(kind: Kind) -> dict[str, Any]:
    if kind == "stat":
        return {
            "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
            "textMode": "auto",
            "colorMode": "value",
            "graphMode": "area",
        }
    return {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }


def as_text() -> str:
    """As it lies in the file."""
    return json.dumps(dashboard(), indent=1) + "\n"


if __name__ == "__main__":
    FILE.write_text(as_text(), encoding="utf-8")
    sys.stdout.write(f"{FILE}\n")
