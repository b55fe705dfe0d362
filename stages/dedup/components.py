"""Connected components of the graph of repetitions, whole in one process or by rounds over partitions of its edges.

The rounds are the alternating algorithm of Kiveris et al., Connected Components in MapReduce and Beyond (SoCC 2014):
large-star and small-star, repeated until the edges no longer change, leave a star around the least node of each
component. Each keeps the components as they are and makes no more edges than it got. An edge that changes is replaced
by one whose two nodes have a lesser sum, so the rounds end.
"""

from __future__ import annotations

import numpy as np

from stages.dedup.bands import I64
from stages.dedup.candidates import distinct_pairs
from stages.dedup.shingles import mix


def label_components(a: I64, b: I64) -> tuple[I64, I64]:
    """Every node of the edges (a[i], b[i]), sorted, and the least node of its component."""
    # Here, since its import takes a third of a second, which the start of every command would wait for.
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    nodes, compact = np.unique(np.concatenate((a, b)), return_inverse=True)
    if not len(nodes):
        return nodes, nodes
    graph = coo_array((np.ones(len(a), np.bool_), (compact[: len(a)], compact[len(a) :])), shape=(len(nodes),) * 2)
    num_components, component = connected_components(graph, directed=False)
    # Nodes are sorted, so the first node seen of each component is its least.
    least = np.full(num_components, len(nodes) - 1)
    np.minimum.at(least, component, np.arange(len(nodes)))
    return nodes, nodes[least[component]]


def large_star(node: I64, neighbour: I64) -> tuple[I64, I64]:
    """Each node's greater neighbours, joined to the least of the node and all its neighbours.

    Takes every edge of the nodes given, once from each of its ends."""
    nodes, least, run = _least_neighbour(node, neighbour)
    least = np.minimum(nodes, least)
    # Only the greater neighbours move: of an edge's two ends exactly one sees the other as greater, so each edge
    # gives exactly one.
    greater = neighbour > node
    return distinct_pairs(neighbour[greater], least[run][greater])


def small_star(node: I64, neighbour: I64) -> tuple[I64, I64]:
    """Each node and its lesser neighbours, joined to the least of them. Takes every edge once, from its greater end."""
    nodes, least, run = _least_neighbour(node, neighbour)
    # The node keeps an edge to the least alone; its other edges move to its neighbours. The least would be joined to
    # itself: that edge says nothing and is left out, so no more edges come out than went in.
    a, b = np.concatenate((neighbour, nodes)), np.concatenate((least[run], least))
    apart = a != b
    return distinct_pairs(a[apart], b[apart])


def edges_digest(a: I64, b: I64) -> int:
    """A number that differs between two sets of distinct edges, whatever their order: add those of parts mod 2^64."""
    return int(np.sum(mix(mix(a.view(np.uint64)) ^ b.view(np.uint64)), dtype=np.uint64))


def _least_neighbour(node: I64, neighbour: I64) -> tuple[I64, I64, I64]:
    """The distinct nodes, the least neighbour of each, and for each edge the index of its node."""
    nodes, run = np.unique(node, return_inverse=True)
    least = np.full(len(nodes), np.iinfo(np.int64).max)
    np.minimum.at(least, run, neighbour)
    return nodes, least, run
