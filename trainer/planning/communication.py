"""What one GPU sends in a step, over which link, and for how long: volumes in bytes, times in seconds.

Ranks are laid out as (pp, dp_replicate, dp_shard, cp, tp), tensor peers next to each other, nodes filled in
that order; experts as (pp, dp_replicate, peers with equal experts, ep), expert peers next to each other. A
collective takes its bytes over the slowest link on its way. All-gathers and reduce-scatters over W GPUs are
rings of W − 1 hops, each with the latency of its link, so that small messages are far from a link's rate:
NCCL has trees, whose hops are log2(W), for all-reduces alone (PAT, 2506.20252, section 1)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, Literal, NamedTuple

from trainer.model.config.description import Experts
from trainer.planning.gpus import Machine
from trainer.planning.layout import PlannedLayout
from trainer.planning.memory import owned_parameters

Link = Literal["intra", "inter", "far"]
"""Within a node, between near nodes (of one pod), between far ones."""

_GIGABIT: Final = 1e9 / 8
_LINKS: Final[tuple[Link, Link, Link]] = ("intra", "inter", "far")


def ring_bytes(size: float, num_gpus: int) -> float:
    """Bytes that a GPU sends in a ring all-gather or reduce-scatter of `size` bytes in all: (W−1)/W·M
    (Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms", section 3). An all-to-all of `size`
    bytes a GPU sends as many."""
    return size * (num_gpus - 1) / num_gpus


def all_reduce_bytes(size: float, num_gpus: int) -> float:
    """A reduce-scatter and an all-gather: 2·(W−1)/W·M (the same source)."""
    return 2 * ring_bytes(size, num_gpus)


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """The way between the members of a group: its slowest link, gigabits a second and GPU over it, one way,
    and the seconds of a collective's hops."""

    link: Link
    gbps: float
    latency: float

    def seconds(self, num_bytes: float, num_collectives: float = 1) -> float:
        """Time on the wire, hidden or not."""
        return num_bytes / (self.gbps * _GIGABIT) + num_collectives * self.latency


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """One kind of communication of a GPU in a step. `gbps`: gigabits a second and GPU, one way;
    `latency_seconds`: of all its collectives; `seconds`: on the wire, hidden or not."""

    axis: str
    what: str
    num_gpus: int
    link: Link
    gbps: float
    num_bytes: float
    num_collectives: float
    latency_seconds: float
    seconds: float


def stays_within(reach: int, size: int, num_workers: int) -> bool:
    """Whether none of the groups of `reach` consecutive ranks, into which `num_workers` are cut, lies on two
    of the nodes (or pods) of `size` GPUs."""
    return num_workers <= size or size % reach == 0


def in_domain(reach: int, machine: Machine, num_workers: int) -> bool:
    """Whether each group of `reach` consecutive ranks has the fast link to itself. A domain of several nodes,
    a rack, is filled with as many groups of whole nodes as it has room for: groups of 64 leave 8 of 72 GPUs
    idle, or to others."""
    if stays_within(reach, machine.gpu_domain, num_workers):
        return True
    of_nodes = math.lcm(reach, machine.gpus_per_node)
    return machine.gpus_per_node < machine.gpu_domain and of_nodes <= machine.gpu_domain


def _fewest_members(stride: int, reach: int, size: int) -> int:
    """Members of a group, `stride` apart over `reach` ranks, that lie on the node (or pod) with the fewest of
    them, where groups lie on two or more."""
    piece = size if reach > size else math.gcd(reach, size)
    return max(1, piece // stride)


def link_of(stride: int, num_gpus: int, machine: Machine, num_workers: int) -> tuple[Link, float]:
    """The slowest link of the slowest ring over `num_gpus` GPUs that lie `stride` apart among `num_workers`,
    and its bandwidth in gigabits a second and GPU: out of a node the ring crosses with `rails` of its
    members' adapters there, and between pods with those of all members of a pod."""
    reach = stride * num_gpus
    if in_domain(reach, machine, num_workers):
        return "intra", machine.intra_gbps
    members = min(machine.plan.rails, _fewest_members(stride, reach, machine.gpu_domain))
    between = min(machine.intra_gbps, machine.inter_gbps * members)
    if stays_within(reach, machine.plan.near_gpus, num_workers):
        return "inter", between
    return "far", min(between, machine.plan.far_gbps * _fewest_members(stride, reach, machine.plan.near_gpus))


def hop_latency(link: Link, machine: Machine) -> float:
    """Seconds of one hop."""
    return machine.plan.latency_us[_LINKS.index(link)] * 1e-6


def ring_path(stride: int, num_gpus: int, machine: Machine, num_workers: int) -> Path:
    """The way of a ring of `num_gpus` − 1 hops, most of them between members of a node where it has
    several."""
    link, gbps = link_of(stride, num_gpus, machine, num_workers)
    members = 1 if link == "intra" else _fewest_members(stride, stride * num_gpus, machine.gpu_domain)
    hop = (hop_latency(link, machine) + (members - 1) * hop_latency("intra", machine)) / members
    return Path(link=link, gbps=gbps, latency=max(0, num_gpus - 1) * hop)


def tree_path(stride: int, num_gpus: int, machine: Machine, num_workers: int) -> Path:
    """The way of an all-reduce, which NCCL does as a tree, up and down, where a ring's hops would take
    longer."""
    ring = ring_path(stride, num_gpus, machine, num_workers)
    tree = 2 * _hops(num_gpus) * hop_latency(ring.link, machine)
    return replace(ring, latency=min(2 * ring.latency, tree))


def pair_path(stride: int, num_gpus: int, machine: Machine, num_workers: int) -> Path:
    """The way between neighbours that lie `stride` apart, `num_gpus` in a row, each GPU over its own adapter;
    the mean over the row, of which some neighbours share a node or a pod. All GPUs of `stride` cross to the
    next pod at once."""
    link, _ = link_of(stride, num_gpus, machine, num_workers)
    far = min(1.0, stride / machine.plan.near_gpus) if link == "far" else 0.0
    near = min(1.0, stride / machine.gpu_domain) - far if link != "intra" else 0.0
    crossing = min(machine.inter_gbps, machine.plan.far_gbps * max(1.0, machine.plan.near_gpus / stride))
    shares: dict[Link, tuple[float, float]] = {
        "intra": (1 - near - far, machine.intra_gbps),
        "inter": (near, machine.inter_gbps),
        "far": (far, crossing),
    }
    return Path(
        link=link,
        gbps=1 / sum(share / gbps for share, gbps in shares.values()),
        latency=sum(share * hop_latency(name, machine) for name, (share, _) in shares.items()),
    )


def all_to_all_path(
    num_gpus: int, machine: Machine, num_workers: int, experts: Experts | None = None
) -> Path:
    """The way of an all-to-all over `num_gpus` GPUs next to each other, where every GPU sends each other one
    an equal share: what leaves the node goes over its own adapter, however many members the node has. Where
    `experts` have groups that lie in nodes, a token goes to each node of its groups once, and there to its
    experts over the fast link (DeepSeek-V3, 2412.19437, section 3.2.2)."""
    link, _ = link_of(1, num_gpus, machine, num_workers)
    node, pod = machine.gpu_domain, machine.plan.near_gpus
    in_node = num_gpus if in_domain(num_gpus, machine, num_workers) else _fewest_members(1, num_gpus, node)
    in_pod = num_gpus if stays_within(num_gpus, pod, num_workers) else _fewest_members(1, num_gpus, pod)
    to_node, to_near, to_far = float(in_node - 1), max(0, in_pod - in_node), max(0, num_gpus - in_pod)
    once = 1.0
    if experts is not None and experts.num_groups > 1 and in_node * experts.num_groups >= num_gpus:
        once = min(1.0, experts.top_groups / experts.top_k)
        to_node += (1 - once) * (to_near + to_far)
    out, far = once * (to_near + to_far), once * to_far
    slowest = max(to_node / machine.intra_gbps, out / machine.inter_gbps, far / machine.plan.far_gbps)
    gbps = (num_gpus - 1) / slowest if slowest else machine.intra_gbps
    return Path(link=link, gbps=gbps, latency=_hops(num_gpus) * hop_latency(link, machine))


def _hops(num_gpus: int) -> int:
    return math.ceil(math.log2(num_gpus)) if num_gpus > 1 else 0


class LayerMessages(NamedTuple):
    """What the peers of an axis send each other for one micro-batch, in collectives of `size` bytes: so many
    in forward and in backward, each for a layer without experts, for one with, and for embedding or head."""

    axis: str
    what: str
    num_gpus: int
    path: Path
    size: float
    forward: tuple[float, float, float]
    backward: tuple[float, float, float]


def layer_messages(layout: PlannedLayout, machine: Machine) -> Iterator[LayerMessages]:
    """Those of the axes whose peers share a layer's work.

    Tensor parallel with sequence parallelism: in each layer two all-gathers and two reduce-scatters of the
    stream forward (2205.05198, section 4.2.2), and what `tensor_rounds` says backward; and one each way for
    embedding and head. Layers with experts gather and scatter for attention alone: a peer's share of the
    tokens goes to the experts.

    Keys and values are gathered in forward and backward, and their gradients reduced (Llama 3, 2407.21783,
    section 3.3.2: all-gather based context parallelism). A ring sends as much, in steps.

    A token's copy goes to each of its experts and back, forward and backward (GShard, 2006.16668, section
    3.2), forward again where the layer is computed again."""
    config, mesh, num, stream = layout.config, layout.mesh, layout.mesh.num_workers, stream_size(layout)
    if mesh.tp > 1:
        path, size = ring_path(1, mesh.tp, machine, num), ring_bytes(stream, mesh.tp)
        again, what = layout.tensor_rounds - 1, "layers' all-gathers and reduce-scatters"
        backward = (4 * again, 2 * again, 1.0)
        yield LayerMessages("tp", what, mesh.tp, path, size, (4.0, 2.0, 1.0), backward)
    if mesh.cp > 1:
        pairs = config.num_kv_heads * (config.head_dim + config.value_dim) / mesh.tp
        size = ring_bytes(layout.mean_tokens * mesh.cp * pairs * layout.compute_bytes, mesh.cp)
        path, steps = ring_path(mesh.tp, mesh.cp, machine, num), 1
        if layout.context.method == "ring":
            path, steps = pair_path(mesh.tp, mesh.cp, machine, num), mesh.cp - 1
        forward, backward = (steps, steps, 0.0), (2 * steps, 2 * steps, 0.0)
        yield LayerMessages("cp", "keys and values", mesh.cp, path, size / steps, forward, backward)
    if config.experts and mesh.ep > 1:
        path = all_to_all_path(mesh.ep, machine, num, config.experts)
        # A tensor peer has its share of the stream, and of that `top_k` copies.
        size = ring_bytes(stream / mesh.tp * config.experts.top_k, mesh.ep)
        what = "all-to-all of tokens to experts and back"
        backward = (0.0, 2.0 if layout.recompute == "none" else 4.0, 0.0)
        yield LayerMessages("ep", what, mesh.ep, path, size, (0.0, 2.0, 0.0), backward)


def stage_message(layout: PlannedLayout, machine: Machine) -> tuple[Path, float]:
    """The way and the bytes of a micro-batch's activations to the next stage, or of gradients to the one
    before (Narayanan et al., 2104.04473, section 3.2); tensor peers send a share each."""
    mesh = layout.mesh
    path = pair_path(mesh.tp * mesh.cp * mesh.dp, mesh.pp, machine, mesh.num_workers)
    return path, stream_size(layout) / mesh.tp


def traffic(layout: PlannedLayout, machine: Machine) -> tuple[Traffic, ...]:
    """Everything that a GPU sends in a step, of each kind as much as on the pipeline rank with the most;
    axes of size 1 send nothing and are left out. Both embedding and head count as on that rank."""
    mesh, parts = layout.mesh, layout.num_micro_batches
    sent = []
    for axis, what, num_gpus, path, size, forward, backward in layer_messages(layout, machine):
        dense, sparse, end = (ahead + back for ahead, back in zip(forward, backward, strict=True))
        num = max(part.num_dense * dense + part.num_sparse * sparse for part in layout.ranks) + 2 * end
        sent.append(_sent(axis, what, path, num_gpus, size=size, num=parts * num))
    sent += weight_traffic(layout, machine)
    path, size = stage_message(layout, machine)
    num = 2 * layout.pipeline.num_virtual * parts
    sent.append(_sent("pp", "activations and their gradients", path, mesh.pp, size=size, num=num))
    return tuple(each for each in sent if each.num_gpus > 1 and each.num_bytes > 0)


def weight_traffic(layout: PlannedLayout, machine: Machine) -> Iterator[Traffic]:
    """Weights and gradients among the ranks that share them, of each kind of `ParameterCounts` on a ring of
    its own: gathers of weights in `compute_bytes`, reduce-scatters of their gradients in `weight_bytes`, then
    the all-reduce of the shards' gradients over replicas, once a step. All in pieces, of a layer or a
    vocabulary matrix; router and shared experts of a layer are gathered one after the other
    (trainer.parallel.mesh, `_shard_experts`)."""
    mesh, shards, experts = layout.mesh, layout.shards, layout.config.experts
    num_replicas, (gathers, reductions) = mesh.dp * mesh.cp // shards.split, rounds(layout)
    owned = owned_parameters(layout, layout.largest)
    # What is gathered, its gradients, parameters on a GPU, over how many GPUs and how far apart, pieces.
    pieces = max(part.num_layers for part in layout.ranks) + 2
    kinds = [("parameters", "gradients", owned.split, shards.split, mesh.tp, pieces)]
    if experts is not None:
        sparse = max(part.num_sparse for part in layout.ranks)
        names, gradients, pieces = "routers", "routers' gradients", sparse
        if experts.num_shared:
            names, gradients = "routers and shared experts", "routers' and shared experts' gradients"
            pieces = 2 * sparse
        kinds += [
            (names, gradients, owned.whole, shards.whole, 1, pieces),
            ("experts", "experts' gradients", owned.experts, shards.experts, mesh.ep, sparse),
        ]
    for name, gradients, num, num_shards, stride, pieces in kinds:
        path = ring_path(stride, num_shards, machine, mesh.num_workers)
        replicas = tree_path(stride * num_shards, num_replicas, machine, mesh.num_workers)
        weights, made = layout.compute_bytes * num, layout.weight_bytes * num
        gathered, reduced = ring_bytes(weights, num_shards), ring_bytes(made, num_shards)
        replicated = all_reduce_bytes(made / num_shards, num_replicas)
        yield from (
            _sent(axis, what, way, num_gpus, size=size / pieces, num=times * pieces)
            for axis, what, way, num_gpus, size, times in (
                ("dp_shard", f"all-gather of {name}", path, num_shards, gathered, gathers),
                ("dp_shard", f"reduce-scatter of {gradients}", path, num_shards, reduced, reductions),
                ("dp_replicate", f"all-reduce of {gradients}", replicas, num_replicas, replicated, 1),
            )
        )


def _sent(axis: str, what: str, path: Path, num_gpus: int, *, size: float, num: float) -> Traffic:
    """So many collectives, or messages, of `size` bytes each."""
    return Traffic(
        axis=axis,
        what=what,
        num_gpus=num_gpus,
        link=path.link,
        gbps=path.gbps,
        num_bytes=size * num,
        num_collectives=num,
        latency_seconds=num * path.latency,
        seconds=path.seconds(size * num, num),
    )


def rounds(layout: PlannedLayout) -> tuple[int, int]:
    """How often sharded weights are gathered in a step, and gradients reduced: once in pipelines and for
    zero = 1; else each micro-batch (accumulation would hold gradients whole), and weights again in backward
    for zero = 3 (1910.02054, section 7.2.2). zero = 0 shards nothing but what tensor peers have of a mixture
    of experts, which it gathers as zero = 2 does."""
    num = 1 if layout.synchronises_once else layout.num_micro_batches
    return num * (2 if layout.zero == 3 and not layout.synchronises_once else 1), num


def stream_size(layout: PlannedLayout) -> float:
    """Bytes of the residual stream of one micro-batch of `mean_tokens`, whole over tensor peers."""
    return layout.mean_tokens * layout.config.width * layout.compute_bytes
