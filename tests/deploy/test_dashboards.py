"""Dashboards and the scrape configuration: they parse, and every metric that they name is exported."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.cluster.metrics import COUNTERS, GAUGES
from trainer.telemetry.gauges import GAUGES as TRAINING

ROOT = Path(__file__).resolve().parents[2]
DASHBOARDS = sorted((ROOT / "deploy" / "grafana").glob("*.json"))
SCRAPE = ROOT / "deploy" / "prometheus" / "scrape.yaml"
ALERTS = SCRAPE.with_name("alerts.yaml")
METRIC = re.compile(r"\bray_[a-z0-9_]+")
GROUPED = re.compile(r"by \(([^)]*)\) \((?:rate\()?(ray_[a-z0-9_]+)")


def load(path: Path) -> dict[str, Any]:
    dashboard: dict[str, Any] = json.loads(path.read_text())
    return dashboard


def expressions(dashboard: dict[str, Any]) -> list[str]:
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    return queries + [variable.get("definition", "") for variable in dashboard["templating"]["list"]]


def our_labels() -> dict[str, tuple[str, ...]]:
    """The metrics that our code exports, as Prometheus sees them (`_total` behind counters), and their labels."""
    labels = {f"ray_{name}_total": tags for name, (_, tags) in COUNTERS.items()}
    labels |= {f"ray_{name}": tags for name, (_, tags) in GAUGES.items()}
    return labels | {f"ray_sluice_train_{name}": ("run", *tags) for name, (_, tags) in TRAINING.items()}


def rays_metrics() -> set[str]:
    """Those that Ray's own dashboards are made of, and those that each node tells of itself."""
    found = importlib.util.find_spec("ray")
    assert found is not None and found.origin is not None
    modules = Path(found.origin).parent / "dashboard" / "modules"
    panels = (modules / "metrics/dashboards/default_dashboard_panels.py").read_text()
    reporter = (modules / "reporter/reporter_agent.py").read_text()
    return {*METRIC.findall(panels), *(f"ray_{name}" for name in re.findall(r'"(node_[a-z_]+)": Gauge', reporter))}


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.name)
def test_every_metric_of_a_dashboard_is_exported(path: Path) -> None:
    named = {metric for expression in expressions(load(path)) for metric in METRIC.findall(expression)}
    assert named
    assert named - our_labels().keys() - rays_metrics() == set()
    assert {metric for metric in named if "sluice" in metric} <= our_labels().keys()


def test_every_metric_of_ours_is_on_a_dashboard() -> None:
    shown = {
        metric for path in DASHBOARDS for expression in expressions(load(path)) for metric in METRIC.findall(expression)
    }
    assert our_labels().keys() - shown == set()


def test_every_metric_of_an_alert_is_exported() -> None:
    rules = [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]
    named = {metric for rule in rules for metric in METRIC.findall(rule["expr"])}
    assert named and named <= our_labels().keys()


def test_prometheus_takes_the_alerts() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("no promtool here: it comes with Debian's package prometheus")
    ended = subprocess.run([promtool, "check", "rules", str(ALERTS)], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr


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


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.name)
def test_labels_in_our_queries_are_labels_that_the_code_sets(path: Path) -> None:
    labels = our_labels()
    groups = [found for expression in expressions(load(path)) for found in GROUPED.findall(expression)]
    ours = [(grouped, metric) for grouped, metric in groups if metric in labels]
    assert ours
    for grouped, metric in ours:
        assert {label.strip() for label in grouped.split(",")} <= set(labels[metric]), metric


def test_prometheus_asks_the_ports_that_the_manifests_name() -> None:
    scrape = yaml.safe_load(SCRAPE.read_text())
    rules = [rule for job in scrape["scrape_configs"] for rule in job.get("relabel_configs", [])]
    (port,) = [r["regex"] for r in rules if "__meta_kubernetes_pod_container_port_name" in r["source_labels"]]
    manifest = yaml.safe_load((ROOT / "deploy" / "kuberay" / "raycluster.yaml").read_text())["spec"]
    for group in [manifest["headGroupSpec"], *manifest["workerGroupSpecs"]]:
        (container,) = group["template"]["spec"]["containers"]
        assert port in {each["name"] for each in container["ports"]}
