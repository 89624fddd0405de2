"""Names are checked before a model is captured or a process starts."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flambeau
from flambeau.protocol.names import ARTIFACT_NAMES
from flambeau.publishing.errors import PublishError
from training.importing.derived_entries import known_entries


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "a/b"}, "model name 'a/b' is not allowed"),
        ({"alias": "7"}, "a number names a version, as in digits@7"),
        ({"artifacts": ["onnx", "onx"]}, r"no artifact is named 'onx' \(did you mean 'onnx'"),
    ],
)
def test_wrong_names_are_refused_before_the_model_runs(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    ran = []
    with pytest.raises(PublishError, match=message):
        flambeau.publish(
            lambda x: ran.append(x), np.ones((2, 3)), to=tmp_path, **{"name": "digits", **options}
        )
    assert not ran


def test_the_names_of_artifacts_are_those_that_can_be_made() -> None:
    assert list(known_entries()) == list(ARTIFACT_NAMES)
