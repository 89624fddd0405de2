"""scikit-learn's breast cancer data: 569 tumours by 30 measurements of their cells' nuclei."""

import numpy as np

from model_store.tensors import Array


def breast_cancer(
    seed: int, validation_share: float = 0.2, test_share: float = 0.25
) -> dict[str, tuple[dict[str, Array], Array]]:
    """Malignant (0) or benign (1), from measurements in their own units (Wolberg et al., 1995).

    Args:
        seed: decides which tumour goes where; every split keeps the share of each class.
        validation_share: share of what is not test.
        test_share: share of all.

    Returns:
        `features`, FP32 [rows, 30], and the classes, INT64 [rows], by split.
    """
    from sklearn.datasets import load_breast_cancer
    from sklearn.model_selection import train_test_split

    bunch = load_breast_cancer()
    features, labels = bunch.data.astype(np.float32), bunch.target.astype(np.int64)
    rest, test = train_test_split(
        np.arange(len(labels)), test_size=test_share, stratify=labels, random_state=seed
    )
    train, validation = train_test_split(
        rest, test_size=validation_share, stratify=labels[rest], random_state=seed
    )
    rows = {"train": train, "validation": validation, "test": test}
    return {name: ({"features": features[index]}, labels[index]) for name, index in rows.items()}
