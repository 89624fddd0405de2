"""Recipes: clear error messages, and complete stored recipes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from model_store.artifact_kinds import STORED_KINDS, exported_kinds
from training.errors import RecipeError
from training.recipe.file import load_recipe, parse_recipe, resolved_yaml
from training.recipe.kinds.export_kinds import EXPORT_KINDS
from training.recipe.kinds.onnx_kind import OnnxInt8Export
from training.recipe.recipe import Recipe

DIGITS = str(Path(__file__).parents[4] / "training/recipes/digits_cnn.yaml")
SMALLEST = """
name: smallest
model: {target: "training.networks:SmallCnn"}
data: {target: "training.datasets:digits"}
publish: {model: smallest}
"""


def models(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    yield model
    for field in model.model_fields.values():
        stack: list[Any] = [field.annotation]
        while stack:
            found = stack.pop()
            if isinstance(found, type) and issubclass(found, BaseModel):
                yield from models(found)
            stack += getattr(found, "__args__", ())


def test_the_recipe_that_ships_loads_and_stays_one_page() -> None:
    recipe = load_recipe(DIGITS)
    assert (recipe.name, recipe.publish.model) == ("digits-cnn", "digits")
    assert [entry.name for entry in recipe.listed_exports()] == ["torchscript", "onnx", "onnx-int8"]
    assert len(Path(DIGITS).read_text().splitlines()) <= 50


def test_every_default_is_written_out_and_reads_back_as_the_same_object() -> None:
    recipe = parse_recipe(SMALLEST, "here")
    text = resolved_yaml(recipe)
    assert parse_recipe(text, "there") == recipe
    stored = yaml.safe_load(text)
    assert stored["optim"]["adamw"]["lr"] == 1e-3
    assert stored["export"][1]["tolerance"] == {
        "max_abs_difference": 0.5,
        "min_agreement": 0.98,
        "max_probability_shift": 0.5,
        "max_metric_drop": 0.01,
        "max_spread_share": 0.25,
        "max_error_rise": 0.02,
        "min_cosine": 0.95,
    }


def test_every_field_says_when_to_change_it() -> None:
    fields = [
        (f"{model.__name__}.{name}", field.description or "")
        for model in models(Recipe)
        for name, field in model.model_fields.items()
    ]
    assert len(fields) > 40
    assert [name for name, text in fields if len(text) < 15] == []


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("optmi.clip=1", "unknown key 'optmi' (did you mean 'optim'?)"),
        ("optim.adamw.lrr=1", "unknown key 'lrr' in 'optim.adamw' (did you mean 'lr'?)"),
        ("export.1.tolerence={}", "did you mean 'tolerance'?"),
        ("optim.adamw.lr=-1", "'optim.adamw.lr' is -1: write a number above 0"),
        ("train.precision=bf61", "'bf16' or 'fp16' (did you mean 'bf16'?)"),
        ("optim.adamw.lr=fast", "'optim.adamw.lr' is 'fast'"),
        ("train.epochs=-1", "'train.epochs' is -1"),
        ("train.epochs=0", "train is none, and the recipe has no weights to publish"),
        ("train.epoch=3", "unknown key 'epoch' in 'train' (did you mean 'epochs'?)"),
        ("seed=.nan", "'seed' is nan"),
        ("stop.metric=val/acuracy", "no such metric (did you mean 'val/accuracy'?)"),
        ("publish.model=../digits", "model name '../digits' is not allowed"),
        ("name=a/b", "name of a run 'a/b' is not allowed"),
        ("model.outputs=[a, a]", "every output needs a unique name"),
        (
            "export=[{kind: onx}]",
            "'export.0' is {'kind': 'onx'}: no kind 'onx' (did you mean 'onnx'?)",
        ),
        ("export=[{kind: python}]", "no kind 'python'"),
        ("export=[{}]", f"it has no kind; give one of {', '.join(exported_kinds())}"),
        ("export=[onnx]", "'export.0' is 'onnx': write a mapping, as in {kind: onnx}"),
        ("export=[]", "the list is empty; give at least one entry, as in [{kind: onnx}]"),
        ("export=[{kind: onnx, precision: bf16}]", "'bf16'; it has fp32, fp16, int8"),
        ("export=[{kind: onnx, precision: int8, method: qat}]", "qat is for kind pt2 or aoti"),
        ("stop=null", "'stop' is null: write a mapping, as in {key: value}, or leave 'stop' out"),
        ("optim.adamw.rl=1", "unknown key 'rl' in 'optim.adamw' (did you mean 'lr'?)"),
        ("export=[{kind: onnx}, {kind: onnx}]", "twice in ['onnx', 'onnx']"),
        ("export.2.tolerance.min_agreement=99", "write 1 or less"),
        ("export.2.method=quick", "'static' or 'dynamic'"),
        (
            "export=[{kind: onnx, precision: int8, method: dynamic, op_types: [Conv]}]",
            "method: dynamic does not quantize Conv",
        ),
        (
            "export=[{kind: onnx, precision: int8, op_types: [LSTM]}]",
            "method: static does not quantize LSTM",
        ),
        ("dynamic={image: {2: [32, 8]}}", "give the smallest size, from 1 up, and a larger one"),
        ("train.teacher_forcing={first: 2}", "write 1 or less"),
        ("padding={inputs: {image: 1}}", "'padding.buckets' is missing"),
        ("padding={inputs: {image: 1}, bucket: [8]}", "did you mean 'buckets'?"),
        ("publish.slo={latency_ms: 300}", "300 is not measured; take 250"),
    ],
)
def test_a_bad_value_is_named_with_what_to_do(override: str, words: str) -> None:
    with pytest.raises(RecipeError) as error:
        load_recipe(DIGITS, [override])
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("publish.to=models.example", "the URL of a server, as https://models.example:8000"),
        ("publish.to=https://ci:secret@models.example", "the URL of a server"),
        (
            "publish={model: m, to: 'http://x', if: test/accuracy >= live}",
            "to names a registry, whose live version is not here",
        ),
        (
            "publish={model: m, to: 'http://x', rollout: {every: 1h}}",
            "rollout is given and to names a registry",
        ),
    ],
)
def test_a_registry_is_a_url_and_decides_no_traffic(override: str, words: str) -> None:
    with pytest.raises(RecipeError) as error:
        load_recipe(DIGITS, [override])
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("seed", "is not of the form a.b=c"),
        ("a..b=1", "is not of the form a.b=c"),
        ("seed.x=1", "'seed' is 7, which has no keys"),
        ("seed.x.y=1", "'seed' is 7, which has no keys"),
        ("export.9.kind=onnx", "'export' is a list; give a position from 0 to 2, not '9'"),
        ("seed=[1", "the value is not YAML"),
    ],
)
def test_an_override_that_cannot_be_applied_is_named(override: str, words: str) -> None:
    with pytest.raises(RecipeError) as error:
        load_recipe(DIGITS, [override])
    assert words in str(error.value)


def test_overrides_are_yaml_and_the_last_one_wins() -> None:
    recipe = load_recipe(
        DIGITS,
        [
            "optim.adamw.lr=1",
            "optim.adamw.lr=1e-4",
            "optim.clip=null",
            "track=[jsonl]",
            "model.args.width=1e1",
            "export.2.calibration_rows=32",
            "export.2.tolerance.max_abs_difference=2",
        ],
    )
    assert recipe.optim.chosen.lr == 1e-4
    assert recipe.optim.clip is None
    assert recipe.track == ("jsonl",)
    assert recipe.model.args["width"] == 10.0
    entry = recipe.listed_exports()[2]
    assert isinstance(entry, OnnxInt8Export)
    assert entry.calibration_rows == 32
    assert (entry.tolerance.max_abs_difference, entry.tolerance.min_agreement) == (2, 0.98)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (SMALLEST + "seed: 1\nseed: 2\n", "key 'seed' occurs twice"),
        (SMALLEST.replace("name: smallest", ""), "'name' is missing"),
        ("- 1", "holds a list; a recipe is a mapping"),
        ("{", "is not YAML"),
        ("name: 2027-02-30", "is not YAML: ValueError: day is out of range"),
        ("name: &a [*a]", "an alias refers to a value that contains it"),
        ("!!python/object/apply:os.getcwd []", "is not YAML"),
    ],
)
def test_text_that_is_no_recipe_is_refused(text: str, words: str) -> None:
    with pytest.raises(RecipeError, match=r"where\.yaml") as error:
        parse_recipe(text, "where.yaml")
    assert words in str(error.value)


def test_a_missing_file_names_those_that_are_there() -> None:
    with pytest.raises(RecipeError, match=r"digits_cnn\.yaml"):
        load_recipe(DIGITS.replace("cnn", "cmm"))
    with pytest.raises(RecipeError, match=r"neither a \.yaml file nor"):
        load_recipe("digits")


def test_a_python_function_gives_the_same_object_and_takes_overrides(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from training.recipe.file import parse_recipe\n"
        f"def recipe(): return parse_recipe({SMALLEST!r}, 'mine.py')\n"
        "def nothing(): return 7\n"
    )
    expected = parse_recipe(SMALLEST + "seed: 3\n", "here")
    assert load_recipe(f"{tmp_path}/mine.py:recipe", ["seed=3"]) == expected
    with pytest.raises(RecipeError, match="returned a int"):
        load_recipe(f"{tmp_path}/mine.py:nothing")
    with pytest.raises(RecipeError, match=r"has no 'recipes' \(did you mean 'recipe'\?\)"):
        load_recipe(f"{tmp_path}/mine.py:recipes")


def test_the_padding_of_a_recipe_is_stored_with_every_default() -> None:
    text = SMALLEST + "padding: {inputs: {tokens: 1}, buckets: [8, 32], mask: mask}\n"
    recipe = parse_recipe(text, "here")
    assert parse_recipe(resolved_yaml(recipe), "there") == recipe
    assert yaml.safe_load(resolved_yaml(recipe))["padding"] == {
        "inputs": {"tokens": 1},
        "outputs": {},
        "buckets": [8, 32],
        "values": {},
        "mask": "mask",
        "lengths": None,
        "static": False,
    }


def test_only_what_decides_the_weights_decides_the_run_folder() -> None:
    digest = load_recipe(DIGITS).training_digest()
    unweighty = ("data.workers=2", "checkpoint.every_steps=5")
    published = "publish={model: digits, alias: null}"
    for later in ("export=[{kind: onnx}]", "track=[]", published, *unweighty):
        assert load_recipe(DIGITS, [later]).training_digest() == digest
    for earlier in ("seed=1", "optim.clip=2", "data.sampler=balanced", "model.args.width=8"):
        assert load_recipe(DIGITS, [earlier]).training_digest() != digest


def test_every_recipe_that_ships_can_be_read() -> None:
    folder = Path(DIGITS).parent
    found = [load_recipe(str(path)) for path in sorted(folder.glob("*.yaml"))]
    assert len({recipe.name for recipe in found}) == len(found) >= 8
    assert len({recipe.publish.model for recipe in found}) == len(found)


def test_every_precision_that_a_kind_has_is_an_entry() -> None:
    assert list(EXPORT_KINDS) == list(STORED_KINDS)
    for kind in exported_kinds():
        precisions = EXPORT_KINDS[kind].precisions
        for precision in ("fp32", "bf16", "fp16", "int8"):
            override = f"export=[{{kind: {kind}, precision: {precision}}}]"
            if precision in precisions:
                (entry,) = load_recipe(DIGITS, [override]).listed_exports()
                assert (entry.kind, entry.precision) == (kind, precision)
            else:
                with pytest.raises(
                    RecipeError, match=f"kind {kind} has no precision '{precision}'"
                ):
                    load_recipe(DIGITS, [override])


def test_one_wrong_entry_is_one_fault() -> None:
    with pytest.raises(RecipeError) as refused:
        load_recipe(DIGITS, ["export=[{kind: onx}]"])
    assert str(refused.value).endswith("no kind 'onx' (did you mean 'onnx'?)")
