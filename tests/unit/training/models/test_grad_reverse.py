"""The layer that turns gradients round."""

import pytest
import torch
from torch import nn

from training.models.grad_reverse import GradReverse


def test_features_go_through_and_gradients_come_back_turned_round() -> None:
    features = torch.randn(4, 3, requires_grad=True)
    found = GradReverse(0.5)(features)
    assert torch.equal(found, features)
    found.backward(torch.full_like(found, 2.0))
    assert features.grad is not None
    assert torch.equal(features.grad, torch.full_like(features, -1.0))


def test_the_gradient_can_be_differentiated_once_more() -> None:
    features = torch.randn(5, dtype=torch.float64, requires_grad=True)
    (first,) = torch.autograd.grad(
        (GradReverse(3.0)(features) ** 2).sum(), features, None, True, True
    )
    (second,) = torch.autograd.grad(first.sum(), features)
    torch.testing.assert_close(first, -3 * 2 * features)
    # What comes back through the layer is turned round there once more.
    torch.testing.assert_close(second, torch.full_like(features, -3 * (-3 * 2)))


def test_the_body_of_two_heads_unlearns_what_the_second_learns() -> None:
    torch.manual_seed(0)
    body, head = nn.Linear(4, 4), nn.Linear(4, 1)
    rows = torch.randn(8, 4)
    weights = (body.weight, head.weight)
    gradients = []
    for layer in (nn.Identity(), GradReverse()):
        loss = head(layer(body(rows))).square().mean()
        gradients.append(torch.autograd.grad(loss, weights))
    (plain_body, plain_head), (body_turned, head_turned) = gradients
    assert torch.equal(body_turned, -plain_body)
    assert torch.equal(head_turned, plain_head)


def test_an_exported_network_has_the_features_alone() -> None:
    network = nn.Sequential(nn.Linear(4, 4), GradReverse(), nn.Linear(4, 2)).eval()
    rows = torch.randn(3, 4)
    exported = torch.export.export(network, (rows,)).module()
    assert torch.equal(exported(rows), network(rows))


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan")])
def test_a_scale_that_reverses_nothing_is_refused(scale: float) -> None:
    with pytest.raises(ValueError, match="scale is"):
        GradReverse(scale)
