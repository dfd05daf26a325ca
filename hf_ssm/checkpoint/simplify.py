"""Edits of a module's source: calls with a fixed value, operations with one implementation, narrowed tables.

All edits keep the text of what remains, with its comments and layout.
"""

import ast
import re
import textwrap
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

__all__ = ["Narrowing", "simplify"]

_UNKNOWN = object()
# The section of a docstring, to the next one or the end.
_RAISES = re.compile(r"\n\n( *)Raises:\n(?:\1 +.*\n)+")


class _Edit(NamedTuple):
    """Replacement of the bytes from `start` to `end`, as syntax trees count columns in bytes of UTF-8."""

    start: int
    end: int
    text: str


class Narrowing(NamedTuple):
    """What a configuration decides.

    Attributes:
        tables: Names of tables, `NAME = {"key": value, ...}`, and the keys that they keep.
        attributes: Names of attributes, and the value of `self.NAME`, where it is read.
    """

    tables: tuple[tuple[str, tuple[str, ...]], ...] = ()
    attributes: tuple[tuple[str, bool], ...] = ()


def simplify(source: str, fixed: Mapping[str, Any], absent: Collection[str], narrowing: Narrowing) -> str:
    """Simplify the source of a module.

    - A call of a function of `fixed` becomes its value, and conditions are evaluated as far as that decides them:
      branches that cannot run are left out. So are conditions on attributes of `narrowing`.
    - `NAME = Operation(torch=function, ...)` is left out, and `NAME` becomes the function.
    - Classes of `absent` are left out of unions and of base classes, methods (`Class.name`) out of their classes.
    - Tables keep the keys that the configuration needs.

    Args:
        source: The source.
        fixed: Names of functions that the module imports, and what their calls return: `True`, `False` or `None`.
        absent: Names of classes and methods.
        narrowing: What the configuration decides.
    """
    known = {**fixed, **{f"self.{name}": value for name, value in narrowing.attributes}}
    while (edit := next(_edits(_Text(source), known, absent, dict(narrowing.tables)), None)) is not None:
        data = source.encode()
        source = (data[: edit.start] + edit.text.encode() + data[edit.end :]).decode()
    return source


class _Text:
    """A source and its syntax tree."""

    def __init__(self, source: str):
        self.data = source.encode()
        self.tree = ast.parse(source)
        lines = self.data.splitlines(keepends=True)
        self._starts = [0]
        for line in lines:
            self._starts.append(self._starts[-1] + len(line))

    def place(self, line: int, column: int = 0) -> int:
        return self._starts[line - 1] + column

    def span(self, node: Any) -> tuple[int, int]:
        return self.place(node.lineno, node.col_offset), self.place(node.end_lineno, node.end_col_offset)

    def of(self, node: ast.AST) -> str:
        start, end = self.span(node)
        return self.data[start:end].decode()

    def lines(self, first: int, last: int) -> str:
        """Whole lines, from `first` to `last` including both."""
        return self.data[self._starts[first - 1] : self._starts[last]].decode()


def _edits(
    text: _Text, known: Mapping[str, Any], absent: Collection[str], tables: Mapping[str, Collection[str]]
) -> Iterator[_Edit]:
    yield from _tables(text, tables)
    yield from _operations(text)
    imported = {a.name for n in text.tree.body if isinstance(n, ast.ImportFrom) for a in n.names}
    known = {name: value for name, value in known.items() if name in imported or name.startswith("self.")}
    if any(name.encode() in text.data for name in known):
        yield from _errors(text, known)
        for block in _blocks(text.tree):
            yield from _statements(text, block, known)
    for node in ast.walk(text.tree):
        yield from _expression(text, node, known)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
            for side, other in ((node.left, node.right), (node.right, node.left)):
                if isinstance(side, ast.Name) and side.id in absent:
                    yield _Edit(*text.span(node), text.of(other))
        elif isinstance(node, ast.ClassDef):
            for method in node.body:
                if isinstance(method, ast.FunctionDef) and f"{node.name}.{method.name}" in absent:
                    end = text.place((method.end_lineno or 0) + 1)
                    yield _Edit(text.place(method.lineno), end, "")
            bases = [base for base in node.bases if not (isinstance(base, ast.Name) and base.id in absent)]
            if len(bases) < len(node.bases):
                span = text.span(node.bases[0])[0], text.span(node.bases[-1])[1]
                yield _Edit(*span, ", ".join(map(text.of, bases)))


def _errors(text: _Text, known: Mapping[str, Any]) -> Iterator[_Edit]:
    """Docstrings of functions that raise no error without their checks: without the section about errors."""
    for node in ast.walk(text.tree):
        if isinstance(node, ast.FunctionDef) and isinstance(doc := node.body[0], ast.Expr):
            calls = [part.value for part in node.body[1:] if isinstance(part, ast.Expr)]
            is_checked = any(isinstance(call, ast.Call) and _value(call, known) is None for call in calls)
            if is_checked and not any(isinstance(part, ast.Raise) for part in ast.walk(node)):
                shorter = _RAISES.sub("\n", text.of(doc))
                if shorter != text.of(doc):
                    yield _Edit(*text.span(doc), shorter)


def _tables(text: _Text, tables: Mapping[str, Collection[str]]) -> Iterator[_Edit]:
    for node in text.tree.body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        table = getattr(node, "value", None)
        if isinstance(target, ast.Name) and target.id in tables and isinstance(table, ast.Dict):
            entries = {
                k.value: value for k, value in zip(table.keys, table.values, strict=True) if isinstance(k, ast.Constant)
            }
            kept = [f'"{key!s}": {text.of(value)}' for key, value in entries.items() if key in tables[target.id]]
            if len(kept) < len(entries):
                yield _Edit(*text.span(table), f"{{{', '.join(kept)}}}")


def _operations(text: _Text) -> Iterator[_Edit]:
    for node in text.tree.body:
        call = node.value if isinstance(node, ast.Assign) else None
        if not (
            isinstance(node, ast.Assign)
            and isinstance(call, ast.Call)
            and isinstance(call.func, ast.Name)
            and call.func.id == "Operation"
        ):
            continue
        functions = {keyword.arg: keyword.value for keyword in call.keywords}
        if isinstance(function := functions.get("torch"), (ast.Name, ast.Attribute)):
            (name,) = (target.id for target in node.targets if isinstance(target, ast.Name))
            for use in ast.walk(text.tree):
                if isinstance(use, ast.Name) and use.id == name and isinstance(use.ctx, ast.Load):
                    yield _Edit(*text.span(use), text.of(function))
            yield _Edit(text.place(node.lineno), text.place((node.end_lineno or 0) + 1), "")


def _blocks(tree: ast.AST) -> Iterator[list[ast.stmt]]:
    """All sequences of statements."""
    for node in ast.walk(tree):
        for part in ("body", "orelse", "finalbody"):
            block = getattr(node, part, None)
            if isinstance(block, list) and block and isinstance(block[0], ast.stmt):
                yield block


def _statements(text: _Text, block: list[ast.stmt], known: Mapping[str, Any]) -> Iterator[_Edit]:
    for number, node in enumerate(block):
        if isinstance(node, ast.If) and (value := _value(node.test, known)) is not _UNKNOWN:
            yield _decided(text, block, number, bool(value))
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            if _value(node.value, known) is not _UNKNOWN:
                yield _replaced(text, block, number, "")
        elif isinstance(node, (ast.Return, ast.Raise)) and node is not block[-1]:
            start, end = text.place((node.end_lineno or 0) + 1), text.place((block[-1].end_lineno or 0) + 1)
            yield _Edit(start, end, "")


def _decided(text: _Text, block: list[ast.stmt], number: int, holds: bool) -> _Edit:
    """The branch of an `if` or `elif` that runs."""
    node = block[number]
    assert isinstance(node, ast.If)
    first, last = text.place(node.lineno), text.place((node.end_lineno or 0) + 1)
    branch = node.body if holds else node.orelse
    is_elif = text.of(node).startswith("elif")
    if is_elif and holds:
        indent = " " * node.col_offset
        return _Edit(first, last, f"{indent}else:\n{text.lines(branch[0].lineno, branch[-1].end_lineno or 0)}")
    if branch and not holds and text.of(branch[0]).startswith("elif"):
        rest = text.lines(branch[0].lineno, branch[0].end_lineno or 0)
        return _Edit(first, last, rest if is_elif else rest.replace("elif", "if", 1))
    if is_elif:
        # From the line of `else:` on.
        return _Edit(first, text.place((node.body[-1].end_lineno or 0) + 1), "")
    if not branch:
        return _replaced(text, block, number, "")
    begin = branch[0].lineno
    while text.lines(begin - 1, begin - 1).lstrip().startswith("#"):
        begin -= 1
    lines = textwrap.dedent(text.lines(begin, branch[-1].end_lineno or 0))
    return _replaced(text, block, number, textwrap.indent(lines, " " * node.col_offset))


def _replaced(text: _Text, block: list[ast.stmt], number: int, lines: str) -> _Edit:
    """A statement with the comment before it, if that is about its condition, replaced by other lines."""
    node = block[number]
    if not lines and len(block) == 1:
        lines = f"{' ' * node.col_offset}pass\n"
    first = node.lineno
    while not lines and text.lines(first - 1, first - 1).lstrip().startswith("#"):
        first -= 1
    return _Edit(text.place(first), text.place((node.end_lineno or 0) + 1), lines)


def _expression(text: _Text, node: ast.AST, known: Mapping[str, Any]) -> Iterator[_Edit]:
    if isinstance(node, ast.IfExp) and (value := _value(node.test, known)) is not _UNKNOWN:
        yield _Edit(*text.span(node), text.of(node.body if value else node.orelse))
    elif isinstance(node, ast.IfExp) and text.of(node.body) == text.of(node.orelse):
        yield _Edit(*text.span(node), text.of(node.body))
    elif isinstance(node, ast.BoolOp):
        neutral = isinstance(node.op, ast.And)
        values = [_value(operand, known) for operand in node.values]
        if _UNKNOWN in values and any(value is not _UNKNOWN and bool(value) is neutral for value in values):
            unknown = [operand for operand, value in zip(node.values, values, strict=True) if value is _UNKNOWN]
            kept = [text.of(o) if len(unknown) == 1 else _operand(text, o) for o in unknown]
            yield _Edit(*text.span(node), (" and " if neutral else " or ").join(kept))
    elif isinstance(node, (ast.Call, ast.Attribute)) and (value := _value(node, known)) is not _UNKNOWN:
        yield _Edit(*text.span(node), repr(value))


def _operand(text: _Text, node: ast.AST) -> str:
    needs_brackets = isinstance(node, (ast.BoolOp, ast.IfExp, ast.Lambda, ast.NamedExpr))
    return f"({text.of(node)})" if needs_brackets else text.of(node)


def _value(node: ast.AST, known: Mapping[str, Any]) -> Any:
    """The value of an expression as far as known calls and attributes decide it, or `_UNKNOWN`."""
    if isinstance(node, ast.Call) and isinstance(node.func, (ast.Attribute, ast.Name)):
        return known.get(ast.unparse(node.func), _UNKNOWN)
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
        return known.get(ast.unparse(node), _UNKNOWN)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        value = _value(node.operand, known)
        return value if value is _UNKNOWN else not value
    if isinstance(node, ast.BoolOp):
        values = [_value(operand, known) for operand in node.values]
        decides = isinstance(node.op, ast.Or)
        if any(value is not _UNKNOWN and bool(value) is decides for value in values):
            return decides
        return _UNKNOWN if _UNKNOWN in values else not decides
    if isinstance(node, ast.NamedExpr):
        return _value(node.value, known)
    if isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.Is, ast.IsNot)):
        left, right = (_value(side, known) for side in (node.left, node.comparators[0]))
        decided = left is not _UNKNOWN and right is not _UNKNOWN
        return (left is right) is isinstance(node.ops[0], ast.Is) if decided else _UNKNOWN
    if isinstance(node, ast.Constant) and (node.value is None or isinstance(node.value, bool)):
        return node.value
    return _UNKNOWN
