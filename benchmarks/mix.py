"""How good the mixtures are that each model recommends, where the best mixture is known.

Five bigram sources over 64 symbols, a target of .40/.25/.20/.10/.05 of them, proxies of 50,000 tokens; regret
is the loss of the recommended mixture, with endless data, above that of the target's own shares. Means over
worlds.

    python benchmarks/mix.py [--worlds 8]
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.support.training.mix_world import TARGET, World, chosen

MODELS = ("log_linear", "quadratic", "gaussian_process", "best", "lightgbm")
UNIFORM = np.full(len(TARGET), 1 / len(TARGET))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--worlds", type=int, default=8)
    parser.add_argument("--models", nargs="+", default=MODELS)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")  # the Gaussian process tells of bounds it meets
    worlds = [World(seed) for seed in range(options.worlds)]
    uniform = float(np.mean([world.regret(UNIFORM) for world in worlds]))
    noise = float(np.mean([np.std([TARGET @ world.proxy(UNIFORM) for _ in range(20)]) for world in worlds]))
    print(json.dumps({"uniform": round(uniform, 4), "proxy_noise": round(noise, 4)}))
    swarms = [world.swarm(160) for world in worlds]
    for num_runs in (20, 40, 160):
        for model in options.models:
            if model == "lightgbm" and num_runs < 100:
                continue
            regrets = [
                world.regret(chosen(model, weights[:num_runs], losses[:num_runs]))
                for world, (weights, losses) in zip(worlds, swarms, strict=True)
            ]
            print(json.dumps({"runs": num_runs, "model": model, "regret": round(float(np.mean(regrets)), 4)}))


if __name__ == "__main__":
    main()
