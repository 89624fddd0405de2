"""The changes that `make mutants` makes to a source file, one at a time.

In: the text of a module. Out: `Mutation`s, each a span of the text and its replacement. The
operators are those of DeMillo, Lipton and Sayward (1978) as far as Python has them: comparisons,
arithmetic, logic, numbers, and statements that are left out.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass

_COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
}  # fmt: skip
_ARITHMETIC: dict[type[ast.operator], str] = {
    ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.FloorDiv: "*", ast.Mod: "+",
    ast.LShift: ">>", ast.RShift: "<<", ast.BitAnd: "|", ast.BitOr: "&",
}  # fmt: skip
_UNTESTED_CALLS = {"debug", "info", "warning", "error", "exception", "log", "print", "echo"}
"""Nobody promises the words of a log."""


@dataclass(frozen=True, slots=True)
class Mutation:
    """One change.

    Attributes:
        line: on which it is, from 1.
        start, end: the span in the text, in characters.
        text: what stands there instead.
        what: the change in words.
    """

    line: int
    start: int
    end: int
    text: str
    what: str

    def applied(self, source: str) -> str:
        """The changed text."""
        return source[: self.start] + self.text + source[self.end :]


def mutations(source: str) -> list[Mutation]:
    """All changes of a module, in the order of its lines."""
    return sorted(_Finder(source).found(), key=lambda found: (found.start, found.text))


class _Finder:
    def __init__(self, source: str) -> None:
        self._source = source
        self._starts = [0]
        for line in source.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))
        self._lines = source.splitlines()

    def found(self) -> Iterator[Mutation]:
        """Walks through the functions of the module: what stands outside is tables and types."""
        for node in ast.walk(ast.parse(self._source)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                for statement in node.body:
                    yield from self._in(statement)

    def _in(self, node: ast.AST) -> Iterator[Mutation]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            return  # found by itself
        if _is_untested(node):
            return
        yield from self._of(node)
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "msg"):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from self._in(child)

    def _of(self, node: ast.AST) -> Iterator[Mutation]:
        match node:
            case ast.Compare(left=left, ops=[operator], comparators=[right]):
                text = _COMPARISONS[type(operator)]
                yield self._between(left, right, text, f"comparison becomes {text}")
            case ast.BinOp(left=left, op=operator, right=right) if type(operator) in _ARITHMETIC:
                if not any(isinstance(side, ast.JoinedStr) for side in (left, right)):
                    text = _ARITHMETIC[type(operator)]
                    yield self._between(left, right, text, f"operator becomes {text}")
            case ast.BoolOp(op=operator, values=[left, right, *_]):
                text = "or" if isinstance(operator, ast.And) else "and"
                yield self._between(left, right, text, f"becomes {text}")
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                yield self._whole(node, f"({self._text(operand)})", "not is left out")
            case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
                if not isinstance(test, ast.Compare | ast.UnaryOp | ast.Constant):
                    yield self._whole(test, f"(not ({self._text(test)}))", "condition is negated")
            case ast.Constant(value=bool() as value):
                yield self._whole(node, str(not value), f"{value} becomes {not value}")
            case ast.Constant(value=int() | float() as value):
                yield self._whole(node, f"({self._text(node)} + 1)", f"{value} becomes one more")
            case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
                yield self._whole(value, "None", "returns None")
            case ast.Expr(value=ast.Call() | ast.Await()) | ast.AugAssign():
                yield self._whole(node, "pass", "statement is left out")
            case ast.Continue():
                yield self._whole(node, "break", "continue becomes break")

    def _at(self, line: int, column: int) -> int:
        """The place of an offset in bytes, as `ast` counts."""
        octets = self._lines[line - 1].encode()[:column]
        return self._starts[line - 1] + len(octets.decode())

    def _span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return (
            self._at(node.lineno, node.col_offset),
            self._at(node.end_lineno, node.end_col_offset),
        )

    def _text(self, node: ast.expr) -> str:
        start, end = self._span(node)
        return self._source[start:end]

    def _whole(self, node: ast.expr | ast.stmt, text: str, what: str) -> Mutation:
        start, end = self._span(node)
        return Mutation(node.lineno, start, end, text, what)

    def _between(self, left: ast.expr, right: ast.expr, text: str, what: str) -> Mutation:
        """Replaces the operator between two operands, whose brackets stay."""
        start, end = self._span(left)[1], self._span(right)[0]
        between = self._source[start:end]
        opening = between[len(between.rstrip(" \n(")) :].replace(" ", "").replace("\n", "")
        closing = between[: len(between) - len(between.lstrip(" \n)"))]
        closing = closing.replace(" ", "").replace("\n", "")
        return Mutation(left.lineno, start, end, f"{closing} {text} {opening}", what)


def _is_untested(node: ast.AST) -> bool:
    """True for statements whose effect nobody promises: logs, messages of errors, assertions."""
    match node:
        case ast.Assert() | ast.Raise():
            return True
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name))):
            return name in _UNTESTED_CALLS
        case ast.Expr(value=ast.Constant()):
            return True
        case ast.JoinedStr():
            return True
    return False
