"""Connected components of the graph of repetitions, whole in one process or by rounds over partitions of its
edges.

The rounds are the alternating algorithm of Kiveris et al., Connected Components in MapReduce and Beyond (SoCC
2014): large-star and small-star, repeated until the edges no longer change, leave a star around the least
node of each component. Each keeps the components as they are and makes no more edges than it got. An edge
that changes is replaced by one whose two nodes have a lesser sum, so the rounds end."""

from __future__ import annotations

import numpy as np

from stages.dedup.bands import I64
from stages.dedup.candidates import distinct_pairs
from stages.dedup.shingles import mix


def label_components(a: I64, b: I64) -> tuple[I64, I64]:
    """Every node of the edges (a[i], b[i]), sorted, and the least node of its component.

    Each node points to a lesser one of its component, and roots to themselves. In a round a root joins the
    least root that an edge leads to, and every node moves up to its root. A root that an edge leads to from a
    greater one, and that stays, stands beside a lesser one in the next round: so two rounds at least halve
    the roots of a component, and rounds end after twice the logarithm of the nodes. (scipy, which does this
    too, takes a quarter of a second to import, as long as a short run compares.)"""
    nodes, compact = np.unique(np.concatenate((a, b)), return_inverse=True)
    left, right = compact[: len(a)], compact[len(a) :]
    root = np.arange(len(nodes))
    while True:
        left, right = root[left], root[right]
        apart = left != right
        left, right = left[apart], right[apart]
        if not len(left):
            return nodes, nodes[root]
        joined = np.arange(len(nodes))
        np.minimum.at(joined, left, right)
        np.minimum.at(joined, right, left)
        while not np.array_equal(up := joined[joined], joined):
            joined = up
        root = joined[root]


def large_star(node: I64, neighbour: I64) -> tuple[I64, I64]:
    """Each node's greater neighbours, joined to the least of the node and all its neighbours.

    Takes every edge of the nodes given, once from each of its ends."""
    nodes, least, run = _least_neighbour(node, neighbour)
    least = np.minimum(nodes, least)
    # Only the greater neighbours move: of an edge's two ends exactly one sees the other as greater, so each
    # edge gives exactly one.
    greater = neighbour > node
    return distinct_pairs(neighbour[greater], least[run][greater])


def small_star(node: I64, neighbour: I64) -> tuple[I64, I64]:
    """Each node and its lesser neighbours, joined to the least of them. Takes every edge once, from its
    greater end."""
    nodes, least, run = _least_neighbour(node, neighbour)
    # The node keeps an edge to the least alone; its other edges move to its neighbours. The least would be
    # joined to itself: that edge says nothing and is left out, so no more edges come out than went in.
    a, b = np.concatenate((neighbour, nodes)), np.concatenate((least[run], least))
    apart = a != b
    return distinct_pairs(a[apart], b[apart])


def edges_digest(a: I64, b: I64) -> int:
    """A number that differs between two sets of distinct edges, whatever their order: add those of parts mod
    2^64."""
    return int(np.sum(mix(mix(a.view(np.uint64)) ^ b.view(np.uint64)), dtype=np.uint64))


def _least_neighbour(node: I64, neighbour: I64) -> tuple[I64, I64, I64]:
    """The distinct nodes, the least neighbour of each, and for each edge the index of its node."""
    nodes, run = np.unique(node, return_inverse=True)
    least = np.full(len(nodes), np.iinfo(np.int64).max)
    np.minimum.at(least, run, neighbour)
    return nodes, least, run
