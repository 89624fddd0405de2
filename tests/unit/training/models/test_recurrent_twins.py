"""Recurrent families: the twin that is exported answers as the packed module that was trained."""

import pytest
import torch
from torch import Tensor, nn

from training.models.masked_recurrent import MaskedRecurrent
from training.models.recurrent import RecurrentClassifier
from training.models.seq2seq import Seq2Seq

ROWS, LONGEST, FEATURES = 6, 9, 8
LENGTHS = [9, 1, 5, 3, 8, 2]


@pytest.fixture
def elements() -> Tensor:
    torch.manual_seed(0)
    return torch.randn(ROWS, LONGEST, FEATURES)


@pytest.mark.parametrize("cell", ["lstm", "gru"])
@pytest.mark.parametrize("layers", [1, 2])
def test_the_masked_twin_is_the_packed_classifier(elements: Tensor, cell: str, layers: int) -> None:
    model = RecurrentClassifier(FEATURES, layers=layers, cell=cell).eval()  # type: ignore[arg-type]
    lengths = torch.tensor(LENGTHS)
    twin = model.export_twin().eval()
    torch.testing.assert_close(twin(elements, lengths), model(elements, lengths), atol=1e-5, rtol=0)
    shared = {id(parameter) for parameter in model.parameters()}
    assert {id(parameter) for parameter in twin.parameters()} == shared


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_outputs_of_both_directions_are_those_of_packing(
    elements: Tensor, kind: type[nn.LSTM] | type[nn.GRU]
) -> None:
    packed = kind(FEATURES, 5, 2, batch_first=True, bidirectional=True)
    lengths = torch.tensor(LENGTHS)
    rows = nn.utils.rnn.pack_padded_sequence(
        elements, lengths, batch_first=True, enforce_sorted=False
    )
    expected, _ = nn.utils.rnn.pad_packed_sequence(packed(rows)[0], batch_first=True)
    found, _ = MaskedRecurrent(packed)(elements, lengths)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("model", [RecurrentClassifier(cell="gru"), Seq2Seq()])
def test_what_lies_in_the_padding_changes_nothing(elements: Tensor, model: nn.Module) -> None:
    model.eval()
    lengths = torch.tensor(LENGTHS)
    noisy = elements.clone()
    for row, length in enumerate(LENGTHS):
        noisy[row, length:] = 1e3
    with torch.inference_mode():
        torch.testing.assert_close(model(noisy, lengths), model(elements, lengths))
        for row, length in enumerate(LENGTHS):
            alone = model(elements[row : row + 1, :length], lengths[row : row + 1])
            torch.testing.assert_close(alone[0], model(elements, lengths)[row])


def eager(model: Seq2Seq) -> Seq2Seq:
    """Some rows end at once and some never: no weights are learned here, so the head is pushed."""
    model.eval()
    with torch.no_grad():
        model.step.head.bias[model.end] += 0.08
    return model


def test_the_looped_twin_writes_what_the_module_writes(elements: Tensor) -> None:
    torch.manual_seed(1)
    model, lengths = eager(Seq2Seq(longest=6)), torch.tensor(LENGTHS)
    with torch.no_grad():
        expected = model(elements, lengths)
        found = model.export_twin().eval()(elements, lengths)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def test_nothing_but_the_end_follows_the_end(elements: Tensor) -> None:
    model = Seq2Seq(symbols=4, longest=6).eval()
    with torch.no_grad():
        model.step.head.bias[model.end] += 100
        logits = model(elements, torch.tensor(LENGTHS))
    assert (logits.argmax(dim=2) == model.end).all()
    assert (logits[:, 1:] == torch.tensor([0.0, 0, 0, 1])).all()


def test_a_decoder_that_is_told_everything_never_hears_itself(elements: Tensor) -> None:
    model, lengths = Seq2Seq(), torch.tensor(LENGTHS)
    targets = torch.randint(0, 10, (ROWS, 4))
    told = [model(elements, lengths, targets, 1.0) for _ in range(2)]
    torch.testing.assert_close(told[0], told[1])
    other = targets.clone()
    other[:, 0] = (other[:, 0] + 1) % 10
    changed = model(elements, lengths, other, 1.0)
    torch.testing.assert_close(changed[:, 0], told[0][:, 0])  # the first step knows only the start
    assert not torch.allclose(changed[:, 1], told[0][:, 1])
    alone = model(elements, lengths, targets, 0.0)
    torch.testing.assert_close(alone, model(elements, lengths, other, 0.0))
