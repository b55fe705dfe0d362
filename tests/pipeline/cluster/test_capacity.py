"""Whether a cluster can hold what a recipe asks for, and what is said where it cannot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lineage.recipe import RecipeError, parse_table
from pipeline.cluster.capacity import Nodes, Reservation, ResourceError, check_capacity
from pipeline.cluster.tasks import TaskResources
from pipeline.recipe.tables import RayTable
from tests.support.outputs.runs import ON_RAY, recipe, run

HEAD = Nodes(resources={"CPU": 4.0, "memory": 16.0 * 2**30})
DATA = Nodes(resources={"CPU": 16.0, "memory": 64.0 * 2**30, "data": 1.0}, num=3)
GPU = Nodes(resources={"CPU": 64.0, "GPU": 8.0, "gpu_node": 1.0}, num=2)


def wanted(each: dict[str, float], **more: Any) -> Reservation:
    return Reservation(what="unit", keys="ray.unit_cpus", each=each, **more)


@pytest.mark.parametrize(
    "fits",
    [
        wanted({"CPU": 16.0}),
        wanted({"CPU": 1.0, "data": 0.001}, num=48),
        wanted({"GPU": 1.0}, num=16, together=8),
        wanted({"GPU": 1.0}, num=2, per_node=1),
        wanted({}),
    ],
)
def test_what_fits_is_let_through(fits: Reservation) -> None:
    check_capacity(fits, [HEAD, DATA, GPU])


@pytest.mark.parametrize(
    ("too_much", "said"),
    [
        (wanted({"CPU": 1000.0}), "no node has CPU 1000, which a unit needs; the cluster has CPU 180 in 6 nodes,"
         " at most CPU 64 in one. Change ray.unit_cpus"),
        (wanted({"CPU": 1.0, "dta": 0.001}), "no node has CPU 1, dta 0.001, which a unit needs"),
        (wanted({"CPU": 1.0, "memory": 2.0**40}), "no node has CPU 1, memory 1.02e+03 GiB"),
        (wanted({"GPU": 1.0}, num=16, together=16), "no node has GPU 16, which 16 units on one node need"),
        (wanted({"GPU": 1.0}, num=17), "there is room for 16 units of GPU 1, and 17 are wanted; the cluster has GPU"),
        (wanted({"GPU": 3.0}, num=6, together=2), "there is room for 4 units of GPU 3, and 6 are wanted"),
        (wanted({"GPU": 1.0}, num=3, per_node=1), "there is room for 2 units"),
    ],
)  # fmt: skip
def test_what_can_never_fit_is_refused_with_what_there_is(too_much: Reservation, said: str) -> None:
    with pytest.raises(ResourceError) as error:
        check_capacity(too_much, [HEAD, DATA, GPU])
    assert said in str(error.value)


def test_on_a_cluster_without_nodes_nothing_fits() -> None:
    with pytest.raises(ResourceError, match="the cluster has no nodes"):
        check_capacity(wanted({"CPU": 1.0}), [])


@given(
    st.lists(st.integers(0, 12), min_size=1, max_size=5),
    st.integers(1, 20),
    st.integers(1, 4),
    st.integers(1, 3),
)
def test_it_fits_exactly_where_groups_can_be_dealt_to_nodes(
    cpus: list[int], groups: int, tp: int, each: int
) -> None:
    ask = wanted({"CPU": float(each)}, num=groups * tp, together=tp)
    cluster = [Nodes(resources={"CPU": float(cpu)}) for cpu in cpus]
    for cpu in cpus:
        while groups and cpu >= each * tp:
            cpu, groups = cpu - each * tp, groups - 1  # noqa: PLW2901 - dealt out
    if groups:
        with pytest.raises(ResourceError):
            check_capacity(ask, cluster)
    else:
        check_capacity(ask, cluster)


def test_the_units_of_a_stage_reserve_what_ray_says_or_what_the_stage_says() -> None:
    table = parse_table(
        RayTable,
        {
            "unit_cpus": 2.0,
            "unit_resource": "data",
            "retries": 5,
            "max_in_flight": 64,
            "stages": {"write": {"memory": 1 << 30, "resource": "", "max_in_flight": 8}},
        },
    )
    read, write = TaskResources.of(table, "read"), TaskResources.of(table, "write")
    assert (read.reserved, read.max_in_flight, read.retries) == ({"CPU": 2.0, "data": 0.001}, 64, 5)
    assert (write.reserved, write.max_in_flight) == ({"CPU": 2.0, "memory": float(1 << 30)}, 8)
    assert write.options == {"num_cpus": 2.0, "memory": 1 << 30}
    assert (read.keys, write.keys) == (
        ("ray.unit_cpus", "ray.unit_resource"),
        ("ray.unit_cpus", "ray.stages.write.memory"),
    )


@pytest.mark.parametrize(
    ("stages", "said"),
    [
        ({"write": {"cpus": 99.0}}, r"no node has CPU 99, which a unit of kind write needs; .*"
         r"Change ray\.stages\.write\.cpus, or add such nodes"),
        ({"read": {"gpus": 0.5}}, r"no node has CPU 1, GPU 0\.5, which a unit of kind read needs; .*"
         r"Change ray\.unit_cpus or ray\.stages\.read\.gpus, or"),
        ({"join": {"resource": "dta"}}, r"no node has CPU 1, dta 0\.001, .*"
         r"Change ray\.unit_cpus or ray\.stages\.join\.resource, or"),
    ],
)  # fmt: skip
def test_what_a_stage_asks_for_and_no_node_has_ends_the_run_before_it_begins(
    stages: dict[str, Any], said: str, tmp_path: Path, small_ray: None
) -> None:
    (tmp_path / "web.jsonl").write_text('{"text": "one"}\n')
    plain = recipe(
        str(tmp_path / "out"), {"web": (str(tmp_path / "web.jsonl"),)}, ray=ON_RAY | {"stages": stages}
    )
    with pytest.raises(ResourceError, match=said):
        run(tmp_path, plain)
    assert not (tmp_path / "out" / "documents").exists()


def test_a_stage_that_there_is_not_is_refused() -> None:
    with pytest.raises(RecipeError, match=r"ray\.stages\.raed: expected one of read, compare, tokenize, cut"):
        parse_table(RayTable, {"stages": {"raed": {"cpus": 2.0}}})
