"""Parameters of a search: the grammar, and refusals before anything runs."""

import re

import pytest

from tests.unit.training.recipes import recipe
from training.errors import RecipeError
from training.recipe.recipe import Recipe
from training.sweep.parameter import (
    Parameter,
    check_parameters,
    parse_parameter,
    parse_parameters,
    with_values,
)


@pytest.fixture
def base() -> Recipe:
    return recipe(data={"target": "training.datasets:digits"})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "optim.adamw.lr=log(1e-4,1e-1)",
            Parameter(path="optim.adamw.lr", kind="log", low=1e-4, high=1e-1),
        ),
        (
            " model.args.dropout = float(0, 0.5) ",
            Parameter(path="model.args.dropout", kind="float", low=0, high=0.5),
        ),
        ("train.epochs=int(5,20)", Parameter(path="train.epochs", kind="int", low=5, high=20)),
        (
            "optim.accumulate=choice(1,2,4)",
            Parameter(path="optim.accumulate", kind="choice", choices=(1, 2, 4)),
        ),
        (
            "schedule=choice({cosine: {}}, {step: {every_epochs: 3}}, null)",
            Parameter(
                path="schedule",
                kind="choice",
                choices=({"cosine": {}}, {"step": {"every_epochs": 3}}, None),
            ),
        ),
    ],
)
def test_a_parameter_is_read_and_written(text: str, expected: Parameter) -> None:
    assert parse_parameter(text) == expected
    assert parse_parameter(str(expected)) == expected


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "optim.adamw.lr",
            "is not of the form a.b=kind(...), as in optim.adamw.lr=log(1e-4, 1e-1)",
        ),
        ("optim..lr=log(1, 2)", "is not of the form"),
        ("train.epochs=itn(1, 2)", "no kind 'itn' (did you mean 'int'?)"),
        ("train.epochs=int(1)", "give the smallest and the largest value"),
        ("train.epochs=int(one, 2)", "give the smallest and the largest value"),
        ("train.epochs=int(9, 2)", "goes from 9 to 2; give the smaller one first"),
        ("train.epochs=int(1, 2.5)", "has no whole numbers; write float(1, 2.5)"),
        ("optim.adamw.lr=log(0, 1)", "a logarithm begins above 0, not at 0"),
        ("optim.adamw.lr=float(0, .inf)", "give the smallest and the largest value"),
        ("optim.accumulate=choice(1)", "leaves no choice; give at least two values"),
        ("optim.accumulate=choice(1, 1)", "has a value twice"),
        ("optim.accumulate=choice([1)", "the value is not YAML"),
    ],
)
def test_a_bad_parameter_says_what_to_write(text: str, reason: str) -> None:
    with pytest.raises(RecipeError, match=re.escape(reason)):
        parse_parameter(text)


def test_two_parameters_of_one_place_are_refused() -> None:
    with pytest.raises(RecipeError, match=r"--param optim and --param optim\.clip are of one"):
        parse_parameters(["optim.clip=float(1, 2)", "optim=choice({sgd: {}}, {adam: {}})"])
    assert len(parse_parameters(["train.epochs=int(1, 2)", "train.ema=float(0.1, 0.2)"])) == 2
    with pytest.raises(RecipeError, match="a search needs a --param"):
        parse_parameters([])


def test_values_are_put_into_the_recipe(base: Recipe) -> None:
    found = with_values(base, {"optim.adamw.lr": 0.01, "schedule": {"step": {"every_epochs": 3}}})
    assert (found.optim.chosen.lr, found.schedule.choice) == (0.01, "step")
    assert base.optim.chosen.lr != 0.01


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("optmi.adamw.lr=log(1e-4, 1e-1)", "unknown key 'optmi' (did you mean 'optim'?)"),
        ("optim.adamw.lrr=log(1e-4, 1e-1)", "unknown key 'lrr' in 'optim.adamw'"),
        ("optim.adamw.lr=float(-1, 1)", "'optim.adamw.lr' is -1: write a number above 0"),
        ("train.epochs=int(0, 3)", "or give train.epochs"),
        (
            "train.epochs=float(1, 3)",
            "write a whole number; for whole numbers alone, write train.epochs=int(1, 3)",
        ),
        (
            "train.epochs=log(1.0, 30)",
            "write a whole number; for whole numbers alone, write train.epochs=int(1, 30)",
        ),
        ("train.precision=choice(fp32, fp8)", "'train.precision' is 'fp8'"),
        ("train.epochs.x=int(1, 2)", "'train.epochs' is 20, which has no keys"),
        ("optim.sgd.lr=log(0.1, 1)", "exclude each other"),
        ("model.args.widht=int(4, 8)", "'widht' in 'model.args'"),
        ("data.args.sead=int(4, 8)", "'sead' in 'data.args'"),
        ("export=choice([{kind: onnx}], auto)", "changes nothing about the trained weights"),
    ],
)
def test_what_no_trial_could_be_made_of_is_refused(base: Recipe, text: str, reason: str) -> None:
    with pytest.raises(RecipeError, match=re.escape(reason)):
        check_parameters(base, [parse_parameter(text)])


def test_what_only_some_of_the_others_forbid_is_allowed(base: Recipe) -> None:
    parameters = parse_parameters(
        ["optim=choice({adamw: {}}, {lbfgs: {}})", "train.precision=choice(bf16, fp32)"]
    )
    check_parameters(base, parameters)
    with pytest.raises(RecipeError, match=r"optim\.lbfgs"):
        with_values(base, {"optim": {"lbfgs": {}}, "train.precision": "bf16"})
