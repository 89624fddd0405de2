"""Tensors whose values nobody may keep, by the rules of samples."""

from typing import Any, Literal

import pytest

from services.gateway.config import GatewaySettings
from services.gateway.payload_settings import redactions
from services.gateway.payloads.rule import PayloadRule


def settings_of(rules: dict[str, PayloadRule]) -> GatewaySettings:
    fields: dict[str, Any] = {"payload_samples": rules}
    return GatewaySettings(**fields)


@pytest.mark.parametrize(
    ("rules", "is_redacted"),
    [
        ({}, True),
        ({"other": PayloadRule()}, True),
        ({"m": PayloadRule()}, False),
        ({"m*": PayloadRule(keep="everything")}, False),
        ({"m": PayloadRule(keep="statistics")}, True),
        ({"m": PayloadRule(redact=("x*",))}, True),
    ],
)
def test_values_are_kept_only_where_payloads_are_sampled(
    rules: dict[str, PayloadRule], is_redacted: bool
) -> None:
    assert redactions(settings_of(rules))("m", "x", "FP32") is is_redacted


@pytest.mark.parametrize(("keep", "is_redacted"), [("numbers", True), ("everything", False)])
def test_texts_are_kept_only_where_everything_is(
    keep: Literal["numbers", "everything"], is_redacted: bool
) -> None:
    assert redactions(settings_of({"m": PayloadRule(keep=keep)}))("m", "x", "BYTES") is is_redacted
