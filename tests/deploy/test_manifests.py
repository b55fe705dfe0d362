"""The KubeRay manifests against the operator's published schema, with unknown fields refused."""

from __future__ import annotations

import copy
import json
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
MANIFESTS = sorted((DEPLOY / "kuberay").glob("*.yaml"))
CRD_OF = {"RayCluster": "ray.io_rayclusters.yaml", "RayJob": "ray.io_rayjobs.yaml"}


def strict(schema: Any) -> Any:
    """A CRD's schema as JSON Schema: unknown fields refused, fields with a default not required,
    int-or-string."""
    if isinstance(schema, list):
        return [strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("x-kubernetes-int-or-string"):
        return {"anyOf": [{"type": "integer"}, {"type": "string"}]}
    made = {name: strict(value) for name, value in schema.items() if name != "properties"}
    if isinstance(schema.get("properties"), dict):
        made["properties"] = {name: strict(value) for name, value in schema["properties"].items()}
        made.setdefault("additionalProperties", False)
        with_default = {
            n for n, value in schema["properties"].items() if isinstance(value, dict) and "default" in value
        }
        made["required"] = [name for name in schema.get("required", []) if name not in with_default]
    return made


@pytest.fixture(scope="module")
def schemas(real_data: Path) -> dict[str, Any]:
    """The spec's schema of each kind."""
    folder = real_data / "kuberay"
    if not folder.is_dir():
        pytest.skip(f"no KubeRay schema at {folder}")
    found = {}
    for kind, name in CRD_OF.items():
        versions = yaml.load((folder / name).read_text(), Loader=yaml.CSafeLoader)["spec"]["versions"]
        (v1,) = [version for version in versions if version["name"] == "v1"]
        found[kind] = strict(v1["schema"]["openAPIV3Schema"]["properties"]["spec"])
    return found


def load(path: Path) -> dict[str, Any]:
    manifest: dict[str, Any] = yaml.safe_load(path.read_text())
    return manifest


def cluster_of(manifest: dict[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = manifest["spec"]
    return spec if manifest["kind"] == "RayCluster" else spec["rayClusterSpec"]


def errors(manifest: dict[str, Any], schemas: dict[str, Any]) -> list[str]:
    validator = jsonschema.Draft202012Validator(schemas[manifest["kind"]])
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(manifest["spec"])]


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_a_manifest_has_only_fields_that_kuberay_knows(path: Path, schemas: dict[str, Any]) -> None:
    manifest = load(path)
    assert manifest["apiVersion"] == "ray.io/v1"
    assert errors(manifest, schemas) == []


def test_an_unknown_field_and_a_wrong_value_are_found(schemas: dict[str, Any]) -> None:
    good = load(DEPLOY / "kuberay" / "raycluster.yaml")
    bad = copy.deepcopy(good)
    bad["spec"]["headGroupSpec"]["template"]["spec"]["containers"][0]["imagee"] = "x"
    assert any("imagee" in error for error in errors(bad, schemas))
    bad = copy.deepcopy(good)
    bad["spec"]["authOptions"]["mode"] = "open"
    assert any("open" in error for error in errors(bad, schemas))


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_clusters_are_closed_fault_tolerant_and_run_our_ray_as_an_ordinary_user(path: Path) -> None:
    cluster = cluster_of(load(path))
    dependencies = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text())["project"]["dependencies"]
    (ray,) = [line for line in dependencies if line.startswith("ray[")]
    assert cluster["rayVersion"] == ray.split("==")[1]
    assert cluster["authOptions"] == {"mode": "token"}
    assert cluster["gcsFaultToleranceOptions"]["backend"] == "redis"
    assert cluster["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    for group in [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]:
        pod = group["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        for container in pod["containers"]:
            assert {"secretRef": {"name": "sluice-object-store"}} in container["envFrom"]
            assert not [pair for pair in container.get("env", []) if pair["name"].startswith("AWS_")]


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_each_volume_that_is_mounted_exists_and_spill_goes_to_the_local_disk(path: Path) -> None:
    cluster = cluster_of(load(path))
    for group in [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]:
        pod = group["template"]["spec"]
        mounted = {
            mount["name"] for container in pod["containers"] for mount in container.get("volumeMounts", [])
        }
        assert mounted == {volume["name"] for volume in pod.get("volumes", [])}
    for group in cluster["workerGroupSpecs"]:
        (container,) = group["template"]["spec"]["containers"]
        paths = {mount["mountPath"] for mount in container["volumeMounts"]}
        assert group["rayStartParams"]["object-spilling-directory"] in paths
        assert json.loads(json.loads(group["rayStartParams"]["resources"]))


def test_data_workers_scale_from_zero_and_training_workers_are_fixed() -> None:
    (data,) = cluster_of(load(DEPLOY / "kuberay" / "rayjob-data.yaml"))["workerGroupSpecs"]
    assert (data["minReplicas"], data["replicas"]) == (0, 0) and data["maxReplicas"] > 1
    train = cluster_of(load(DEPLOY / "kuberay" / "rayjob-train.yaml"))
    (gpu,) = train["workerGroupSpecs"]
    assert gpu["minReplicas"] == gpu["replicas"] == gpu["maxReplicas"] > 0
    assert "enableInTreeAutoscaling" not in train
