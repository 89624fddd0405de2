"""The one-line error message that clients get from a runtime's error."""

import pytest

from model_store.host.failure_text import MAX_LINE, error_text, plain_line, states_sizes

SCRIPTED = """The following operation failed in the TorchScript interpreter.
Traceback of TorchScript, serialized code (most recent call last):
  File "code/__torch__/net.py", line 5, in forward
    return torch.embedding(self.weight, i)
           ~~~~~~~~~~~~~~~ <--- HERE
RuntimeError: index out of range in self
"""
OPENVINO = """Exception from src/inference/src/cpp/infer_request.cpp:224:
Exception from src/plugins/intel_cpu/src/node.cpp:794:
[CPU] Add node 'y' Check 'a == 1' failed:
Eltwise dim index: 1 mismatch


"""


ADD = (
    "[ONNXRuntimeError] : 1 : FAIL : Non-zero status code returned while running Add node. "
    "Name:'/Add' Status Message: /onnxruntime_src/onnxruntime/core/providers/cpu/math/"
    "element_wise_ops.h:583 void onnxruntime::BroadcastIterator::Append(ptrdiff_t, ptrdiff_t) axis "
    "== 1 || axis == largest was false. Attempting to broadcast an axis by a dimension other than "
    "1. 2 by 8\n"
)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            ADD,
            "Add node '/Add': Attempting to broadcast an axis by a dimension other than 1. 2 by 8",
        ),
        (
            "[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : Got invalid dimensions for input: x",
            "Got invalid dimensions for input: x",
        ),
        (
            "[ONNXRuntimeError] : 1 : FAIL : Non-zero status code returned while running MatMul "
            "node. Name:'' Status Message: matmul_helper.h:59 Compute MatMul dimension mismatch",
            "MatMul node: MatMul dimension mismatch",
        ),
        (
            "[ONNXRuntimeError] : 1 : FAIL : Load model from /tmp/a b/model.onnx failed:This is an "
            "invalid model. Error: Duplicate definition of name (u).",
            "This is an invalid model. Error: Duplicate definition of name (u).",
        ),
        ("[ONNXRuntimeError] : 1", "[ONNXRuntimeError] : 1"),
        (SCRIPTED, "RuntimeError: index out of range in self"),
        (f"{SCRIPTED}Compile with TORCH_USE_CUDA_DSA.", "RuntimeError: index out of range in self"),
        ("Traceback of TorchScript:\n  here\nit ended", "it ended"),
        ("\n one reason\nand advice\n", "one reason"),
        ("", "no reason was given"),
        (OPENVINO, "[CPU] Add node 'y' Check 'a == 1' failed: Eltwise dim index: 1 mismatch"),
        ("Exception from infer.cpp:2:\n", "Exception from infer.cpp:2:"),
    ],
)
def test_the_line_says_what_went_wrong(text: str, line: str) -> None:
    assert plain_line(text) == line


def test_an_error_always_has_a_text_that_can_be_sent() -> None:
    class SilentError(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert error_text(SilentError()) == "SilentError, whose text cannot be read"
    assert error_text(ValueError("\udcff")) == "?"
    assert error_text(KeyError()) == "KeyError()"


def test_a_line_is_no_longer_than_a_caller_reads() -> None:
    assert len(plain_line("x" * 10_000)) == MAX_LINE


@pytest.mark.parametrize(
    ("text", "is_about_sizes"),
    [
        ("Attempting to broadcast an axis by a dimension other than 1. 5 by 6", True),
        (
            "Non concat axis dimensions must match: Axis 2 has mismatched dimensions of 8 and 9",
            True,
        ),
        ("Input initial_h must have shape {1,2,2}. Actual:{1,3,2}", True),
        ("The size of tensor a (5) must match the size of tensor b (6)", True),
        ("mat1 and mat2 shapes cannot be multiplied (2x5 and 6x2)", True),
        ("Guard failed: b.size()[1] == a.size()[1]", True),
        (OPENVINO, True),
        ("indices element out of data bounds, idx=9 must be within [-4,3]", False),
        ("index out of range in self", False),
        ("Failed to allocate memory for requested buffer of size 68719476736", False),
        ("DefaultCPUAllocator: can't allocate: you tried a tensor of that size", False),
    ],
)
def test_errors_about_sizes_are_told_from_others(text: str, is_about_sizes: bool) -> None:
    assert states_sizes(text) is is_about_sizes
