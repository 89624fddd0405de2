"""Shares and durations as text: what is read, what is refused, and that texts are read back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_store.rollouts.amounts import duration_text, parse_duration, parse_share, share_text


@given(st.integers(0, 10**8))
def test_a_share_is_read_as_it_was_written(parts: int) -> None:
    share = parts / 10**8
    assert parse_share(share_text(share)) == pytest.approx(share, abs=1e-12)


@given(st.integers(0, 30 * 86_400_000))
def test_a_duration_is_read_as_it_was_written(milliseconds: int) -> None:
    seconds = milliseconds / 1000
    assert parse_duration(duration_text(seconds)) == pytest.approx(seconds, abs=1e-6)


@pytest.mark.parametrize(
    ("text", "share"), [("10%", 0.1), ("0.5 %", 0.005), ("100%", 1), (" 1% ", 0.01)]
)
def test_shares(text: str, share: float) -> None:
    assert parse_share(text) == share


@pytest.mark.parametrize(
    "text",
    ["", "10", "%", "101%", "-1%", "1e1%", "nan%", "inf%", "1%%", "9" * 10_000 + "%", "\u0661%"],
)
def test_other_texts_are_no_shares(text: str) -> None:
    with pytest.raises(ValueError, match="write a percentage") as caught:
        parse_share(text)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("text", "seconds"), [("30s", 30), ("5m", 300), ("1.5h", 5400), ("2d", 172_800), ("0s", 0)]
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "5", "m", "-5m", "5M", "1m30s", "nanm", "9" * 10_000 + "s"])
def test_other_texts_are_no_durations(text: str) -> None:
    with pytest.raises(ValueError, match="write a number and s, m, h or d") as caught:
        parse_duration(text)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("seconds", "text"), [(300, "5m"), (90, "90s"), (86_400, "1d"), (0.5, "0.5s"), (0, "0s")]
)
def test_durations_in_words(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text
