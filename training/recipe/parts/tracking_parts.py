"""The part of a recipe that says where trackers other than files find their server. Pure."""

from typing import Literal

from pydantic import Field

from training.recipe.parts.recipe_part import RecipePart

TrackerName = Literal["tensorboard", "jsonl", "mlflow", "wandb"]


class TrackingPart(RecipePart):
    """How MLflow and Weights & Biases are told, where `track` names them."""

    experiment: str | None = Field(default=None, min_length=1)
    """MLflow's experiment and W&B's project; null takes `publish.model`. Change it to see several
    models side by side."""
    mlflow_uri: str | None = Field(default=None, min_length=1)
    """MLflow's tracking server, such as `http://mlflow:5000`; null for `mlflow.db` in the run's
    folder. Give it where several people look."""
    wandb_mode: Literal["offline", "online"] = "offline"
    """`offline` writes into the run's folder, which `wandb sync` sends later. Take `online` where
    the machine may talk to W&B and is logged in."""
