"""The code of a checkpoint: two files that load a model without hf_ssm, bundled from the package's modules.

transformers loads the code of a checkpoint (`trust_remote_code=True`) from files beside `config.json`, one request
each. A bundle therefore has two: `configuration_hf_ssm_<family>.py` and `modeling_hf_ssm_<family>.py`. Starting from
the configuration and the model classes of a family, it takes the top-level definitions that these use, in the order in
which Python would execute them, with their comments.

A bundle follows `from module import name` at the top of a module, for modules of hf_ssm and of the family's own
package. Imports guarded by `try`, and `importlib.import_module`, stay as they are: they reach what may be missing where
a checkpoint is loaded, such as compiled kernels and converters. All definitions of a bundle share one namespace, so two
different ones may not have the same name.
"""

import ast
import functools
import importlib.util
import os
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from hf_ssm.models.registry import FAMILIES, HEADS, Family
from hf_ssm.utils.files import write_text_atomically

__all__ = ["HEADER", "auto_map", "bundle", "family_of", "write_code"]

HEADER = "# Part of the checkpoint's code, from the package hf_ssm"
"""How each file of a checkpoint's code begins."""

_PACKAGE = __name__.partition(".")[0]
_ORIGIN = "Bundled from the modules named below; saving the model with hf_ssm replaces this file."
_LINE_LENGTH = 120
# How transformers finds the other files: a search of the text, comments and docstrings included.
_RELATIVE = re.compile(r"^\s*(?:import\s+\.(\S+)\s*$|from\s+\.(\S+)\s+import)", re.MULTILINE)
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
# Definitions that only concern the module object itself.
_MODULE_HOOKS = frozenset({"__all__", "__dir__", "__getattr__"})


def write_code(config: Any, folder: str | os.PathLike[str]) -> None:
    """Write the code of a model into a folder, replacing older versions, and set `config.auto_map` accordingly.

    A configuration whose class is not registered (see `register_family`) is ignored.

    Args:
        config: The configuration of the model.
        folder: Folder of the checkpoint; created if missing.

    Raises:
        ValueError: The family's source cannot be bundled.
    """
    family = family_of(config)
    if family is None:
        return
    config_class: Any = family.config_class
    sources = bundle(config_class)
    config.auto_map = auto_map(family)
    Path(folder).mkdir(parents=True, exist_ok=True)
    for name, source in sources.items():
        write_text_atomically(Path(folder, name), source)


def family_of(config: Any) -> Family | None:
    """The family whose configuration class is that of `config`, derived classes excluded."""
    return next((family for family in FAMILIES.values() if type(config) is family.config_class), None)


def auto_map(family: Family) -> dict[str, str]:
    """Auto class -> `file.Class` in the bundle, for the configuration and all heads of a family."""
    configuration, modeling = _file_stems(family)
    heads = {HEADS[head]: f"{modeling}.{cls.__name__}" for head, cls in family.model_classes.items()}
    return {"AutoConfig": f"{configuration}.{family.config_class.__name__}", **heads}


def _file_stems(family: Family) -> tuple[str, str]:
    name = re.sub(r"\W", "_", family.short_name)
    return f"configuration_hf_ssm_{name}", f"modeling_hf_ssm_{name}"


@functools.cache
def bundle(config_class: type[Any]) -> dict[str, str]:
    """The two files that load the models of a family without hf_ssm.

    Args:
        config_class: The configuration class of a registered family.

    Returns:
        File name -> source, the configuration first.

    Raises:
        ValueError: An import that cannot be bundled, or a name that is defined twice, with its place; a class that is
            not registered.
    """
    family = next((family for family in FAMILIES.values() if family.config_class is config_class), None)
    if family is None:
        raise ValueError(f"{config_class.__module__}.{config_class.__name__} is not the configuration of a family")
    homes = family.config_class.__module__, family.modeling.__name__
    sources = _Sources(homes)
    public = [family.config_class.__name__], [cls.__name__ for cls in family.model_classes.values()]
    roots = [[(home, name) for name in names] for home, names in zip(homes, public, strict=True)]
    configuration = sources.reachable(roots[0])
    modeling = [s for s in sources.reachable([*roots[0], *roots[1]]) if s not in configuration]
    stems = _file_stems(family)
    heads = {cls.__name__: HEADS[head] for head, cls in family.model_classes.items()}
    files = {
        f"{stems[0]}.py": sources.file(homes[0], configuration, {public[0][0]: "AutoConfig"}),
        f"{stems[1]}.py": sources.file(homes[1], modeling, heads, stems[0], configuration),
    }
    for name, source in files.items():
        found = {first or second for first, second in _RELATIVE.findall(source)} - {stems[0]}
        if found:
            raise ValueError(
                f"{name}: text that looks like a relative import of {', '.join(sorted(found))}: transformers would "
                "look for these files, so write it in another way"
            )
    return files


class _Import(NamedTuple):
    """A name imported at the top of a module; `name` is `None` for `import module`."""

    module: str
    name: str | None
    bound: str
    line: int


@dataclass(eq=False)
class _Statement:
    """A top-level statement of a module.

    Attributes:
        module: Name of the module.
        node: The syntax node.
        text: Its source, with comments before it and the docstring of a constant after it.
        gap: Number of empty lines before it.
        binds: Names that it defines.
        uses: Names that it reads; an over-estimate, as local names are not told apart.
        trigger: For a statement that acts on a name of the module (`operator.register(...)`, `table[key] = value`,
            `@operator.register`): that name, whose presence requires it. `""`: a call that the whole module requires.
    """

    module: str
    node: ast.stmt
    text: str
    gap: int
    binds: frozenset[str] = field(init=False)
    uses: frozenset[str] = field(init=False)
    trigger: str | None = field(init=False)

    def __post_init__(self) -> None:
        self.binds = frozenset(_bound_names(self.node))
        self.uses = frozenset(_used_names(self.node))
        self.trigger = _trigger(self.node, bool(self.binds))


class _Module(NamedTuple):
    name: str
    path: str
    docstring: str
    imports: dict[str, _Import]
    statements: list[_Statement]


class _Sources:
    """The modules that a family's code consists of, each after those that it imports."""

    def __init__(self, homes: tuple[str, ...]):
        # A family may be defined in a package of its own.
        self._packages = {_PACKAGE, *(home.partition(".")[0] for home in homes)}
        self.homes = homes
        self.modules: dict[str, _Module] = {}
        for home in homes:
            self._read(home, ())

    def _is_own(self, module: str) -> bool:
        return module.partition(".")[0] in self._packages

    def _read(self, name: str, importers: tuple[str, ...]) -> None:
        if name in self.modules:
            return
        if name in importers:
            raise ValueError(f"modules that import each other cannot be bundled: {' -> '.join((*importers, name))}")
        module = _read_module(name)
        for imported in module.imports.values():
            if self._is_own(imported.module):
                self._read(imported.module, (*importers, name))
        self.modules[name] = module

    def meaning(self, module: str, name: str) -> tuple[str, str] | _Import | None:
        """What a name means in a module: a definition (module, name), an import, or `None` for other names."""
        source = self.modules[module]
        if any(name in statement.binds for statement in source.statements):
            return module, name
        imported = source.imports.get(name)
        if imported is None or not self._is_own(imported.module):
            return imported
        found = None if imported.name is None else self.meaning(imported.module, imported.name)
        if found is None or imported.name != imported.bound:
            raise ValueError(
                f"{source.path}:{imported.line}: `{name}` cannot be bundled: write `from module import name`, with the "
                "module that defines it and without another name"
            )
        return found

    def reachable(self, roots: Iterable[tuple[str, str]]) -> list[_Statement]:
        """The statements that define `roots` and all that these use, in order of execution."""
        names: set[tuple[str, str]] = set()
        found: set[_Statement] = set()
        waiting = list(roots)
        while waiting:
            module, name = waiting.pop()
            if (module, name) in names:
                continue
            names.add((module, name))
            present = {used for used, _ in names}
            for other in self.modules.values():
                for statement in other.statements:
                    if statement in found:
                        continue
                    is_wanted = statement.module == module and name in statement.binds
                    if statement.trigger is not None and not is_wanted:
                        target = statement.trigger and self.meaning(other.name, statement.trigger)
                        is_wanted = other.name in present if statement.trigger == "" else target in names
                    if is_wanted:
                        found.add(statement)
                        self._check_inner_imports(statement)
                        meanings = (self.meaning(other.name, used) for used in statement.uses | statement.binds)
                        waiting += [m for m in meanings if m is not None and not isinstance(m, _Import)]
        return [s for module in self.modules.values() for s in module.statements if s in found]

    def _check_inner_imports(self, statement: _Statement) -> None:
        waiting: list[ast.AST] = [statement.node]
        while waiting:
            node = waiting.pop()
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
                if getattr(node, "level", 0) or any(map(self._is_own, names)):
                    raise ValueError(
                        f"{self.modules[statement.module].path}:{node.lineno}: `{ast.unparse(node)}` inside a "
                        "definition: import names of the package at the top of the module, or by "
                        "`importlib.import_module` what a checkpoint can lack"
                    )
            elif not isinstance(node, ast.Try):
                waiting.extend(ast.iter_child_nodes(node))

    def file(
        self,
        home: str,
        statements: list[_Statement],
        exported: dict[str, str],
        other_file: str = "",
        others: Iterable[_Statement] = (),
    ) -> str:
        """The text of one file.

        Args:
            home: The module that its docstring is taken from.
            statements: What it holds.
            exported: Its public classes, and the Auto class of each.
            other_file: The file that holds `others`, from which it imports.
        """
        elsewhere = {(statement.module, name) for statement in others for name in statement.binds}
        owners: dict[str, Any] = {}
        blocks: list[set[tuple[str, str, str]]] = [set(), set(), set()]
        for statement in statements:
            for name in sorted(statement.uses | statement.binds):
                meaning = self.meaning(statement.module, name)
                if meaning is None:
                    continue
                owner = meaning[:2] if isinstance(meaning, _Import) else meaning
                if owners.setdefault(name, owner) != owner:
                    raise ValueError(
                        f"{self.modules[statement.module].path}:{statement.node.lineno}: `{name}` has another meaning "
                        f"in {owners[name][0]}, and a checkpoint has both in one file: rename one of them"
                    )
                if isinstance(meaning, _Import):
                    is_standard = meaning.module.partition(".")[0] in sys.stdlib_module_names
                    blocks[0 if is_standard else 1].add((meaning.module, meaning.name or "", meaning.bound))
                elif meaning in elsewhere:
                    blocks[2].add((f".{other_file}", name, name))
        sections = [self._section(module, statements) for module in self.modules.values()]
        names = [f'"{name}"' for name in sorted(exported)]
        public = f"__all__ = [{', '.join(names)}]"
        if len(public) > _LINE_LENGTH:
            public = f"__all__ = [\n    {f',{chr(10)}    '.join(names)},\n]"
        registered = "\n".join(f'{name}.register_for_auto_class("{auto}")' for name, auto in exported.items())
        imports = "\n\n".join(text for text in map(_import_block, blocks) if text)
        body = "\n\n\n".join([*filter(None, sections), registered])
        docstring = self.modules[home].docstring
        quoted = f'{"r" if chr(92) in docstring else ""}"""{docstring}{chr(10) if chr(10) in docstring else ""}"""'
        version = sys.modules[_PACKAGE].__version__
        return f"{HEADER} {version} (Apache-2.0).\n# {_ORIGIN}\n\n{quoted}\n\n{imports}\n\n\n{body}\n\n{public}\n"

    def _section(self, module: _Module, statements: list[_Statement]) -> str:
        """The statements from one module, below a comment that names it."""
        found = [statement for statement in statements if statement.module == module.name]
        if not found:
            return ""
        text = f"# {'-' * (_LINE_LENGTH - 2)}\n# {module.name}\n"
        # The docstrings of the family's own modules are those of the files.
        if module.docstring and module.name not in self.homes:
            text += "#\n" + textwrap.indent(module.docstring, "# ", lambda line: True).replace("# \n", "#\n") + "\n"
        previous: _Statement | None = None
        for statement in found:
            is_near_definition = any(s is not None and isinstance(s.node, _DEFINITIONS) for s in (statement, previous))
            gap = 2 if is_near_definition else 1 if previous is None else min(statement.gap, 1)
            text += "\n" * gap + statement.text + "\n"
            previous = statement
        return text.rstrip("\n")


def _read_module(name: str) -> _Module:
    path = getattr(sys.modules.get(name), "__file__", None)
    if name not in sys.modules:
        spec = importlib.util.find_spec(name)
        path = None if spec is None else spec.origin
    if path is None or not path.endswith(".py"):
        raise ValueError(f"the module {name!r} has no source file: define models in files of a package")
    source = Path(path).read_text(encoding="utf-8")
    tree = ast.parse(source, filename=path)
    lines = source.split("\n")
    module = _Module(name, path, ast.get_docstring(tree) or "", {}, [])
    end = 0
    for node in tree.body:
        first = min([node.lineno, *(decorator.lineno for decorator in getattr(node, "decorator_list", []))]) - 1
        while first > end and lines[first - 1].lstrip().startswith("#"):
            first -= 1
        gap = sum(1 for line in lines[end:first] if not line.strip())
        last = node.end_lineno or node.lineno
        text = "\n".join(lines[first:last])
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            module.imports.update({imported.bound: imported for imported in _imported(node, module)})
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            # The docstring of the constant before it; the module's own has no statement before it.
            if module.statements:
                module.statements[-1].text += f"\n{text}"
        elif not _MODULE_HOOKS & set(_bound_names(node)):
            module.statements.append(_Statement(name, node, text, gap))
        end = last
    return module


def _imported(node: ast.Import | ast.ImportFrom, module: _Module) -> Iterator[_Import]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield _Import(alias.name, None, alias.asname or alias.name.partition(".")[0], node.lineno)
        return
    target = node.module or ""
    if node.level:
        package = module.name.split(".")
        package = package[: len(package) - node.level + module.path.endswith("__init__.py")]
        target = ".".join([*package, *filter(None, [node.module])])
    for alias in node.names:
        if alias.name == "*" or target == "__future__":
            raise ValueError(f"{module.path}:{node.lineno}: a checkpoint's code cannot use `{ast.unparse(node)}`")
        yield _Import(target, alias.name, alias.asname or alias.name, node.lineno)


def _bound_names(node: ast.AST) -> Iterator[str]:
    """Names that a statement defines in its module."""
    if isinstance(node, _DEFINITIONS):
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
    """See `_Statement.trigger`."""
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


def _import_block(entries: Iterable[tuple[str, str, str]]) -> str:
    """Import statements for (module, name or "", bound name), sorted as ruff sorts them."""
    plain: list[str] = []
    lines: list[tuple[str, str]] = []
    grouped: dict[str, list[str]] = {}
    for module, name, bound in entries:
        if not name:
            plain.append(f"import {module}" if bound == module.partition(".")[0] else f"import {module} as {bound}")
        elif name != bound:
            lines.append((module, f"from {module} import {name} as {bound}"))
        else:
            grouped.setdefault(module, []).append(name)
    for module, names in grouped.items():
        names = sorted(names, key=lambda name: (not name.isupper(), not name[0].isupper(), name.casefold()))
        line = f"from {module} import {', '.join(names)}"
        if len(line) > _LINE_LENGTH:
            line = f"from {module} import (\n    {f',{chr(10)}    '.join(names)},\n)"
        lines.append((module, line))
    lines.sort(key=lambda entry: (entry[0].lower(), entry[1]))
    return "\n".join([*sorted(plain), *(line for _, line in lines)])
