"""A process that carries sleepers out as an ablation does its proxies, and prints the name of each as it
ends.

Started as `python -m tests.support.processes.mix_parent RECIPE FOLDER NUM_PARALLEL`."""

from __future__ import annotations

import sys
from contextlib import closing

from trainer.mix.ablation import AblationLaunch, ProxyProcess, run_all
from trainer.mix.proxies import AblationError, open_ablation
from trainer.options import load_train_recipe


def sleepers(folder: str, num: int) -> list[ProxyProcess]:
    """So many of them, named 0, 1, …"""
    return [
        ProxyProcess(
            name=str(n),
            module="tests.support.processes.mix_sleeper",
            arguments=(folder, str(n)),
            stdin=f"recipe {n}",
            threads=3,
        )
        for n in range(num)
    ]


if __name__ == "__main__":
    recipe, folder, num_parallel = sys.argv[1:]
    ablation = open_ablation(load_train_recipe(recipe))
    try:
        with closing(
            run_all(ablation, sleepers(folder, 4), AblationLaunch(num_parallel=int(num_parallel)))
        ) as ended:
            for name in ended:
                print(name, flush=True)
    except AblationError as error:
        sys.exit(f"failed: {error}")
