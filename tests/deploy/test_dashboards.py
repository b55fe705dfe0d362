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
NODES = SCRAPE.with_name("nodes.yaml")
METRIC = re.compile(r"\bray_[a-z0-9_]+")
GROUPED = re.compile(r"by \(([^)]*)\) \((?:rate\()?(ray_[a-z0-9_]+)")


def load(path: Path) -> dict[str, Any]:
    dashboard: dict[str, Any] = json.loads(path.read_text())
    return dashboard


def expressions(dashboard: dict[str, Any]) -> list[str]:
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    return queries + [variable.get("definition", "") for variable in dashboard["templating"]["list"]]


def our_labels() -> dict[str, tuple[str, ...]]:
    """The metrics that our code exports, as Prometheus sees them (`_total` behind counters), and their
    labels."""
    labels = {f"ray_{name}_total": tags for name, (_, tags) in COUNTERS.items()}
    labels |= {f"ray_{name}": tags for name, (_, tags) in GAUGES.items()}
    return labels | {f"ray_sluice_train_{name}": ("run", *tags) for name, (_, tags) in TRAINING.items()}


def rays_metrics() -> set[str]:
    """Those that Ray's own dashboards are made of, and those that each node tells of itself."""
    from ray.data._internal.execution.interfaces.op_runtime_metrics import OpRuntimeMetrics

    found = importlib.util.find_spec("ray")
    assert found is not None and found.origin is not None
    modules = Path(found.origin).parent / "dashboard" / "modules"
    panels = (modules / "metrics/dashboards/default_dashboard_panels.py").read_text()
    reporter = (modules / "reporter/reporter_agent.py").read_text()
    nodes = {f"ray_{name}" for name in re.findall(r'"(node_[a-z_]+)": Gauge', reporter)}
    # Of each operator of a Dataset: what the class that counts them says.
    operators = {f"ray_data_{metric.name}" for metric in OpRuntimeMetrics.get_metrics()}
    operators.add("ray_data_task_completion_time_count")  # a histogram's
    return {*METRIC.findall(panels), *nodes, *operators}


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.name)
def test_every_metric_of_a_dashboard_is_exported(path: Path) -> None:
    named = {metric for expression in expressions(load(path)) for metric in METRIC.findall(expression)}
    assert named
    assert named - our_labels().keys() - rays_metrics() == set()
    assert {metric for metric in named if "sluice" in metric} <= our_labels().keys()


def test_every_metric_of_ours_is_on_a_dashboard() -> None:
    shown = {
        metric
        for path in DASHBOARDS
        for expression in expressions(load(path))
        for metric in METRIC.findall(expression)
    }
    assert our_labels().keys() - shown == set()


def test_every_metric_of_an_alert_is_exported() -> None:
    rules = [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]
    named = {metric for rule in rules for metric in METRIC.findall(rule["expr"])}
    assert named and named <= our_labels().keys()


def promtool(*arguments: str) -> None:
    """Carry out a command of Prometheus' own tool that must succeed."""
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("no promtool here: it comes with Debian's package prometheus")
    ended = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def recorded(dashboard: dict[str, Any]) -> dict[str, str]:
    """Each query of a dashboard, for all runs, by the name of a rule that records it."""
    queries = [
        target["expr"].replace("$run", ".+") for panel in dashboard["panels"] for target in panel["targets"]
    ]
    return {f"panel:{number}": query for number, query in enumerate(queries)}


def write_rules(path: Path, rules: dict[str, str]) -> str:
    """The rules as a file that promtool takes."""
    group = {"name": "panels", "rules": [{"record": name, "expr": query} for name, query in rules.items()]}
    path.write_text(yaml.safe_dump({"groups": [group]}))
    return str(path)


def test_prometheus_takes_the_alerts() -> None:
    promtool("check", "rules", str(ALERTS), str(NODES))


def test_counters_of_both_exporters_raise_alerts_that_drain_the_node(tmp_path: Path) -> None:
    raised = {
        "GpuXid": ('DCGM_FI_DEV_XID_ERRORS{gpu="1",Hostname="n7"}', "0x3 79x10"),
        "GpuSlowed": ('DCGM_FI_DEV_CLOCK_THROTTLE_REASONS{gpu="1",Hostname="n7"}', "4x3 12x10"),
        "SegmentsSentAgain": ('node_netstat_Tcp_RetransSegs{instance="n7:9100"}', "0x3 500x10"),
        "MemoryErrorsCorrected": ('node_edac_correctable_errors_total{instance="n7:9100"}', "0x3 90+30x10"),
    }
    sent = {"series": 'node_netstat_Tcp_OutSegs{instance="n7:9100"}', "values": "0+100x13"}
    tests = [
        {
            "expr": f'count(ALERTS{{alertname="{name}", alertstate="firing", drain="node"}})',
            "eval_time": when,
            "exp_samples": found,
        }
        for name in raised
        for when, found in (("2m", []), ("8m", [{"labels": "{}", "value": 1}]))
    ]
    series = [{"series": name, "values": values} for name, values in raised.values()]
    told = {
        "rule_files": [str(NODES)],
        "tests": [{"interval": "1m", "input_series": [*series, sent], "promql_expr_test": tests}],
    }
    (tmp_path / "test.yaml").write_text(yaml.safe_dump(told))
    promtool("test", "rules", str(tmp_path / "test.yaml"))


def test_a_slow_rank_raises_an_alert_that_names_it_until_it_has_caught_up(tmp_path: Path) -> None:
    labels = {"run": "r", "rank": "3", "node": "n7", "phase": "forward"}
    described = ",".join(f'{name}="{value}"' for name, value in labels.items())
    series = f'ray_sluice_train_straggler_factor{{{described},WorkerId="w",SessionName="s"}}'
    raised = {
        "exp_labels": {"alertname": "RankSlow", **labels},
        "exp_annotations": {
            "summary": "r: rank 3 on n7 takes 1.5 times as long as others at the same work in forward"
        },
    }
    tests = [
        {"alertname": "RankSlow", "eval_time": "4m", "exp_alerts": [raised]},
        {"alertname": "RankSlow", "eval_time": "9m", "exp_alerts": []},
    ]
    told = {
        "rule_files": [str(ALERTS)],
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": series, "values": "_ _ 1.5x4 1x10"}],
                "alert_rule_test": tests,
            }
        ],
    }
    (tmp_path / "test.yaml").write_text(yaml.safe_dump(told))
    promtool("test", "rules", str(tmp_path / "test.yaml"))


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.name)
def test_prometheus_takes_every_query_of_a_dashboard(path: Path, tmp_path: Path) -> None:
    promtool("check", "rules", write_rules(tmp_path / "rules.yaml", recorded(load(path))))


def panel(title: str) -> str:
    """The query of a panel of the data pipeline's dashboard."""
    (found,) = [p for p in load(ROOT / "deploy/grafana/data.json")["panels"] if p["title"] == title]
    query: str = found["targets"][0]["expr"]
    return query


def test_panels_by_operator_add_up_datasets_and_name_operators_as_the_engine_does(tmp_path: Path) -> None:
    stages, model = "read->url->parse", "classifier.edu"
    rules = {
        "done": panel("Units done by operator"),
        "under_way": panel("Units under way by operator"),
        "workers": panel("Workers by operator"),
        "time": panel("Time of a unit by operator"),
        "failed": panel("Failed tries by operator"),
        "actors": panel("Actors at work by operator"),
    }
    counted = {
        # Two Datasets of one operator, a unit every 10 seconds each; and the input of a Dataset, which is no
        # operator.
        "task_completion_time_count": {
            ("1", f"MapBatches({stages})_1"): "0+6x30",
            ("2", f"MapBatches({stages})_1"): "0+6x30",
        },
        "num_tasks_finished": {
            ("1", f"MapBatches({stages})_1"): "0+6x30",
            ("2", f"MapBatches({stages})_1"): "0+6x30",
        },
        "task_worker_completion_time_s": {
            ("1", f"MapBatches({stages})_1"): "0+45x30",
            ("2", f"MapBatches({stages})_1"): "0+45x30",
        },
        "num_tasks_running": {
            ("1", f"MapBatches({stages})_1"): "3x30",
            ("2", f"MapBatches({stages})_1"): "4x30",
            ("1", "Input_0"): "9x30",
        },
        "num_tasks_failed": {("1", f"MapBatches({stages})_1"): "2x30"},
        "num_active_actors": {
            ("1", f"MapBatches({model})_2"): "3x30",
            ("1", f"MapBatches({stages})_1"): "0x30",
        },
        "num_alive_actors": {
            ("1", f"MapBatches({model})_2"): "4x30",
            ("1", f"MapBatches({stages})_1"): "0x30",
        },
    }
    series = [
        {
            "series": f'ray_data_{name}{{dataset="dataset_{dataset}_0",operator="{operator}"}}',
            "values": values,
        }
        for name, of_operators in counted.items()
        for (dataset, operator), values in of_operators.items()
    ]
    of_stages = f'{{operator="{stages}"}}'
    expected = {
        "done": [(of_stages, 0.2)],
        "under_way": [(of_stages, 7)],
        "workers": [(of_stages, 1.5)],
        "time": [(of_stages, 7.5)],
        "failed": [(of_stages, 2)],
        "actors": [(f'{{operator="{model}"}}', 0.75)],
    }
    tests = [
        {
            "expr": rules[name],
            "eval_time": "25m",
            "exp_samples": [{"labels": labels, "value": v} for labels, v in found],
        }
        for name, found in expected.items()
    ]
    told = {
        "rule_files": [
            write_rules(tmp_path / "rules.yaml", {f"panel:{name}": query for name, query in rules.items()})
        ],
        "tests": [{"interval": "1m", "input_series": series, "promql_expr_test": tests}],
    }
    (tmp_path / "test.yaml").write_text(yaml.safe_dump(told))
    promtool("test", "rules", str(tmp_path / "test.yaml"))


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
        assert expression.count("(") == expression.count(")") and expression.count("{") == expression.count(
            "}"
        )


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
