"""The one-line error message that clients get from a runtime's error."""

import pytest

from services.inference.scheduling.failure_text import MAX_LINE, plain_line

SCRIPTED = """The following operation failed in the TorchScript interpreter.
Traceback of TorchScript, serialized code (most recent call last):
  File "code/__torch__/net.py", line 5, in forward
    return torch.embedding(self.weight, i)
           ~~~~~~~~~~~~~~~ <--- HERE
RuntimeError: index out of range in self
"""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (SCRIPTED, "RuntimeError: index out of range in self"),
        (f"{SCRIPTED}Compile with TORCH_USE_CUDA_DSA.", "RuntimeError: index out of range in self"),
        ("Traceback of TorchScript:\n  here\nit ended", "it ended"),
        ("\n one reason\nand advice\n", "one reason"),
        ("", "no reason was given"),
    ],
)
def test_the_line_says_what_went_wrong(text: str, line: str) -> None:
    assert plain_line(text) == line


def test_a_line_is_no_longer_than_a_caller_reads() -> None:
    assert len(plain_line("x" * 10_000)) == MAX_LINE
