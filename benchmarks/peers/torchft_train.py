"""The peer: the debug model trained by Ray Train with torchft, as its own example is built, each worker a replica of
its own. A worker that dies is replaced; the others keep their process.

    PYTHON -m benchmarks.peers.torchft_train OUTPUT WORKERS

PYTHON has torchft (torchft-nightly). No step counts until all workers are there. OUTPUT/metrics.jsonl gets a line of
each committed step of each worker: step, rank, pid. It trains until it is ended by SIGTERM."""

from __future__ import annotations

import json
import os
import signal
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

SEQ_LEN: Final = 128
GLOBAL_BATCH: Final = 16
VOCAB_SIZE: Final = 4096


def main(output: str, workers: int) -> None:
    """Train until ended."""
    import ray
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer
    from ray.train.v2.torch.torchft_config import TorchftConfig

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    # On a busy machine four workers import torch for longer than the minute that is given by default.
    os.environ["RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"] = "600"
    # Two more than the workers: the controller and the lighthouse.
    ray.init(num_cpus=workers + 2)
    TorchTrainer(
        train_loop_per_worker=train,
        train_loop_config={"output": output, "workers": workers},
        scaling_config=ScalingConfig(num_workers=workers),
        torch_config=TorchftConfig(lighthouse_kwargs={"min_replicas": workers}, backend="gloo"),
        run_config=RunConfig(storage_path=f"{output}/ray", failure_config=FailureConfig(max_failures=-1)),
    ).fit()


def train(config: dict[str, Any]) -> None:
    """What each worker does."""
    import ray.train
    import torch
    from torch.nn.functional import cross_entropy
    from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

    from trainer.model.attention import document_masks, kernel_for
    from trainer.model.config.sizes import model_config
    from trainer.model.transformer import CausalLM, initial_weight
    from trainer.optim.optimizer import Optimizer as OurOptimizer
    from trainer.recipe_tables.optimizer import OptimizerTable

    torch.set_num_threads(1)
    rank = ray.train.get_context().get_world_rank()
    device = torch.device("cpu")
    shape = model_config("debug", VOCAB_SIZE)
    with torch.device("meta"):
        model = CausalLM(shape)
    model.to_empty(device=device)
    model.tie()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.copy_(initial_weight(name, weight.shape, shape, 0, weight))
    optimizer = OurOptimizer(dict(model.named_parameters()), OptimizerTable(), None).adamw

    def load(state: dict[str, Any]) -> None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])

    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=30)),
        min_replica_size=config["workers"],
        load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": optimizer.state_dict()},
        world_size=1,
        rank=0,
        replica_id=f"replica_{rank}",
        timeout=timedelta(seconds=60),
        # A quorum waits for whoever is started anew: the others may have to wait long.
        quorum_timeout=timedelta(minutes=10),
        init_sync=False,  # weights come from the seed
    )
    replica, stepping = DistributedDataParallel(manager, model), Optimizer(manager, optimizer)
    rows = GLOBAL_BATCH // config["workers"]
    positions_BT = torch.arange(SEQ_LEN).expand(rows, -1)
    mask = document_masks(
        torch.zeros(rows, SEQ_LEN, dtype=torch.int32), shape.windows, kernel_for(device, shape.head_dim)
    )
    with open(Path(config["output"]) / "metrics.jsonl", "a", buffering=1) as metrics:
        while True:
            step = manager.current_step()
            drawn = torch.Generator().manual_seed(step * config["workers"] + rank)
            tokens_BT = torch.randint(VOCAB_SIZE, (rows, SEQ_LEN + 1), generator=drawn)
            stepping.zero_grad()
            logits_BTV = replica(tokens_BT[:, :-1], positions_BT, mask)
            torch.autograd.backward(cross_entropy(logits_BTV.flatten(0, 1), tokens_BT[:, 1:].flatten()))
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            stepping.step()
            if manager.current_step() > step:
                row = {
                    "step": manager.current_step(),
                    "rank": rank,
                    "pid": os.getpid(),
                }
                metrics.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
