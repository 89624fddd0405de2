"""Which code a recipe names."""

from services.trainer.recipe_code import foreign_targets


def test_foreign_code_is_found_wherever_a_recipe_names_it() -> None:
    document = {
        "name": "a:b c",
        "model": {"target": "nets.py:Net", "args": {"inner": [{"target": "os:system"}]}},
        "data": {"target": "training.datasets:digits", "args": {"path": "s3://bucket/x:y/z"}},
        "loss": {"target": "my_company.losses:Focal"},
        "hooks": ["training_evil:x", "training:x"],
    }
    assert foreign_targets(document, ["my_company"]) == [
        "model.target: nets.py:Net",
        "model.args.inner.0.target: os:system",
        "hooks.0: training_evil:x",
    ]
    assert "loss.target: my_company.losses:Focal" in foreign_targets(document, [])
    assert foreign_targets({"model": {"target": "../../x.py:Y"}}, ["my"]) == [
        "model.target: ../../x.py:Y"
    ]
