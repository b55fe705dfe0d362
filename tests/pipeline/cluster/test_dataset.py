"""Units of work as Ray Data Datasets: operators with the stages' names, nothing on the terminal, no limit but
ours."""

from __future__ import annotations

import logging
import re
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import ray
from ray.autoscaler.v2.sdk import get_cluster_status
from ray.data._internal.logging import SessionFileHandler, get_log_directory

from pipeline.cluster import dataset
from pipeline.cluster.dataset import DatasetStats, run_units
from pipeline.cluster.tasks import TaskResources
from pipeline.phases.progress import ProgressReporter
from pipeline.process import run as run_recipe
from pipeline.recipe.load import load
from tests.support.inputs.tiny_crawl import make_tiny_crawl
from tests.support.outputs.runs import ON_RAY, recipe, run, write_recipe
from tests.support.processes.ray_nodes import wait_until

pytestmark = pytest.mark.usefixtures("ray_with_this_module")


@pytest.fixture(scope="module")
def ray_with_this_module(small_ray: None) -> None:
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers do not know this module


def ray_data_log() -> Path:
    """Ray Data's log file. It stays that of the first Ray session of this process."""
    handlers = logging.getLogger("ray.data").handlers
    [handler] = [handler for handler in handlers if isinstance(handler, SessionFileHandler)]
    return Path(handler._path or Path(get_log_directory() or "") / "ray-data.log")


def double(job: int, item: int) -> int:
    return job * item


def test_the_operators_of_a_run_stand_in_ray_datas_own_log_under_the_names_of_their_stages(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    sources = make_tiny_crawl(tmp_path)
    before = ray_data_log().read_text() if ray_data_log().exists() else ""
    plain = recipe(str(tmp_path / "out"), sources, dedup={"engine": "ray_data"}, ray=ON_RAY)
    summary = run_recipe(load(write_recipe(tmp_path / "recipe.toml", plain)), ProgressReporter(quiet=True))
    plans = re.findall(r"Execution plan of Dataset .*", ray_data_log().read_text().removeprefix(before))
    assert all(plan.count("TaskPoolMapOperator") == 1 for plan in plans)
    operators = [re.findall(r"MapBatches\((.*?)\)", plan)[0] for plan in plans]
    assert operators[0] == "read->url->parse->language->quality->pii"
    assert operators[-4:] == ["tokenize", "cut_into_shards", "write_shards", "join_lineage_facts"]
    compared = operators[1:-4]
    assert compared[:2] == ["dedup.identity.rows", "dedup.identity"]
    assert {"dedup.candidates.rows", "dedup.candidates", "dedup.verdicts"} <= set(compared)
    assert [stats.operator for stats in summary.datasets] == operators
    assert all(f"MapBatches({stats.operator})" in "\n".join(stats.lines) for stats in summary.datasets)
    assert capfd.readouterr() == ("", "")


def test_both_engines_of_comparing_give_the_same_run_and_either_continues_the_other(tmp_path: Path) -> None:
    sources = make_tiny_crawl(tmp_path)
    summaries = [
        run(
            tmp_path / engine,
            recipe(str(tmp_path / engine / "out"), sources, dedup={"engine": engine}, ray=ON_RAY),
        )
        for engine in ("local", "ray_data")
    ]
    for same in ("content_fingerprint", "order_fingerprint", "dedup", "rejected"):
        assert summaries[0][same] == summaries[1][same], same
    indexes = [(tmp_path / engine / "out" / "index.json").read_bytes() for engine in ("local", "ray_data")]
    assert indexes[0] == indexes[1]
    continued = recipe(str(tmp_path / "local" / "out"), sources, dedup={"engine": "ray_data"}, ray=ON_RAY)
    assert run(tmp_path / "again", continued) == summaries[0]


def test_a_long_plan_goes_as_several_datasets_in_the_order_of_the_units(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dataset, "_FEWEST_ROWS", 3)
    monkeypatch.setattr(dataset, "_ROWS_PER_CPU", 0)
    ended: list[DatasetStats] = []
    work = TaskResources(max_in_flight=1)
    found = list(run_units(double, 2, range(7), work, operator="double", ended=ended.append))
    assert found == [(number, 2 * number) for number in range(7)]
    assert [stats.num_units for stats in ended] == [3, 3, 1]


def test_without_units_no_dataset_is_made() -> None:
    ended: list[DatasetStats] = []
    assert list(run_units(double, 2, [], TaskResources(), operator="double", ended=ended.append)) == []
    assert ended == []


def wait(seconds: float, item: int) -> int:
    time.sleep(seconds)
    return item


def test_no_limit_of_ray_datas_own_ends_a_slow_unit_and_its_settings_stay_the_users() -> None:
    context = ray.data.DataContext.get_current()
    context.execution_no_progress_timeout_s = 0.5
    try:
        assert list(run_units(wait, 3.0, [1], TaskResources(), operator="wait")) == [(1, 1)]
        assert context.execution_no_progress_timeout_s == 0.5
    finally:
        context.execution_no_progress_timeout_s = ray.data.DataContext().execution_no_progress_timeout_s


class OddError(Exception):
    """An exception that cannot be made again from its arguments."""

    def __init__(self, *, where: str) -> None:
        super().__init__(f"odd in {where}")


def fail_oddly(job: int, item: int) -> int:
    raise OddError(where="a unit")


def test_an_exception_that_no_other_process_can_make_again_arrives_as_text() -> None:
    with pytest.raises(RuntimeError, match="OddError: odd in a unit"):
        list(run_units(fail_oddly, 1, [1], TaskResources(), operator="odd"))


def begin(folder: str, item: int) -> int:
    Path(folder, str(item)).touch()
    time.sleep(0 if item == 0 else 60)
    return item


def test_leaving_early_ends_what_is_under_way(tmp_path: Path) -> None:
    units = run_units(begin, str(tmp_path), range(20), TaskResources(), operator="begin")
    assert next(units) == (0, 0)
    units.close()  # type: ignore[attr-defined]
    [(_, found)] = run_units(
        double, 2, [4], TaskResources(cpus=4.0), operator="double"
    )  # all processors are free
    assert found == 8
    assert len(list(tmp_path.iterdir())) < 20


def run_until_told(folder: str, item: int) -> int:
    (Path(folder) / str(item)).touch()
    while not (Path(folder) / "go").exists():
        time.sleep(0.02)
    return item


def waiting_units() -> int:
    """How many tasks wait for a processor, as Ray's autoscaler sees them."""
    demands = get_cluster_status(ray.get_runtime_context().gcs_address).resource_demands.ray_task_actor_demand
    return sum(shape.count for demand in demands for shape in demand.bundles_by_count)


def test_units_wait_in_rays_own_queue_where_a_freed_processor_and_an_autoscaler_find_them(
    tmp_path: Path,
) -> None:
    units = run_units(run_until_told, str(tmp_path), range(7), TaskResources(), operator="run_until_told")
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(lambda: sorted(item for item, _ in units))
        try:
            wait_until(
                lambda: len(list(tmp_path.iterdir())) == 4 and waiting_units() == 3, "4 units run, 3 wait"
            )
        finally:
            (tmp_path / "go").touch()
        assert found.result() == list(range(7))


def test_a_name_that_ray_cannot_carry_is_spelt_out() -> None:
    ended: list[DatasetStats] = []
    list(run_units(double, 2, [1], TaskResources(), operator="größe", ended=ended.append))
    assert any("MapBatches(gr\\xf6\\xdfe)" in line for line in ended[0].lines)


class CannotBeLoaded:
    """As a job whose module has a fault that only a worker meets."""

    def __reduce__(self):  # type: ignore[no-untyped-def]
        return fail_to_load, ()


def fail_to_load() -> None:
    raise NameError("name 'regexp' is not defined")


def test_what_a_worker_meets_as_it_loads_the_job_ends_the_run_as_it_is() -> None:
    with pytest.raises(Exception, match="name 'regexp' is not defined"):
        list(run_units(double, CannotBeLoaded(), [1], TaskResources(), operator="double"))  # type: ignore[arg-type]
