"""Every rule at its edge: our verdict, and datatrove's on the same text."""

from __future__ import annotations

from collections import Counter

import pytest

from stages.document import Document
from tests.support.inputs.quality_texts import EDGES, REASONS, Edge, judge, peer_verdict, verdict

NAMES = [f"{edge.rules}: {edge.name}" for edge in EDGES]


@pytest.mark.parametrize("edge", EDGES, ids=NAMES)
def test_a_text_at_the_edge_of_a_rule_gets_the_expected_verdict(edge: Edge) -> None:
    assert verdict(edge.text, edge.rules, **edge.keys) == edge.rule


@pytest.mark.differential("stages/quality")
@pytest.mark.filterwarnings("ignore:Mean of empty slice", "ignore:invalid value")
@pytest.mark.parametrize("edge", EDGES, ids=NAMES)
def test_datatrove_gives_the_same_verdict_for_the_same_reason(edge: Edge) -> None:
    pytest.importorskip("datatrove")
    theirs, text = peer_verdict(edge.rules, edge.text, **edge.keys)
    assert theirs == edge.rule
    outcome = judge(edge.text, edge.rules, **edge.keys)
    if isinstance(outcome, Document):
        assert outcome.text == text


def test_the_table_of_edges_is_wide() -> None:
    assert len(EDGES) >= 120
    assert len(set(NAMES)) == len(NAMES)
    rejected = Counter(edge.rule for edge in EDGES)
    for rule in REASONS.values():
        assert rejected[rule] >= 1, f"no text is rejected by {rule}"
