"""A scikit-learn model as a Python model: its arrays travel with the version, and no pickle.

Runs in the environment that `make up` makes.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression

import flambeau


class Iris:
    """Tells the species of an iris from four lengths in centimetres."""

    def load(self, context: flambeau.Context) -> None:
        """Makes the fitted model from its arrays."""
        self.model = LogisticRegression()
        with np.load(context.files["iris.npz"]) as arrays:
            for name, array in arrays.items():
                setattr(self.model, name, array)
        self.species = context.args["species"]

    def infer(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the `probabilities` of three species, and the `species`, of each row."""
        probabilities = self.model.predict_proba(inputs["lengths"])
        species = [self.species[number] for number in probabilities.argmax(1)]
        return {"probabilities": probabilities, "species": species}


def main() -> None:
    """Fits the model, publishes it, and compares its answers with scikit-learn's."""
    iris = load_iris()
    fitted = LogisticRegression(max_iter=1000).fit(iris.data, iris.target)
    np.savez("iris.npz", coef_=fitted.coef_, intercept_=fitted.intercept_, classes_=fitted.classes_)
    flambeau.publish(
        Iris,
        {"lengths": iris.data},
        name="iris",
        args={"species": iris.target_names.tolist()},
        files=["iris.npz"],
    )
    with flambeau.load("iris") as model:
        found = model(lengths=iris.data)
    gap = np.abs(found["probabilities"] - fitted.predict_proba(iris.data)).max()
    right = iris.target_names[fitted.predict(iris.data)]
    same = np.mean([one.decode() == two for one, two in zip(found["species"], right, strict=True)])
    print(f"{same:.0%} of species as scikit-learn's; largest difference {gap:.1e}")
    assert same == 1
    assert gap < 1e-9


if __name__ == "__main__":
    main()
