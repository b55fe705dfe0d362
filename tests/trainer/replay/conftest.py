"""A small OUT for the tests of replays."""

from __future__ import annotations

import pytest

from tests.support.outputs.small_out.output import SmallOut
from tests.support.training.forgotten import make_few_ids_out


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> SmallOut:
    return make_few_ids_out(tmp_path_factory.mktemp("small"))
