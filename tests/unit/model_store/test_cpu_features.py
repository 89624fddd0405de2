"""A processor's features are read from Linux' own report."""

from pathlib import Path

import pytest

from model_store.host.cpu_features import FEATURES, cpu_features


@pytest.mark.parametrize(
    ("text", "features"),
    [
        (
            "processor: 0\nflags\t\t: fpu avx512_vnni avx2 sse\nflags: amx_tile\n",
            ("avx2", "avx512_vnni"),
        ),
        ("Features\t: fp asimddp i8mm\n", ("asimddp", "i8mm")),
        ("", ()),
    ],
)
def test_features_in_their_fixed_order(
    tmp_path: Path, text: str, features: tuple[str, ...]
) -> None:
    (tmp_path / "cpuinfo").write_text(text)
    assert cpu_features(tmp_path / "cpuinfo") == features


def test_where_nothing_can_be_read_there_are_none(tmp_path: Path) -> None:
    assert cpu_features(tmp_path / "nowhere") == ()
    assert set(cpu_features()) <= set(FEATURES)
