"""Whether the nodes of a cluster can hold the workers of a training run."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainer.processes.placement import Workers


def check_workers(workers: Workers) -> None:
    """ResourceError at once where the nodes that are there can never hold the workers of a training run."""
    from pipeline.cluster.capacity import Reservation
    from pipeline.cluster.session import check_cluster

    check_cluster(
        Reservation(
            what="training worker",
            keys="train.workers or [train.resources]",
            each=workers.each,
            num=workers.num,
            together=workers.together,
            per_node=workers.per_node,
        )
    )
