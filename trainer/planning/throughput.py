"""Operations, bubble, time of a step and utilisation. Operations are floating point; times in seconds."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, cast

from trainer.planning.communication import (
    LayerMessages,
    Traffic,
    all_to_all_path,
    layer_messages,
    stage_message,
)
from trainer.planning.counts import all_attention_flops, flops_per_token, layer_flops, num_sparse_layers
from trainer.planning.gpus import Machine, MeasuredDevice
from trainer.planning.layout import Part, PlannedLayout
from trainer.planning.memory import owned_parameters, sharded_bytes
from trainer.planning.products import (
    LayerProduct,
    LayerSeconds,
    layer_products,
    layer_seconds,
    output_product,
    product_seconds,
)
from trainer.planning.schedules import PassTimes, PipelinePlan, long_span


def flops_again(layout: PlannedLayout) -> float:
    """Operations that are done again for a token, in all layers: full, the layers' forward pass; selective,
    the products that `layer_seconds` names."""
    config = layout.config
    num_layers = {False: config.num_layers - num_sparse_layers(config), True: num_sparse_layers(config)}
    if layout.recompute == "none":
        return 0.0
    if layout.recompute == "full":
        products = sum(num * layer_flops(config, sparse=sparse) for sparse, num in num_layers.items())
        return (products + all_attention_flops(config, layout.seq_len)) / 3
    # A token's whole product: tensor peers have parts of the matrix, or of the tokens.
    return layout.mesh.tp * sum(
        num * product.again * product.flops
        for sparse, num in num_layers.items()
        if num
        for product in layer_products(layout.kernels, sparse=sparse)
    )


def compute_times(layout: PlannedLayout, part: Part, machine: Machine) -> PassTimes:
    """Seconds of one micro-batch, of `mean_tokens`, in some layers, computing alone. The gradients of a
    product with weights take as long as the product each; those of attention, which has no weights, are all
    of the input's gradient. Without balance the context rank with the end of a sequence has (2·cp − 1)/cp
    times the mean of attention.

    Weights' gradients are added up in `weight_bytes`: the product writes them, the sum reads both and writes
    one. That is bound by memory, however few tokens a micro-batch has, and makes small ones dear."""
    cp = layout.mesh.cp
    unequal = (2 * cp - 1) / cp if cp > 1 and layout.context.balance == "none" else 1.0
    forward = backward = weight = 0.0
    for num, sparse in ((part.num_dense, False), (part.num_sparse, True)):
        if num:
            layer = mean_layer(layout, part, machine, sparse=sparse)
            attention = layer.attention * unequal
            ahead = layer.products + attention + layer.elementwise
            again = {"none": 0.0, "selective": layer.again, "full": ahead}[layout.recompute]
            forward += num * ahead
            backward += num * (2 * ahead - layer.products + layer.more + again)
            weight += num * layer.products
    measured = measured_layers(layout, machine)
    if part.head and measured is not None:
        ends = measured.ends
        forward, backward, weight = forward + ends[0], backward + ends[1] / 2, weight + ends[1] / 2
    elif part.head:
        # All of it in forward (trainer.model.loss).
        output = output_product(layout)
        forward += 3 * product_seconds(output, layout.mean_tokens, layout.compute_bytes, machine)
        if machine.plan.efficiency is None:
            moved = 2 * layout.mean_tokens * output.outputs * (layout.compute_bytes + 8)
            forward += moved / machine.memory_bandwidth
    adding = sum(owned_parameters(layout, part)) * 2 * layout.weight_bytes
    if measured is not None:  # with gradients there already
        adding = 0.0
    elif not machine.plan.fused_gradients:
        adding *= 1 + layout.compute_bytes / layout.weight_bytes
    return PassTimes(forward=forward, input=backward, weight=weight + adding / machine.memory_bandwidth)


def mean_layer(layout: PlannedLayout, part: Part, machine: Machine, *, sparse: bool) -> LayerSeconds:
    """The mean of a part's layers with or without experts: of those with a window, and of the others."""
    share, kernels = part.num_windowed / max(1, part.num_layers), layout.kernels
    near, far = (
        layer_seconds(kernels, machine, sparse=sparse, window=window) if times else None
        for window, times in ((layout.config.window, share), (None, 1 - share))
    )
    if near is None or far is None:
        return cast(LayerSeconds, near or far)
    mixed = (share * one + (1 - share) * other for one, other in zip(near[:-1], far[:-1], strict=True))
    return LayerSeconds._make([*mixed, near.measured and far.measured])


def measured_layers(layout: PlannedLayout, machine: Machine) -> MeasuredDevice | None:
    """What was measured of this layout's layers and of what stands around them; None: not of every kind."""
    kernels = layout.kernels
    every = all(
        layer_seconds(kernels, machine, sparse=sparse, window=window).measured
        for sparse, window in kernels.kinds()
    )
    return machine.measured if every else None


def waiting_times(
    layout: PlannedLayout, part: Part, messages: Sequence[LayerMessages], machine: Machine
) -> PassTimes:
    """Seconds that one micro-batch in some layers waits for tensor, context and expert peers."""
    forward = backward = 0.0
    for sent in messages:
        seconds = sent.path.seconds(sent.size)
        kinds = zip((part.num_dense, part.num_sparse), sent.forward, sent.backward, strict=False)
        for sparse, (num, ahead, back) in enumerate(kinds):
            if num and ahead:
                beside = _seconds_beside(sent.axis, layout, part, machine, sparse=sparse > 0)
                forward += num * exposed_seconds(ahead * seconds, beside, machine)
                backward += num * exposed_seconds(back * seconds, 2 * beside, machine)
        forward += (part.embedding + part.head) * sent.forward[2] * seconds
        backward += (part.embedding + part.head) * sent.backward[2] * seconds
    return PassTimes(forward=forward, input=backward, weight=0.0)


def _seconds_beside(axis: str, layout: PlannedLayout, part: Part, machine: Machine, *, sparse: bool) -> float:
    """What a layer computes forward beside its messages: with `async_tp` its products, beside a ring of keys
    and values attention, and beside all-to-alls all that a dualpipev pairs with them (DeepSeek-V3,
    2412.19437, section 3.2.1, figure 4). All others are waited for."""
    layer = mean_layer(layout, part, machine, sparse=sparse)
    if axis == "tp":
        return layer.products if layout.async_tp else 0.0
    if axis == "cp":
        return layer.attention if layout.context.method == "ring" else 0.0
    return layer.forward if layout.pipeline.schedule == "dualpipev" else 0.0


def exposed_seconds(sending: float, computing: float, machine: Machine) -> float:
    """What of communication shows beside computing that takes so long: `plan.overlap` of it is hidden, as far
    as there is computing. (The kernels of a collective take processors and memory bandwidth from those beside
    it.)"""
    return sending - machine.plan.overlap * min(sending, computing)


EVEN: Final = 1e-3
"""Layouts whose steps differ by less are as fast as each other: a plan is not that exact."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """Estimate of a step. `*_seconds` are of one GPU; `exposed_seconds` is communication that computing does
    not hide, `update_seconds` the optimizer's pass; `bubble` and `imbalance` are shares of the whole pipeline
    time: ranks idle at the beginning and the end of a step, and because one has more work than the mean."""

    step_seconds: float
    compute_seconds: float
    communication_seconds: float
    exposed_seconds: float
    update_seconds: float
    bubble: float
    imbalance: float
    mfu: float
    hfu: float
    tokens_per_second: float
    tokens_per_second_per_gpu: float

    @property
    def bubble_seconds(self) -> float:
        """What ranks are idle of a step."""
        return self.step_seconds - self.compute_seconds - self.exposed_seconds - self.update_seconds


def throughput(
    layout: PlannedLayout,
    sent: Sequence[Traffic],
    machine: Machine,
    known: tuple[MicroBatchTime, float] | None = None,
) -> Throughput:
    """The time of a step and what share of the peak it makes of the GPUs. `known`: the times of a micro-batch
    and of the pipeline, where a search has them.

    Kernels take what `layer_seconds` says. Tensor, context and expert peers wait for each other; gathering
    and reducing over dp_shard runs beside forward and backward, the all-reduce over replicas beside the last
    backward, which hide what `exposed_seconds` leaves. A pipeline takes as long as its schedule's action
    table takes when it is executed with these times, messages between stages on their way included. Then the
    optimizer passes over its states. The loading of data is not counted."""
    passes = known[0] if known else pass_times(layout, machine)
    pipeline = known[1] if known else pipeline_seconds(passes, layout, machine)
    mesh, parts = layout.mesh, layout.num_micro_batches
    exposed = synchronising_seconds(layout, sent, passes, machine)
    update = update_seconds(layout, machine)
    step = pipeline + exposed + update
    computing = parts * passes.compute / mesh.pp
    waiting = parts * passes.waiting / mesh.pp
    uneven = parts * passes.fullest.total - computing - waiting if mesh.pp > 1 else 0.0
    flops = flops_per_token(layout.config, layout.seq_len)
    per_gpu = layout.global_batch * layout.seq_len / step / mesh.num_workers
    utilised = flops * per_gpu / machine.gpu.peak_flops
    return Throughput(
        step_seconds=step,
        compute_seconds=computing,
        communication_seconds=sum(kind.seconds for kind in sent),
        exposed_seconds=waiting + exposed,
        update_seconds=update,
        bubble=max(1 - (computing + waiting + uneven) / pipeline, 0.0),
        imbalance=uneven / pipeline,
        mfu=utilised,
        hfu=utilised * (flops + flops_again(layout)) / flops,
        tokens_per_second=per_gpu * mesh.num_workers,
        tokens_per_second_per_gpu=per_gpu,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatchTime:
    """Seconds of one micro-batch: in the whole model, computing and waiting, and on the fullest rank;
    `shares`: what part of it each stage takes, `rank_shares` each rank."""

    whole: PassTimes
    fullest: PassTimes
    shares: tuple[float, ...]
    rank_shares: tuple[float, ...]
    compute: float
    waiting: float


def pass_times(layout: PlannedLayout, machine: Machine) -> MicroBatchTime:
    """The times of a micro-batch, from those of the few kinds of stages that there are."""
    split = layout.split
    computing = [compute_times(layout, part, machine) for part in split.kinds]
    messages = list(layer_messages(layout, machine))
    waiting = [waiting_times(layout, part, messages, machine) for part in split.kinds]
    both = [one.plus(other) for one, other in zip(computing, waiting, strict=True)]
    counts, none = split.counts, PassTimes(forward=0.0, input=0.0, weight=0.0)
    whole = none
    for num, passes in zip(counts, both, strict=True):
        whole = whole.plus(passes, num)
    kind_shares = [kind.total / whole.total for kind in both]
    rank_shares = [0.0] * layout.mesh.pp
    for kind, rank in zip(split.kind_of_stage, split.rank_of_stage, strict=True):
        rank_shares[rank] += kind_shares[kind]
    largest = max(rank_shares)
    return MicroBatchTime(
        whole=whole,
        fullest=none.plus(whole, largest),
        shares=tuple(kind_shares[kind] for kind in split.kind_of_stage),
        rank_shares=tuple(rank_shares),
        compute=sum(num * kind.total for num, kind in zip(counts, computing, strict=True)),
        waiting=sum(num * kind.total for num, kind in zip(counts, waiting, strict=True)),
    )


def pipeline_seconds(times: MicroBatchTime, layout: PlannedLayout, machine: Machine) -> float:
    """Seconds from the first forward to the last backward pass of a step, by executing the schedule's action
    table."""
    num, pp = layout.num_micro_batches, layout.mesh.pp
    if pp == 1:
        return num * times.whole.total
    path, size = stage_message(layout, machine)
    whole = dataclasses.replace(times.whole, send=path.seconds(size))
    table = PipelinePlan(layout.pipeline.schedule, pp, layout.pipeline.num_virtual, num)
    return long_span(table, whole, times.shares)


def least_pipeline_seconds(times: MicroBatchTime, layout: PlannedLayout, machine: Machine) -> float:
    """What `pipeline_seconds` is at least, without a simulation.

    Rank r begins when the first micro-batch has passed the stages before its own, and then has all its work.
    Where both gradients are computed at once its work ends with the backward pass of its first stage, which
    the stages before it still have to do: with even stages that is the closed form (p − 1)/(v·m)."""
    num, pp, whole = layout.num_micro_batches, layout.mesh.pp, times.whole
    if pp == 1:
        return num * whole.total
    path, size = stage_message(layout, machine)
    send, total = path.seconds(size), whole.total
    passes, messages = (whole.forward, 1) if layout.pipeline.splits_backward else (total, 2)
    least, before = 0.0, 0.0
    for rank in range(pp):
        least = max(least, before + num * total * times.rank_shares[rank])
        before += passes * times.shares[rank] + messages * send
    return least


def synchronising_seconds(
    layout: PlannedLayout, sent: Sequence[Traffic], times: MicroBatchTime, machine: Machine
) -> float:
    """Seconds of gathering parameters and reducing gradients that no computing hides."""
    forward, backward = times.fullest.forward, times.fullest.input + times.fullest.weight
    rounds = 1 if layout.synchronises_once else layout.num_micro_batches
    gather, reduce = (_seconds(sent, what) / rounds for what in ("all-gather", "reduce-scatter"))
    gather_forward = gather / 2 if layout.zero == 3 and not layout.synchronises_once else gather
    exposed = exposed_seconds(gather_forward, forward, machine)
    exposed += exposed_seconds(gather - gather_forward + reduce, backward, machine)
    return rounds * exposed + exposed_seconds(_seconds(sent, "all-reduce"), backward, machine)


def update_seconds(layout: PlannedLayout, machine: Machine) -> float:
    """Seconds of the optimizer on the fullest rank. AdamW is bound by memory: it reads weight, gradient and
    both moments and writes all but the gradient, each rank those that it shards; Muon's pass over its matrices
    moves about as much, beside `orthogonalising_seconds`."""
    more = orthogonalising_seconds(layout, machine) if layout.muon_rounds else 0.0
    if (measured := measured_layers(layout, machine)) is not None:
        part = layout.largest
        kinds = ((part.num_dense, False), (part.num_sparse, True))
        whole = sum(num * mean_layer(layout, part, machine, sparse=of).update for num, of in kinds if num)
        return more + (whole + (part.embedding or part.head) * measured.update) / layout.shards.split
    weights = sharded_bytes(owned_parameters(layout, layout.largest), layout.weight_bytes, layout.shards)
    return more + 7 * weights / machine.memory_bandwidth


def orthogonalising_seconds(layout: PlannedLayout, machine: Machine) -> float:
    """Seconds in which the ranks of a stage make its momenta orthogonal, each its share of the matrices but at
    least the largest one, and of their way to their owners and back, in two bytes a number."""
    part, whole = layout.largest, layout.kernels._replace(tp=1, ep=1)
    num_ranks = layout.mesh.num_workers // layout.mesh.pp
    total, largest = 0.0, 0.0
    for num_layers, sparse in ((part.num_dense, False), (part.num_sparse, True)):
        for product in layer_products(whole, sparse=sparse) if num_layers else ():
            if product.name == "router":
                continue
            short, long = sorted((product.inputs, product.outputs))
            gram, square, last = (
                LayerProduct(product.name, short, *sides, 1, 0, False)
                for sides in ((long, short), (short, short), (short, long))
            )
            seconds = layout.muon_rounds * sum(
                product_seconds(each, 1, 2, machine) for each in (gram, square, last)
            )
            total += num_layers * product.times * seconds
            largest = max(largest, seconds)
    in_layers = part._replace(embedding=0, head=0)
    pieces = sharded_bytes(owned_parameters(layout, in_layers), 2, layout.shards)
    path = all_to_all_path(num_ranks, machine, layout.mesh.num_workers)
    sent = pieces / max(1, layout.mesh.dp * layout.mesh.cp // layout.shards.split) + pieces
    away = path.seconds(sent, 2) if num_ranks > 1 else 0.0
    return max(total / num_ranks, largest) + away


def _seconds(sent: Sequence[Traffic], what: str) -> float:
    return sum(kind.seconds for kind in sent if kind.what.startswith(what) and kind.axis.startswith("dp"))
