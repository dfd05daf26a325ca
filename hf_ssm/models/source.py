"""Source code as top-level statements: the module names that each binds and uses, and its text under other names.

The analysis uses `ast`, the text is cut from the file, so that comments and formatting survive.
"""

import ast
import copy
import importlib.util
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["Import", "Module", "Statement", "read_module"]

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_SCOPES = (*_FUNCTIONS, ast.ClassDef, ast.Lambda, *_COMPREHENSIONS)
# Definitions that only concern the module object itself.
_MODULE_HOOKS = frozenset({"__all__", "__dir__", "__getattr__"})


class Import(NamedTuple):
    """One imported name.

    Attributes:
        module: Absolute name of the module.
        name: The name in it; `None` for the module itself (`import module`).
        bound: The name in the importing module.
        line: Line of the statement.
    """

    module: str
    name: str | None
    bound: str
    line: int


class _Reference(NamedTuple):
    """A place where a statement names something of its module.

    Attributes:
        node: The syntax node.
        attribute: Its attribute that holds the name.
        name: The name.
        inside: The f-string around `node`, whose parts have no reliable position before Python 3.12.
        is_ambiguous: The class body around `node` binds the name as well, so that it may mean either.
    """

    node: Any
    attribute: str
    name: str
    inside: Any = None
    is_ambiguous: bool = False


@dataclass(eq=False)
class Statement:
    """A top-level statement of a module, with the comments before it and the docstring of a constant after it.

    Attributes:
        module: Name of the module.
        node: The syntax node.
        text: Its lines.
        line: Number of the first of these lines.
        gap: Number of empty lines before it.
        binds: Module names that it binds.
        uses: Module names that it reads, builtins included.
        triggers: Module names whose presence requires this statement, which acts on them (`table[key] = value`,
            `@operator.register_fake`). `None`: a side effect that the whole module requires.
        decorators: Names of functions that decorate it.
    """

    module: str
    node: ast.stmt
    text: str
    line: int
    gap: int
    references: list[_Reference] = field(init=False)
    binds: frozenset[str] = field(init=False)
    uses: frozenset[str] = field(init=False)
    triggers: frozenset[str] | None = field(init=False)
    decorators: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        finder = _Finder()
        finder.visit(self.node)
        self.references = finder.references
        self.binds = frozenset(_bound_names([self.node]))
        self.uses = frozenset(reference.name for reference in self.references) - self.binds
        self.triggers = _triggers(self.node, self.binds)
        plain = [getattr(decorator, "func", decorator) for decorator in getattr(self.node, "decorator_list", [])]
        self.decorators = frozenset(decorator.id for decorator in plain if isinstance(decorator, ast.Name))

    @property
    def is_definition(self) -> bool:
        """Whether it is a function or a class."""
        return isinstance(self.node, (*_FUNCTIONS, ast.ClassDef))

    @property
    def rebinds(self) -> frozenset[str]:
        """Module names that functions in it rebind (`global name`)."""
        return frozenset(found.name for found in self.references if isinstance(found.node, ast.Global))

    def imports(self) -> Iterator[ast.Import | ast.ImportFrom]:
        """Imports inside the statement that are not guarded by `try`."""
        waiting: list[ast.AST] = [self.node]
        while waiting:
            node = waiting.pop()
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                yield node
            elif not isinstance(node, ast.Try):
                waiting.extend(ast.iter_child_nodes(node))

    def renamed(self, names: Mapping[str, str]) -> str:
        """The text with other names.

        Args:
            names: Module name -> new name; names that are missing stay.

        Raises:
            ValueError: A name that cannot be replaced, such as one that a class body also binds.
        """
        wanted = [found for found in self.references if names.get(found.name, found.name) != found.name]
        if not wanted:
            return self.text
        edits = []
        for reference in wanted:
            edits += _edits(reference, names[reference.name], self.text, self.line)
        lines = [line.encode() for line in self.text.split("\n")]
        for row, start, end, new in sorted(set(edits), reverse=True):
            lines[row] = lines[row][:start] + new.encode() + lines[row][end:]
        text = b"\n".join(lines).decode()
        expected = ast.Module([self._expected(wanted, names), *ast.parse(self.text).body[1:]], [])
        if any(found.is_ambiguous for found in wanted) or ast.dump(ast.parse(text)) != ast.dump(expected):
            changed = ", ".join(sorted({reference.name for reference in wanted}))
            raise ValueError(f"{self.module}:{self.node.lineno}: {changed} cannot be renamed: use another name there")
        return text

    def _expected(self, wanted: list[_Reference], names: Mapping[str, str]) -> ast.stmt:
        """The syntax tree that `renamed` must give."""
        memo: dict[int, Any] = {}
        expected = copy.deepcopy(self.node, memo)
        for reference in wanted:
            node: Any = memo[id(reference.node)]
            new = names[reference.name]
            if isinstance(node, ast.Global):
                node.names = [new if name == reference.name else name for name in node.names]
            elif isinstance(node, ast.Constant):
                node.value = _replace(str(node.value), reference.name, new)
            else:
                setattr(node, reference.attribute, new)
        return expected


@dataclass
class Module:
    """A module as a list of statements.

    Attributes:
        name: Its full name.
        path: Its file.
        docstring: Its docstring.
        imports: Imported names by the name they are bound to.
        statements: All other statements but the docstring, `__all__`, and hooks of the module object.
        binders: Module name -> the statements that bind it.
        words: All words of the file.
    """

    name: str
    path: Path
    docstring: str
    imports: dict[str, Import]
    statements: list[Statement]
    binders: dict[str, list[Statement]]
    words: frozenset[str]


def read_module(name: str) -> Module:
    """Read the source of a module that is imported, or can be.

    Raises:
        ValueError: The module has no source file, or uses `from module import *` or `from __future__ import`.
    """
    path = _source_path(name)
    source = path.read_text(encoding="utf-8")
    tree = ast.parse(source, filename=str(path))
    lines = source.split("\n")
    module = Module(name, path, ast.get_docstring(tree) or "", {}, [], {}, frozenset(re.findall(r"\w+", source)))
    end = 0
    for node in tree.body:
        first = min([node.lineno, *(decorator.lineno for decorator in getattr(node, "decorator_list", []))]) - 1
        last = node.end_lineno or node.lineno
        while first > end and lines[first - 1].lstrip().startswith("#"):
            first -= 1
        gap = 0
        while first - gap > end and not lines[first - gap - 1].strip():
            gap += 1
        _add(module, node, lines, first, last, gap)
        end = last
    for statement in module.statements:
        for bound in statement.binds:
            module.binders.setdefault(bound, []).append(statement)
    return module


def _add(module: Module, node: ast.stmt, lines: list[str], first: int, last: int, gap: int) -> None:
    """Add one node of the file to a module."""
    text = "\n".join(lines[first:last])
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        for imported in _imported(node, module):
            module.imports[imported.bound] = imported
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        # The docstring of the constant before it; the module's own has no statement before it.
        if module.statements and isinstance(node.value.value, str):
            module.statements[-1].text += f"\n{text}"
    elif not _MODULE_HOOKS & set(_bound_names([node])):
        module.statements.append(Statement(module.name, node, text, first + 1, gap))


def _source_path(name: str) -> Path:
    module = sys.modules.get(name)
    path = getattr(module, "__file__", None)
    if module is None:
        spec = importlib.util.find_spec(name)
        path = None if spec is None else spec.origin
    if path is None or not path.endswith(".py"):
        raise ValueError(f"the module {name!r} has no source file: define models in files of a package")
    return Path(path)


def _imported(node: ast.Import | ast.ImportFrom, module: Module) -> Iterator[Import]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            if alias.asname and "." in alias.name:
                parent, _, name = alias.name.rpartition(".")
                yield Import(parent, name, alias.asname, node.lineno)
            else:
                yield Import(alias.name, None, alias.asname or alias.name.partition(".")[0], node.lineno)
        return
    target = node.module or ""
    if node.level:
        package = module.name.split(".")
        package = package[: len(package) - node.level + (module.path.name == "__init__.py")]
        target = ".".join([*package, *filter(None, [node.module])])
    for alias in node.names:
        if alias.name == "*" or target == "__future__":
            raise ValueError(f"{module.path}:{node.lineno}: a checkpoint's code cannot use `{ast.unparse(node)}`")
        yield Import(target, alias.name, alias.asname or alias.name, node.lineno)


def _bound_names(nodes: list[Any]) -> Iterator[str]:
    """Names that nodes bind in the scope they belong to; nested scopes are left out but for their own names."""
    for node in nodes:
        if isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
            yield node.name
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.Name):
            if not isinstance(node.ctx, ast.Load):
                yield node.id
        elif isinstance(node, _COMPREHENSIONS):
            # An assignment expression in a comprehension binds in the scope around it.
            yield from (inner.target.id for inner in ast.walk(node) if isinstance(inner, ast.NamedExpr))
        elif not isinstance(node, ast.Lambda):
            # Handlers of exceptions and patterns hold names as strings.
            for attribute in ("name", "rest"):
                if isinstance(bound := getattr(node, attribute, None), str) and not isinstance(node, ast.alias):
                    yield bound
            yield from _bound_names(list(ast.iter_child_nodes(node)))


def _triggers(node: ast.stmt, binds: frozenset[str]) -> frozenset[str] | None:
    decorators = getattr(node, "decorator_list", [])
    if binds:
        roots = [_root(decorator) for decorator in decorators]
        return frozenset(root for root in roots if root)
    targets = getattr(node, "targets", [getattr(node, "target", getattr(node, "value", None))])
    roots = [_root(target) for target in targets if target is not None]
    return frozenset(root for root in roots if root) if roots and all(roots) else None


def _root(node: ast.AST) -> str | None:
    """`a` of `a.b`, `a[b]`, `a.b(...)`; `None` for anything else, such as a plain call."""
    if isinstance(node, ast.Call):
        node = node.func
    if not isinstance(node, (ast.Attribute, ast.Subscript)):
        return None
    while isinstance(node, (ast.Attribute, ast.Subscript, ast.Call)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else None


class _Finder(ast.NodeVisitor):
    """Collects the references of a statement to names of its module."""

    def __init__(self) -> None:
        self.references: list[_Reference] = []
        # Innermost last: names that a scope binds, and whether it is a class, whose names inner scopes do not see.
        self._scopes: list[tuple[set[str], bool]] = []
        self._inside: Any = None

    def _refer(self, node: Any, attribute: str, name: str) -> None:
        if any(name in names for names, is_class in self._scopes if not is_class):
            return
        in_class = bool(self._scopes) and self._scopes[-1][1] and name in self._scopes[-1][0]
        if not in_class or (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)):
            self.references.append(_Reference(node, attribute, name, self._inside, in_class))

    def visit_Name(self, node: ast.Name) -> None:
        self._refer(node, "id", node.id)

    def visit_Global(self, node: ast.Global) -> None:
        for name in node.names:
            self.references.append(_Reference(node, "names", name))

    def visit_alias(self, node: ast.alias) -> None:
        bound = node.asname or node.name.partition(".")[0]
        # `import a.b` binds `a`, but `import a.b as c` binds `a.b`.
        is_path = node.asname is None and "." in node.name
        self.references.append(_Reference(node, "asname", bound, is_ambiguous=is_path))

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        if node.name:
            self._refer(node, "name", node.name)
        self.generic_visit(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        outer, self._inside = self._inside, self._inside or node
        self.generic_visit(node)
        self._inside = outer

    def visit_FunctionDef(self, node: Any) -> None:
        self._refer(node, "name", node.name)
        arguments = node.args
        for outside in (*node.decorator_list, *arguments.defaults, *filter(None, arguments.kw_defaults)):
            self.visit(outside)
        for argument in _arguments(arguments):
            self._annotation(argument.annotation)
        self._annotation(node.returns)
        names = {argument.arg for argument in _arguments(arguments)} | set(_bound_names(node.body))
        declared = {name for inner in _same_scope(node.body) if isinstance(inner, ast.Global) for name in inner.names}
        self._inner(names - declared, node.body)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Lambda(self, node: ast.Lambda) -> None:
        for outside in (*node.args.defaults, *filter(None, node.args.kw_defaults)):
            self.visit(outside)
        self._inner({argument.arg for argument in _arguments(node.args)}, [node.body])

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._refer(node, "name", node.name)
        for outside in (*node.decorator_list, *node.bases, *node.keywords):
            self.visit(outside)
        self._inner(set(_bound_names(node.body)), node.body, is_class=True)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self._annotation(node.annotation)
        for part in (node.target, node.value):
            if part is not None:
                self.visit(part)

    def _comprehension(self, node: Any) -> None:
        first, *others = node.generators
        self.visit(first.iter)
        names = set(_bound_names([generator.target for generator in node.generators]))
        values = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        self._inner(names, [first.target, *first.ifs, *others, *values])

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _comprehension

    def _inner(self, names: set[str], nodes: list[Any], *, is_class: bool = False) -> None:
        self._scopes.append((names, is_class))
        for node in nodes:
            self.visit(node)
        self._scopes.pop()

    def _annotation(self, node: ast.expr | None) -> None:
        """An annotation; names in its strings are references too."""
        if node is None:
            return
        self.visit(node)
        for part in ast.walk(node):
            if isinstance(part, ast.Constant) and isinstance(part.value, str):
                for name in re.findall(r"(?<![\w.])[^\W\d]\w*", part.value):
                    self._refer(part, "value", name)


def _arguments(arguments: ast.arguments) -> list[ast.arg]:
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return named + [argument for argument in (arguments.vararg, arguments.kwarg) if argument is not None]


def _same_scope(nodes: list[Any]) -> Iterator[ast.AST]:
    for node in nodes:
        yield node
        if not isinstance(node, _SCOPES):
            yield from _same_scope(list(ast.iter_child_nodes(node)))


_Edit = tuple[int, int, int, str]


def _edits(reference: _Reference, new: str, text: str, first_line: int) -> list[_Edit]:
    """Replacements (row, start, end, text) in the lines of a statement; columns count bytes."""
    node: Any = reference.inside or reference.node
    rows = text.split("\n")
    top, bottom = node.lineno - first_line, node.end_lineno - first_line
    start, end = node.col_offset, node.end_col_offset
    if isinstance(node, ast.Name):
        return [(top, start, end, new)]
    if isinstance(node, ast.alias):
        return [(top, end, end, f" as {new}") if node.asname is None else (top, end - len(node.asname), end, new)]
    if isinstance(node, (*_FUNCTIONS, ast.ClassDef, ast.ExceptHandler)):
        # The first such word after `def`, `class` or `as`.
        bottom = top
    found = []
    for row in range(top, bottom + 1):
        line = rows[row].encode()
        first = start if row == top else 0
        last = end if row == node.end_lineno - first_line else len(line)
        for match in re.finditer(rf"(?<![\w.]){re.escape(reference.name)}(?!\w)".encode(), line[:last]):
            if match.start() >= first and _is_code(node, line[first : match.start()]):
                found.append((row, match.start(), match.end(), new))
                if bottom == top and not isinstance(node, (ast.JoinedStr, ast.Constant)):
                    break
    return found


def _is_code(node: ast.AST, before: bytes) -> bool:
    """Whether the text after `before` in an f-string is in a replacement field; true for other nodes."""
    depth, position = 0, 0
    while isinstance(node, ast.JoinedStr) and position < len(before):
        if depth == 0 and before[position : position + 2] in (b"{{", b"}}"):
            position += 1
        else:
            depth += {b"{": 1, b"}": -1}.get(before[position : position + 1], 0)
        position += 1
    return depth > 0 or not isinstance(node, ast.JoinedStr)


def _replace(text: str, name: str, new: str) -> str:
    return re.sub(rf"(?<![\w.]){re.escape(name)}(?!\w)", new, text)
