"""Checks that a `.pt2` archive is data: opening one can otherwise run any code.

In: the path of the archive. Out: nothing, or an error that names the code.

`torch.export.load` unpickles weights and constants, evaluates the expressions of sizes and guards
as Python, and looks operators up by any name below `torch`. Programs that torch writes need none of
this beyond tensors, arithmetic and torch's own operators, and nothing else passes here.
"""

import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from model_store.document import DocumentLimits, parse_document
from model_store.errors import DocumentError
from training.errors import SourceError
from training.importing.sources.archive import member_names, read_member

PROGRAM_LIMITS = DocumentLimits(2**27, 20_000_000)
"""Limits of a program, whose text grows with its operators."""
CODE_CAN = (
    "code in a file can do all that you can on this machine, such as read your keys or delete your "
    "files; pass"
)
WHAT_CODE_CAN_DO = f"{CODE_CAN} --allow-pickle only for files that you trust"

_CALL = re.compile(r"([A-Za-z_][\w.]*)\s*\(")
_ATTRIBUTE = re.compile(r"\.\s*([A-Za-z_]\w*)")
_CALLS = frozenset({
    "Symbol", "Integer", "Float", "Rational", "Add", "Mul", "Pow", "Max", "Min", "Mod", "Abs",
    "floor", "ceiling", "FloorDiv", "CeilDiv", "CleanDiv", "ModularIndexing", "PythonMod", "Where",
    "IntTrueDiv", "FloatTrueDiv", "ToFloat", "TruncToInt", "FloorToInt", "CeilToInt", "RoundToInt",
    "PowByNatural", "LShift", "RShift", "BitwiseFn_bitwise_and", "BitwiseFn_bitwise_or",
    "Eq", "Ne", "Lt", "Le", "Gt", "Ge", "And", "Or", "Not", "Equality", "Unequality",
    "GreaterThan", "StrictGreaterThan", "LessThan", "StrictLessThan", "size", "stride",
    "storage_offset", "min", "max", "and", "or", "not", "if", "else", "in", "is",
})  # fmt: skip
"""Names that torch calls in expressions of sizes and in guards, and words before a bracket."""
_ATTRIBUTES = frozenset({"size", "stride", "storage_offset", "shape"})
_TARGETS = re.compile(
    r"(torch\.ops\.(aten|prims|prim|higher_order|quantized|quantized_decomposed|torchao)\.[\w.]+"
    r"|_operator\.(add|sub|mul|floordiv|truediv|mod|pow|neg|pos|eq|ne|lt|le|gt|ge|and_|or_|not_|"
    r"lshift|rshift|getitem|matmul)"
    r"|math\.(ceil|floor|sqrt|trunc)"
    r"|torch\.sym_(int|float|max|min|not|ite|sum|sqrt|constrain_range_for_size)"
    r"|torch\._sym_sqrt|torch\.utils\._sympy\.[\w.]+)"
)
_WITH_FILES = re.compile(r"torch\.ops\.\w+\.(from_file|save|rpc_\w+)(\.\w+)?")
"""Operators of torch that open a file by its name, to write it too, or call other machines."""


def check_program(path: Path, where: str, allow_pickle: bool) -> Any:
    """Checks an archive; returns the document of its program.

    Args:
        path: the archive, our copy of it.
        where: its name for messages.
        allow_pickle: True to leave out the checks for code.

    Raises:
        SourceError: it is incomplete, or contains code.
    """
    names = member_names(path)
    programs = [n for n in names if re.fullmatch(r"models/[^/]+\.json", n)]
    if len(programs) != 1:
        raise SourceError(
            f"{where} has {len(programs)} programs, and one is read; write it with "
            "torch.export.save of torch 2.9 or newer"
        )
    document = _json(path, programs[0])
    if not allow_pickle:
        code = next(_code(path, names, document), None)
        if code is not None:
            raise SourceError(f"{where} contains code: {code}; {WHAT_CODE_CAN_DO}")
    return document


def _json(path: Path, name: str) -> Any:
    try:
        return parse_document(read_member(path, name), f"{path.name}: {name}", PROGRAM_LIMITS)
    except DocumentError as error:
        raise SourceError(str(error)) from error


def _code(path: Path, names: list[str], document: Any) -> Iterator[str]:
    """Yields a description of each place that is code."""
    yield from _in_pickles(path, names)
    waiting = [document]
    while waiting:
        value = waiting.pop()
        if isinstance(value, list):
            waiting += value
        if not isinstance(value, dict):
            continue
        waiting += value.values()
        target, expression = value.get("target"), value.get("expr_str")
        if isinstance(target, str) and not _is_operator(target):
            yield f"the operator {target[:80]!r}"
        if isinstance(expression, str) and not _is_arithmetic(expression):
            yield f"the expression {expression[:80]!r}"
    guards = document.get("guards_code") or [] if isinstance(document, dict) else []
    yield from (f"the guard {str(g)[:80]!r}" for g in guards if not _is_arithmetic(str(g)))


def _is_operator(target: str) -> bool:
    if not target.startswith(("torch", "_operator", "math", "#")):
        return True
    is_known = _TARGETS.fullmatch(target) is not None and "__" not in target
    return is_known and _WITH_FILES.fullmatch(target) is None


def _is_arithmetic(text: str) -> bool:
    return (
        "__" not in text
        and "lambda" not in text
        and all(name.rpartition(".")[2] in _CALLS for name in _CALL.findall(text))
        and all(name in _ATTRIBUTES for name in _ATTRIBUTE.findall(text))
        and not re.search(r"[\])'\"]\s*\(", text)  # a call of a result
    )


def _in_pickles(path: Path, names: list[str]) -> Iterator[str]:
    for name in names:
        if re.fullmatch(r"data/(weights|constants)/[^/]+\.json", name):
            yield from _in_payloads(path, name)
        elif name.startswith("data/") and name.endswith(".pt") and not _is_plain(path, name):
            yield f"the pickle {name}"


def _in_payloads(path: Path, config: str) -> Iterator[str]:
    folder = config.rpartition("/")[0]
    document = _json(path, config)
    entries = document.get("config", {}) if isinstance(document, dict) else {}
    for entry in entries.values() if isinstance(entries, dict) else ():
        name = f"{folder}/{entry.get('path_name')}" if isinstance(entry, dict) else ""
        if folder.endswith("constants") and not name.startswith(f"{folder}/tensor_"):
            yield f"the object {name}"
        elif isinstance(entry, dict) and entry.get("use_pickle") and not _is_plain(path, name):
            yield f"the pickle {name}"


def _is_plain(path: Path, name: str) -> bool:
    """Returns True if torch's restricted unpickler, which makes only tensors, reads a member."""
    import torch

    data = read_member(path, name)
    try:
        torch.load(io.BytesIO(data), weights_only=True, map_location="cpu")
    except Exception:  # the unpickler raises many types
        return False
    return True
