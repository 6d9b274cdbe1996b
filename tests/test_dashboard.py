"""The Grafana dashboard asks for metrics that exist, and has all that Grafana needs to load it."""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest

from agentkv.metrics import ALL_METRICS, Kind, Metric

FOLDER = Path(__file__).parent.parent / "examples" / "dashboards"
_NAME = re.compile(r"\b(?:agentkv|vllm):\w+")
_UNITS = {"short", "ops", "s", "bytes", "Bps", "percentunit"}
_HISTOGRAM_SUFFIXES = ("_bucket", "_sum", "_count")


@pytest.fixture(scope="module")
def dashboard() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((FOLDER / "agentkv.json").read_text(encoding="utf-8"))
    return loaded


def panels(dashboard: dict[str, Any]) -> list[dict[str, Any]]:
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def queries(dashboard: dict[str, Any]) -> list[str]:
    variables = [str(v["query"]) for v in dashboard["templating"]["list"]]
    return [t["expr"] for panel in panels(dashboard) for t in panel["targets"]] + variables


def exposed(metric: Metric) -> set[str]:
    """The names under which Prometheus has a metric."""
    if metric.kind is Kind.COUNTER:
        return {f"{metric.name}_total"}
    if metric.kind is Kind.HISTOGRAM:
        return {metric.name + suffix for suffix in _HISTOGRAM_SUFFIXES}
    return {metric.name}


def vllms_names() -> set[str]:
    """What this vLLM defines, in the forms in which Prometheus may have it."""
    found = importlib.util.find_spec("vllm")  # Found, not imported: that takes seconds.
    assert found is not None and found.origin is not None
    root = Path(found.origin).parent
    folders = ("v1/metrics", "v1/kv_offload", "distributed/kv_transfer")
    files = [file for folder in folders for file in (root / folder).rglob("*.py")]
    text = "".join(file.read_text(encoding="utf-8") for file in files)
    names = set(re.findall(r'"(vllm:\w+)"', text))
    return {name + suffix for name in names for suffix in ("", "_total", *_HISTOGRAM_SUFFIXES)}


def test_it_is_what_the_script_makes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    module = importlib.import_module("make_dashboard")
    assert module.as_text() == (FOLDER / "agentkv.json").read_text(encoding="utf-8")


def test_every_name_in_a_query_exists(dashboard: dict[str, Any]) -> None:
    known = vllms_names().union(*map(exposed, ALL_METRICS))
    asked = {name for query in queries(dashboard) for name in _NAME.findall(query)}
    assert len(asked) > 30 and asked <= known


def test_every_label_in_a_query_is_one_of_the_metrics(dashboard: dict[str, Any]) -> None:
    by_name = {name: metric for metric in ALL_METRICS for name in exposed(metric)}
    for query in queries(dashboard):
        for name, matchers in re.findall(r"(agentkv:\w+)\{(.*?)\}", query):
            labels = set(re.findall(r"(\w+)(?:=~|!~|!=|=)", matchers))
            assert labels - {"model_name", "engine"} <= set(by_name[name].labels)
        for grouping, name in re.findall(r"by \(([\w, ]+)\) \(?(?:rate\()?(agentkv:\w+)", query):
            assert set(grouping.split(", ")) - {"le"} <= set(by_name[name].labels)


def test_every_metric_of_ours_is_shown_but_for_a_few(dashboard: dict[str, Any]) -> None:
    asked = {name for query in queries(dashboard) for name in _NAME.findall(query)}
    hidden = {metric.name for metric in ALL_METRICS if not exposed(metric) & asked}
    assert hidden <= {
        "agentkv:tier_blocks",
        "agentkv:prefetched_tokens",
        "agentkv:prefetch_early_byte_seconds",
        "agentkv:admission_delayed",
        "agentkv:admission_wait_seconds",
        "agentkv:recompute_load",
    }


def test_every_panel_has_title_unit_legend_meaning_and_source(dashboard: dict[str, Any]) -> None:
    for panel in panels(dashboard):
        assert panel["title"] and panel["description"]
        assert panel["fieldConfig"]["defaults"]["unit"] in _UNITS
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert panel["targets"] and all(target["legendFormat"] for target in panel["targets"])
        for target in panel["targets"]:
            named = re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])
            groups = ", ".join(re.findall(r"by \(([\w, ]+)\)", target["expr"])).split(", ")
            assert set(named) <= set(groups)
    titles = [panel["title"] for panel in panels(dashboard)]
    assert len(titles) == len(set(titles))


def test_queries_are_whole_and_keep_to_the_chosen_engine(dashboard: dict[str, Any]) -> None:
    for panel in panels(dashboard):
        for target in panel["targets"]:
            for opening, closing in ("()", "{}", "[]"):
                assert target["expr"].count(opening) == target["expr"].count(closing)
            names = len(_NAME.findall(target["expr"]))
            assert target["expr"].count('model_name=~"$model", engine=~"$engine"') == names


def test_it_has_what_grafana_needs_to_load_it(dashboard: dict[str, Any]) -> None:
    assert dashboard["uid"] == "agentkv" and dashboard["title"]
    assert dashboard["schemaVersion"] >= 36 and "id" not in dashboard
    variables = {v["name"]: v for v in dashboard["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    assert variables["datasource"]["query"] == "prometheus"
    assert variables["model"]["includeAll"] and variables["engine"]["includeAll"]
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(ids) == len(set(ids))


def test_no_panel_lies_on_another(dashboard: dict[str, Any]) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        cells = {
            (place["x"] + dx, place["y"] + dy)
            for dx in range(place["w"])
            for dy in range(place["h"])
        }
        assert place["x"] + place["w"] <= 24 and not cells & taken
        taken |= cells
