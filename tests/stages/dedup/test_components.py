"""Components: the whole graph at once and by rounds over partitions come to the same."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.dedup.components import edges_digest, label_components, large_star, small_star

Edges = list[tuple[int, int]]
EDGES = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 40)).filter(lambda e: e[0] != e[1]), max_size=60
)


def arrays(edges: Edges) -> tuple[np.ndarray, np.ndarray]:
    both = np.array(edges, np.int64).reshape(-1, 2)
    return both[:, 0].copy(), both[:, 1].copy()


def by_search(edges: Edges) -> dict[int, int]:
    """The least node that each node can reach."""
    label = {node: node for edge in edges for node in edge}
    while True:
        new = dict(label)
        for a, b in edges:
            new[a] = new[b] = min(new[a], new[b])
        if new == label:
            return label
        label = new


def by_rounds(edges: Edges, num_partitions: int) -> dict[int, int]:
    """Alternating stars, each applied to partitions by node, until the edges stay as they are."""
    a, b = arrays(edges)
    digest = None
    for _ in range(100):
        a, b = _partitioned(large_star, np.concatenate((a, b)), np.concatenate((b, a)), num_partitions)
        a, b = _partitioned(small_star, np.maximum(a, b), np.minimum(a, b), num_partitions)
        if edges_digest(a, b) == digest:
            return dict(zip(a.tolist(), b.tolist(), strict=True)) | {centre: centre for centre in b.tolist()}
        digest = edges_digest(a, b)
    raise AssertionError("the rounds do not end")


def _partitioned(star, node, neighbour, num_partitions):  # type: ignore[no-untyped-def]
    parts = [
        star(node[node % num_partitions == p], neighbour[node % num_partitions == p])
        for p in range(num_partitions)
    ]
    return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])


@given(EDGES)
def test_labels_are_the_least_node_within_reach(edges: Edges) -> None:
    node, label = label_components(*arrays(edges))
    assert dict(zip(node.tolist(), label.tolist(), strict=True)) == by_search(edges)


@given(EDGES, st.integers(1, 5))
def test_rounds_over_partitions_give_the_labels_of_the_whole(edges: Edges, num_partitions: int) -> None:
    assert by_rounds(edges, num_partitions) == by_search(edges)


@pytest.mark.parametrize("num_nodes", [2, 100, 3000])
def test_rounds_end_on_a_long_chain(num_nodes: int) -> None:
    nodes = np.random.default_rng(0).permutation(num_nodes).tolist()
    edges = list(itertools.pairwise(nodes))
    assert by_rounds(edges, 4) == dict.fromkeys(range(num_nodes), 0)


@given(EDGES, st.randoms(use_true_random=False))
def test_the_digest_of_edges_knows_no_order_but_every_edge(edges: Edges, random: object) -> None:
    shuffled = list(edges)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert edges_digest(*arrays(edges)) == edges_digest(*arrays(shuffled))
    assert edges_digest(*arrays([*edges, (1, 2)])) != edges_digest(*arrays([*edges, (2, 1)]))
