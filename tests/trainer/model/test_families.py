"""Every family beside transformers' own class: the loss and every gradient, in float64."""

from __future__ import annotations

import pytest
import torch

from tests.support.training.family_models import (
    PLAIN_EXPERTS,
    by_our_names,
    config_of,
    device_rows,
    mean_loss,
    routing_of,
)
from tests.support.training.transformers_models import FAMILIES, VARIANTS, reference_model, reference_rows
from trainer.model.attention import document_masks
from trainer.model.transformer import Llama


@pytest.mark.parametrize("name", [*FAMILIES, *VARIANTS])
def test_loss_and_every_gradient_are_those_of_transformers(name: str) -> None:
    reference = reference_model(name)
    rows = reference_rows()
    expected, config = reference.result(rows), config_of(reference)
    model = Llama(config, experts=PLAIN_EXPERTS).to(torch.float64)
    model.load_state_dict(by_our_names(reference.tensors), strict=not config.tied)
    model.tie()
    given = device_rows(rows)
    masks = document_masks(given.documents_BT, config.windows, "dense")
    loss = mean_loss(model(given.inputs_BT, given.positions_BT, masks, routing_of(given)), given)
    loss.backward()  # type: ignore[no-untyped-call]
    assert loss.item() == pytest.approx(expected.loss, abs=1e-10)
    gradients = by_our_names(expected.gradients)
    parameters = dict(model.named_parameters())
    assert gradients.keys() == parameters.keys()
    for of, parameter in parameters.items():
        assert parameter.grad is not None
        assert (parameter.grad - gradients[of]).abs().max() < 1e-10, of
