"""The families without recurrence: shapes, gradients, masks, sizes and control flow."""

import warnings

import pytest
import torch
from torch import Tensor, nn

from training.errors import TargetError
from training.models.early_exit import EarlyExit
from training.models.encoder import EncoderClassifier
from training.models.mlp import Mlp
from training.models.residual_cnn import ResidualCnn
from training.models.swish import SwishClassifier, SwishFunction, swish
from training.network.model import for_export
from training.networks import SmallCnn

IMAGES = torch.linspace(-1, 1, 40 * 64).sin().reshape(40, 1, 8, 8)


def test_an_mlp_learns_the_units_of_its_features() -> None:
    torch.manual_seed(0)
    model, rows = Mlp(features=3, hidden=[8], classes=2, dropout=0), torch.randn(512, 3)
    large = rows * torch.tensor([1.0, 1e3, 1e-3]) + torch.tensor([0.0, 5e3, 1.0])
    assert model(large).shape == (512, 2)
    torch.testing.assert_close(model(large), model(rows), atol=2e-2, rtol=0)


@pytest.mark.parametrize(("height", "width"), [(8, 8), (9, 17), (32, 12)])
def test_a_residual_cnn_takes_any_size(height: int, width: int) -> None:
    model = ResidualCnn(width=8).eval()
    assert model(torch.zeros(2, 1, height, width)).shape == (2, 10)
    convolutions = [layer for layer in model.modules() if isinstance(layer, nn.Conv2d)]
    assert {c.dilation[0] for c in convolutions} == {1, 2}
    assert {1, 4, 16} <= {c.groups for c in convolutions}  # plain, grouped, depthwise


def test_an_encoder_answers_a_padded_row_as_it_answers_it_alone() -> None:
    torch.manual_seed(0)
    model = EncoderClassifier(vocabulary=20, longest=12).eval()
    tokens, lengths = torch.randint(1, 20, (5, 12)), [12, 1, 7, 3, 9]
    mask = torch.arange(12)[None] < torch.tensor(lengths)[:, None]
    found = model(tokens, mask)
    for row, length in enumerate(lengths):
        alone = model(tokens[row : row + 1, :length], mask[row : row + 1, :length])
        torch.testing.assert_close(alone[0], found[row], atol=1e-5, rtol=0)


def test_the_gradient_of_swish_is_that_of_its_formula() -> None:
    torch.manual_seed(0)
    features = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(SwishFunction.apply, features)
    assert torch.autograd.gradgradcheck(SwishFunction.apply, features)


@pytest.mark.parametrize("requires_grad", [False, True])
def test_the_operator_is_what_torch_asks_of_one_and_the_function(requires_grad: bool) -> None:
    torch.manual_seed(0)
    for shape in ((4, 5), (0, 3), (2, 1, 3)):
        features = torch.randn(shape, dtype=torch.float64, requires_grad=requires_grad)
        torch.library.opcheck(swish, (features,))
        assert torch.equal(swish(features), SwishFunction.apply(features))  # type: ignore[no-untyped-call]
    if requires_grad:
        assert torch.autograd.gradcheck(swish, features)


@pytest.mark.parametrize("operator", [False, True])
def test_the_twin_of_the_swish_classifier_has_its_answers_and_its_weights(operator: bool) -> None:
    model = SwishClassifier(operator=operator).eval()
    twin = for_export(model)
    torch.testing.assert_close(twin(IMAGES), model(IMAGES), atol=1e-6, rtol=0)
    assert [id(p) for p in twin.parameters()] == [id(p) for p in model.parameters()]


def sure_at_different_stages() -> EarlyExit:
    torch.manual_seed(0)
    model = EarlyExit(hidden=16, stages=4).eval()
    sure = model(IMAGES).softmax(dim=1).amax(dim=1)
    model.threshold = sure.median().item()
    return model


def test_a_row_leaves_where_it_is_sure_whoever_is_beside_it() -> None:
    model = sure_at_different_stages()
    together = model(IMAGES)
    alone = torch.cat([model(row[None]) for row in IMAGES])
    torch.testing.assert_close(alone, together, atol=1e-6, rtol=0)


def test_later_stages_run_only_while_somebody_is_unsure() -> None:
    model, runs = EarlyExit(stages=3, threshold=0.0).eval(), []
    for number, stage in enumerate(model.stages):
        stage.register_forward_hook(lambda *_, number=number: runs.append(number))
    model(IMAGES)
    assert runs == [0]
    model.threshold = 1.1
    model(IMAGES)
    assert runs == [0, 0, 1, 2]


def test_the_script_and_the_twin_of_an_early_exit_have_its_answers() -> None:
    model = sure_at_different_stages()
    expected = model(IMAGES)
    torch.testing.assert_close(for_export(model)(IMAGES), expected, atol=1e-6, rtol=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        scripted = torch.jit.script(model)
    torch.testing.assert_close(scripted(IMAGES), expected, atol=1e-6, rtol=0)
    assert "prim::If" in str(scripted.graph)  # the control flow is in the script


def test_in_training_every_head_of_an_early_exit_learns() -> None:
    model = EarlyExit(stages=3)
    torch.manual_seed(0)
    model(IMAGES).sum().backward()
    for head in model.heads:
        assert isinstance(head, nn.Linear)
        assert head.weight.grad is not None
        assert head.weight.grad.abs().sum() > 0


def test_a_module_without_a_twin_is_exported_as_it_is() -> None:
    model = SmallCnn()
    assert for_export(model) is model


def test_what_is_exported_is_in_evaluation_mode() -> None:
    class Twinned(nn.Module):
        def export_twin(self) -> nn.Module:
            return nn.Sequential(nn.Dropout())

    assert not for_export(Twinned().train()).training


def test_a_twin_that_is_no_module_is_named() -> None:
    class Wrong(nn.Module):
        def export_twin(self) -> Tensor:
            return torch.zeros(1)

    with pytest.raises(TargetError, match=r"Wrong\.export_twin returned a Tensor; return a torch"):
        for_export(Wrong())
