"""Dashboards and the scrape configuration: they parse, and every metric that they name is exported."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.metrics import COUNTERS, GAUGES

ROOT = Path(__file__).resolve().parents[2]
DASHBOARDS = sorted((ROOT / "deploy" / "grafana").glob("*.json"))
METRIC = re.compile(r"\bray_[a-z0-9_]+")


def load(path: Path) -> dict[str, Any]:
    dashboard: dict[str, Any] = json.loads(path.read_text())
    return dashboard


def expressions(dashboard: dict[str, Any]) -> list[str]:
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    return queries + [variable.get("definition", "") for variable in dashboard["templating"]["list"]]


def our_metrics() -> set[str]:
    """What our code exports, as Prometheus sees it: `_total` is put behind counters."""
    from trainer.launch import RayMetrics

    trained = {f"ray_{gauge.info['name']}" for gauge in vars(RayMetrics("test")).values() if hasattr(gauge, "info")}
    gauges = vars(RayMetrics("test"))["_gauges"].values()
    trained |= {f"ray_{gauge.info['name']}" for gauge in gauges}
    return trained | {f"ray_{name}_total" for name in COUNTERS} | {f"ray_{name}" for name in GAUGES}


def rays_metrics() -> set[str]:
    """Those that Ray's own dashboards are made of."""
    found = importlib.util.find_spec("ray")
    assert found is not None and found.origin is not None
    panels = Path(found.origin).parent / "dashboard/modules/metrics/dashboards/default_dashboard_panels.py"
    return set(METRIC.findall(panels.read_text()))


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.name)
def test_every_metric_of_a_dashboard_is_exported(path: Path) -> None:
    named = {metric for expression in expressions(load(path)) for metric in METRIC.findall(expression)}
    assert named
    assert named - our_metrics() - rays_metrics() == set()
    assert {metric for metric in named if "sluice" in metric} <= our_metrics()


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.name)
def test_a_dashboard_has_the_form_of_rays_own(path: Path) -> None:
    dashboard = load(path)
    assert dashboard["schemaVersion"] == 27
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert {panel["datasource"] for panel in panels} == {"${datasource}"}
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels]
    assert len(set(places)) == len(places)
    for expression in expressions(dashboard):
        assert expression.count("(") == expression.count(")") and expression.count("{") == expression.count("}")


def test_labels_in_our_queries_are_labels_that_the_code_sets() -> None:
    labels = {f"ray_{name}_total": tags for name, (_, tags) in COUNTERS.items()}
    labels |= {f"ray_{name}": tags for name, (_, tags) in GAUGES.items()}
    for expression in expressions(load(ROOT / "deploy" / "grafana" / "data.json")):
        ours = [metric for metric in METRIC.findall(expression) if metric in labels]
        for grouped in re.findall(r"by \(([^)]*)\)", expression) if ours else []:
            assert {label.strip() for label in grouped.split(",")} <= set(labels[ours[0]])


def test_prometheus_asks_the_ports_that_the_manifests_name() -> None:
    scrape = yaml.safe_load((ROOT / "deploy" / "prometheus" / "scrape.yaml").read_text())
    rules = [rule for job in scrape["scrape_configs"] for rule in job.get("relabel_configs", [])]
    (port,) = [r["regex"] for r in rules if "__meta_kubernetes_pod_container_port_name" in r["source_labels"]]
    manifest = yaml.safe_load((ROOT / "deploy" / "kuberay" / "raycluster.yaml").read_text())["spec"]
    for group in [manifest["headGroupSpec"], *manifest["workerGroupSpecs"]]:
        (container,) = group["template"]["spec"]["containers"]
        assert port in {each["name"] for each in container["ports"]}
