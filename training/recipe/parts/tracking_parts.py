"""The part of a recipe for the servers of trackers other than files. Pure."""

from typing import Literal

from pydantic import Field

from training.recipe.parts.recipe_part import RecipePart

TrackerName = Literal["tensorboard", "jsonl", "mlflow", "wandb"]


class TrackingPart(RecipePart):
    """Settings of MLflow and Weights & Biases, if `track` names them."""

    experiment: str | None = Field(default=None, min_length=1)
    """MLflow experiment and W&B project; null uses `publish.model`. Change it to compare several
    models side by side."""
    mlflow_uri: str | None = Field(default=None, min_length=1)
    """MLflow tracking server, such as `http://mlflow:5000`; null for `mlflow.db` in the run's
    folder. Give it to share results with others."""
    wandb_mode: Literal["offline", "online"] = "offline"
    """`offline` writes into the run's folder, from which `wandb sync` uploads later. Take `online`
    if the machine has access to W&B and is logged in."""
