"""Modules as statements, and which of them a set of definitions needs."""

import ast
import functools
import importlib.util
import re
import sys
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from hf_ssm.checkpoint.plain import ABSENT, FIXED_CALLS, REPLACED
from hf_ssm.checkpoint.simplify import Narrowing, simplify

__all__ = ["DEFINITIONS", "Import", "Member", "Module", "Selection", "Sources", "Statement", "Uses"]

_PACKAGE = __name__.partition(".")[0]
_PLAIN = f"{__name__.rpartition('.')[0]}.plain"
_ALL = Narrowing()
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
# Definitions that only concern the module object itself.
_MODULE_HOOKS = frozenset({"__all__", "__dir__", "__getattr__"})

Name = tuple[str, str]
"""A module, and a name that it defines."""


class Import(NamedTuple):
    """A name imported at the top of a module; `name` is `None` for `import module`."""

    module: str
    name: str | None
    bound: str
    line: int


class Uses(NamedTuple):
    """What code reads; an over-estimate, as local names are not told apart.

    Attributes:
        names: Names.
        attributes: Names of attributes, and strings that may be such names.
    """

    names: frozenset[str]
    attributes: frozenset[str]


@dataclass(frozen=True)
class Member:
    """A method that a class can lack: neither Python nor another library calls it.

    Attributes:
        name: Its name.
        first, last: Its lines in the text of the class, counted from 0, `last` excluded.
        uses: What it reads.
    """

    name: str
    first: int
    last: int
    uses: Uses


@dataclass(frozen=True, eq=False)
class Statement:
    """A top-level statement of a module.

    Attributes:
        module: Name of the module.
        number: Its place in the module.
        node: The syntax node.
        text: Its source, with comments before it and the docstring of a constant after it.
        gap: Number of empty lines before it.
        binds: Names that it defines.
        uses: What it reads, without its members.
        members: Methods that are left out where nothing reads an attribute of their name.
        trigger: For a statement that acts on a name of the module (`operator.register(...)`, `table[key] = value`,
            `@operator.register`): that name, whose presence requires it. `""`: a call that the whole module requires.
    """

    module: str
    number: int
    node: ast.stmt
    text: str
    gap: int
    binds: frozenset[str]
    uses: Uses
    members: tuple[Member, ...]
    trigger: str | None

    @property
    def key(self) -> tuple[str, int]:
        return self.module, self.number

    @property
    def line(self) -> int:
        return self.node.lineno

    def uses_with(self, attributes: Collection[str]) -> Uses:
        """What it reads with the members of these names."""
        parts = [self.uses, *(member.uses for member in self.members if member.name in attributes)]
        return Uses(*(frozenset().union(*kinds) for kinds in zip(*parts, strict=True)))

    def rendered(self, attributes: Collection[str]) -> str:
        """Its text with the members of these names."""
        lines: list[str | None] = list(self.text.split("\n"))
        for member in self.members:
            if member.name not in attributes:
                lines[member.first : member.last] = [None] * (member.last - member.first)
        if self.members and not set(attributes) & {member.name for member in self.members}:
            # Nothing may be left below the line of the class.
            is_empty = isinstance(self.node, ast.ClassDef) and len(self.members) == len(self.node.body)
            lines += ["    pass"] if is_empty else []
        text = "\n".join(line for line in lines if line is not None)
        return re.sub(r"\n{3,}", "\n\n", text).rstrip("\n") if self.members else text


class Module(NamedTuple):
    """A module; `defined` has the statements by the names that they bind."""

    name: str
    path: str
    docstring: str
    imports: dict[str, Import]
    statements: list[Statement]
    defined: dict[str, list[Statement]]


class Selection(NamedTuple):
    """Statements that definitions need, in order of execution, and the names of the attributes that these read."""

    statements: list[Statement]
    attributes: frozenset[str]


class Sources:
    """The modules that the code of families consists of, each after those that it imports.

    Args:
        homes: Modules of configurations and models.
        narrowing: What a configuration decides.
    """

    def __init__(self, homes: Iterable[str], narrowing: Narrowing = _ALL):
        homes = list(homes)
        # A family may be defined in a package of its own.
        self._packages = {_PACKAGE, *(home.partition(".")[0] for home in homes)}
        self._narrowing = narrowing
        self.modules: dict[str, Module] = {}
        for home in (_PLAIN, *homes):
            self._read(home, ())
        self._triggered = [s for module in self.modules.values() for s in module.statements if s.trigger is not None]

    def _is_own(self, module: str) -> bool:
        return module.partition(".")[0] in self._packages

    def _read(self, name: str, importers: tuple[str, ...]) -> None:
        if name in self.modules:
            return
        if name in importers:
            raise ValueError(f"modules that import each other cannot be bundled: {' -> '.join((*importers, name))}")
        module = _read_module(name, self._narrowing)
        for imported in module.imports.values():
            if self._is_own(imported.module):
                self._read(imported.module, (*importers, name))
        self.modules[name] = module

    def meaning(self, module: str, name: str) -> Name | Import | None:
        """What a name means in a module: a definition (module, name), an import, or `None` for other names."""
        source = self.modules[module]
        if name in source.defined:
            is_replaced = name in REPLACED and module.startswith(f"{_PACKAGE}.") and module != _PLAIN
            return (_PLAIN, name) if is_replaced else (module, name)
        imported = source.imports.get(name)
        if imported is None or not self._is_own(imported.module):
            return imported
        definition = None if imported.name is None else self.meaning(imported.module, imported.name)
        if definition is None or imported.name != imported.bound:
            raise ValueError(
                f"{source.path}:{imported.line}: `{name}` cannot be bundled: write `from module import name`, where "
                "the module defines the name, and without `as`"
            )
        return definition

    def needed(self, module: str, uses: Uses) -> Iterator[Name]:
        """Definitions of the package that code of a module reads."""
        for name in uses.names:
            meaning = self.meaning(module, name)
            if meaning is not None and not isinstance(meaning, Import):
                yield meaning

    def reachable(self, roots: Iterable[Name], attributes: Iterable[str] = ()) -> Selection:
        """The statements that define `roots` and all that these use.

        Args:
            roots: Definitions.
            attributes: Names of attributes that other code reads.
        """
        names: set[Name] = set()
        present: set[str] = set()
        chosen: set[Statement] = set()
        # Each public class calls this one at the end of its file.
        read = {"register_for_auto_class"}
        waiting_members: dict[str, list[tuple[str, Member]]] = defaultdict(list)
        waiting = list(roots)

        def use(module: str, uses: Uses) -> None:
            waiting.extend(self.needed(module, uses))
            for attribute in uses.attributes - read:
                read.add(attribute)
                for home, member in waiting_members.pop(attribute, ()):
                    use(home, member.uses)

        def choose(statement: Statement) -> None:
            chosen.add(statement)
            self._check_inner_imports(statement)
            waiting.extend(self.needed(statement.module, Uses(statement.binds, frozenset())))
            for member in statement.members:
                if member.name in read:
                    use(statement.module, member.uses)
                else:
                    waiting_members[member.name].append((statement.module, member))
            use(statement.module, statement.uses)

        use(_PLAIN, Uses(frozenset(), frozenset(attributes)))
        while waiting:
            while waiting:
                if (name := waiting.pop()) not in names:
                    names.add(name)
                    present.add(name[0])
                    for statement in self.modules[name[0]].defined[name[1]]:
                        if statement not in chosen:
                            choose(statement)
            for statement in self._triggered:
                home, target = statement.module, statement.trigger
                if statement not in chosen and (self.meaning(home, target) in names if target else home in present):
                    choose(statement)
        ordered = [s for module in self.modules.values() for s in module.statements if s in chosen]
        return Selection(ordered, frozenset(read))

    def _check_inner_imports(self, statement: Statement) -> None:
        waiting: list[ast.AST] = [statement.node]
        while waiting:
            node = waiting.pop()
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
                if getattr(node, "level", 0) or any(map(self._is_own, names)):
                    raise ValueError(
                        f"{self.modules[statement.module].path}:{node.lineno}: `{ast.unparse(node)}` is inside a "
                        "definition: import names of the package at the top of the module, and modules that a "
                        "checkpoint can lack by `importlib.import_module`"
                    )
            elif not isinstance(node, ast.Try):
                waiting.extend(ast.iter_child_nodes(node))


def _read_module(name: str, narrowing: Narrowing) -> Module:
    path = getattr(sys.modules.get(name), "__file__", None)
    if name not in sys.modules:
        spec = importlib.util.find_spec(name)
        path = None if spec is None else spec.origin
    if path is None or not path.endswith(".py"):
        raise ValueError(f"the module {name!r} has no source file: define models in files of a package")
    return _parse_module(name, path, Path(path).read_text(encoding="utf-8"), narrowing)


# Where the file has been changed since, the source is another.
@functools.lru_cache(maxsize=256)
def _parse_module(name: str, path: str, source: str, narrowing: Narrowing) -> Module:
    if name.partition(".")[0] == _PACKAGE:
        source = simplify(source, FIXED_CALLS, ABSENT, narrowing)
    tree = ast.parse(source, filename=path)
    lines = source.split("\n")
    module = Module(name, path, ast.get_docstring(tree) or "", {}, [], defaultdict(list))
    end = 0
    for node in tree.body:
        first = _first_line(node, lines, end)
        gap = sum(1 for line in lines[end:first] if not line.strip())
        last = node.end_lineno or node.lineno
        text = "\n".join(lines[first:last])
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            module.imports.update({imported.bound: imported for imported in _imported(node, module)})
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            # The docstring of the constant before it; the module's own has no statement before it.
            if module.statements:
                previous = module.statements[-1]
                module.statements[-1] = replace(previous, text=f"{previous.text}\n{text}")
        elif not _MODULE_HOOKS & set(_bound_names(node)):
            module.statements.append(_statement(name, len(module.statements), node, text, gap, lines, first))
        end = last
    for statement in module.statements:
        for bound in statement.binds:
            module.defined[bound].append(statement)
    return module


def _first_line(node: ast.stmt, lines: list[str], end: int) -> int:
    """The line, counted from 0, where a statement begins with its decorators and the comments before them."""
    first = min([node.lineno, *(decorator.lineno for decorator in getattr(node, "decorator_list", []))]) - 1
    while first > end and lines[first - 1].lstrip().startswith("#"):
        first -= 1
    return first


def _statement(
    module: str, number: int, node: ast.stmt, text: str, gap: int, lines: list[str], first: int
) -> Statement:
    binds = frozenset(_bound_names(node))
    optional = _optional_methods(module, node)
    members = [
        Member(m.name, _first_line(m, lines, 0) - first, (m.end_lineno or 0) - first, _uses([m])) for m in optional
    ]
    parts: Iterable[ast.AST] = [node] if not optional else (n for n in ast.iter_child_nodes(node) if n not in optional)
    return Statement(module, number, node, text, gap, binds, _uses(parts), tuple(members), _trigger(node, bool(binds)))


def _optional_methods(module: str, node: ast.stmt) -> list[ast.FunctionDef]:
    """Methods of a class that nobody calls but the package; none for classes of transformers' kinds."""
    defined = getattr(sys.modules.get(module), node.name, None) if isinstance(node, ast.ClassDef) else None
    if not isinstance(node, ast.ClassDef) or not isinstance(defined, type):
        return []
    own = (module.partition(".")[0], _PACKAGE)
    others = [base for base in defined.__mro__ if base.__module__.partition(".")[0] not in own]
    if any(base.__module__.partition(".")[0] == "transformers" for base in others):
        return []
    methods = [method for method in node.body if isinstance(method, ast.FunctionDef)]
    return [m for m in methods if m.name[:2] != "__" and not any(hasattr(base, m.name) for base in others)]


def _uses(nodes: Iterable[ast.AST]) -> Uses:
    names, attributes = set[str](), set[str]()
    for node in nodes:
        names.update(_used_names(node))
        for part in ast.walk(node):
            if isinstance(part, ast.Attribute):
                attributes.add(part.attr)
            elif isinstance(part, ast.Constant) and isinstance(part.value, str) and len(part.value) < 80:
                attributes.update(piece for piece in part.value.split(".") if piece.isidentifier())
    return Uses(frozenset(names), frozenset(attributes))


def _imported(node: ast.Import | ast.ImportFrom, module: Module) -> Iterator[Import]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield Import(alias.name, None, alias.asname or alias.name.partition(".")[0], node.lineno)
        return
    target = node.module or ""
    if node.level:
        package = module.name.split(".")
        package = package[: len(package) - node.level + module.path.endswith("__init__.py")]
        target = ".".join([*package, *filter(None, [node.module])])
    for alias in node.names:
        if alias.name == "*" or target == "__future__":
            raise ValueError(f"{module.path}:{node.lineno}: a checkpoint's code cannot use `{ast.unparse(node)}`")
        yield Import(target, alias.name, alias.asname or alias.name, node.lineno)


def _bound_names(node: ast.AST) -> Iterator[str]:
    """Names that a statement defines in its module."""
    if isinstance(node, DEFINITIONS):
        yield node.name
    elif isinstance(node, (ast.Import, ast.ImportFrom)):
        yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
    elif isinstance(node, ast.Name):
        yield from [] if isinstance(node.ctx, ast.Load) else [node.id]
    elif not isinstance(node, (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
        for child in ast.iter_child_nodes(node):
            yield from _bound_names(child)


def _used_names(node: ast.AST) -> Iterator[str]:
    """Names in a statement, also those in the strings of annotations."""
    for part in ast.walk(node):
        if isinstance(part, ast.Name):
            yield part.id
        for annotation in (getattr(part, "annotation", None), getattr(part, "returns", None)):
            for inner in ast.walk(annotation) if isinstance(annotation, ast.AST) else ():
                if isinstance(inner, ast.Constant) and isinstance(inner.value, str):
                    yield from re.findall(r"(?<![\w.])[^\W\d]\w*", inner.value)


def _trigger(node: ast.stmt, binds: bool) -> str | None:
    """See `Statement.trigger`."""
    if binds:
        targets = [decorator for decorator in getattr(node, "decorator_list", []) if _is_dotted(decorator)]
        return _root(targets[0]) if targets else None
    target = getattr(node, "targets", [getattr(node, "target", getattr(node, "value", None))])[0]
    return _root(target) if target is not None and _is_dotted(target) else ""


def _is_dotted(node: ast.AST) -> bool:
    node = node.func if isinstance(node, ast.Call) else node
    return isinstance(node, (ast.Attribute, ast.Subscript)) and _root(node) != ""


def _root(node: ast.AST) -> str:
    """`a` of `a.b`, `a[b]`, `a.b(...)`; `""` for anything else."""
    while isinstance(node, (ast.Attribute, ast.Subscript, ast.Call)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""
