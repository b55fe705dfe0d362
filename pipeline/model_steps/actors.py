"""The actors of a recipe's models: how many, and what each reserves of its node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from lineage.recipe import IN_PROCESS, RecipeError
from pipeline.cluster.tasks import ActorResources, TaskResources, check_actors, num_cpus, num_gpus
from pipeline.recipe.tables import RayTable
from stages.chain import build_chain
from stages.steps.catalogue import StepTables
from stages.steps.model_step import ModelStep


def models_of(steps: Sequence[Sequence[str]], tables: StepTables) -> tuple[ModelStep, ...]:
    """The models of all sources, each once."""
    found = {model.name: model for of_source in steps for model in build_chain(of_source, tables).models}
    return tuple(found.values())


def check_can_work(models: Sequence[ModelStep], ray: RayTable) -> None:
    """RecipeError where there are models, which work on actors of Ray's, and no Ray is wanted."""
    if models and ray.in_process:
        named = " and ".join(f"{model.name} ({model.table})" for model in models)
        raise RecipeError(
            f'ray.address = "{IN_PROCESS}" carries units out in this process, and {named} works on actors of'
            f" Ray's:"
            ' set ray.address = "local" (fastText classifiers and plain functions need no actors)',
            "ray.address",
        )


def plan_actors(
    models: Sequence[ModelStep], ray: RayTable, say: Callable[[str], None]
) -> dict[str, ActorResources]:
    """The actors of each model, by its name. ResourceError where the cluster can never hold the fewest of
    them.

    A model that asks for GPUs where there are none runs on processors, and where no processor would be left
    for reading the actors reserve none; both is said."""
    if not models:
        return {}
    any_gpu = ray.grows or num_gpus() > 0
    found: dict[str, ActorResources] = {}
    for model in models:
        pool = model.pool
        gpus = pool.num_gpus if any_gpu else 0.0
        if pool.num_gpus and not gpus:
            say(f"{model.name}: no node has a GPU, so it runs on processors.")
        cpus = (0.0 if gpus else 1.0) if pool.num_cpus is None else pool.num_cpus
        fewest, most = pool.actors
        actors = ActorResources(
            stage=model.name,
            table=model.table,
            cpus=cpus,
            gpus=gpus,
            resources=pool.resources,
            fewest=fewest,
            most=most,
        )
        check_actors(actors, grows=ray.grows)
        found[model.name] = actors
    reserved = sum(actors.cpus * actors.fewest for actors in found.values())
    if not ray.grows and reserved + TaskResources.of(ray, "read").cpus > num_cpus():
        say(f"{', '.join(found)}: shares the {num_cpus()} processors with reading, which needs one of them.")
        return {name: replace(actors, cpus=0.0) for name, actors in found.items()}
    return found
