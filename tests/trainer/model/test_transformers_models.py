"""What our models are compared with: transformers computes its reference in float64 from end to end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.support.training.transformers_models import FAMILIES, VARIANTS, reference_model, reference_rows


class NarrowResults(TorchDispatchMode):
    """Collects operations that give floating point numbers of less than 64 bits."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        results = function(*args, **(kwargs or {}))
        for result in tree_leaves(results):
            if isinstance(result, Tensor) and result.is_floating_point() and result.dtype != torch.float64:
                self.found.add(str(function))
        return results


@pytest.mark.parametrize("name", [*FAMILIES, *VARIANTS])
def test_transformers_computes_a_reference_in_float64_alone(name: str) -> None:
    with NarrowResults() as narrow:
        reference_model(name).result(reference_rows())
    assert narrow.found == set()


@pytest.mark.parametrize("name", [*FAMILIES, *VARIANTS])
def test_every_weight_of_a_reference_has_a_gradient_under_its_name_on_disk(name: str) -> None:
    model = reference_model(name)
    gradients = model.result(reference_rows()).gradients
    # The bias that corrects an expert's load is moved by the load and not by the loss.
    learnt = {name for name in model.tensors if not name.endswith("e_score_correction_bias")}
    assert gradients.keys() == learnt
    assert [name for name, gradient in gradients.items() if not gradient.any()] == []
