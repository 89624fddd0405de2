"""Maps splits to the paths or names of a recipe. Pure."""

from training.recipe.parts.data_parts import BySplit

SPLITS = ("train", "validation", "test")


def by_split(*told: str | BySplit) -> list[str]:
    """Returns the splits with files or arrays of their own, in any of the texts.

    Without any, all rows are in `train`.
    """
    apart = [text for text in told if isinstance(text, BySplit)]
    named = [s for s in SPLITS if any(getattr(text, s) is not None for text in apart)]
    return named or ["train"]


def paths_by_split(told: str | BySplit) -> dict[str, str]:
    """Returns the path of each split that has one; a path for all rows is that of `train`."""
    if isinstance(told, str):
        return {"train": told}
    paths = {split: text_of(told, split) for split in SPLITS}
    return {split: path for split, path in paths.items() if path is not None}


def text_of(told: str | BySplit, split: str) -> str | None:
    """Returns the text for a split; None if there is none."""
    return told if isinstance(told, str) else getattr(told, split)
