"""The code of a checkpoint: two files that load a model without hf_ssm, bundled from the package's modules.

transformers loads the code of a checkpoint (`trust_remote_code=True`) from files beside `config.json`, one request
each. A bundle therefore has two: `configuration_hf_ssm_<family>.py` and `modeling_hf_ssm_<family>.py`. Starting from
the configuration and the model classes of a family, it takes the definitions that these use, in the order in which
Python would execute them, with their comments. Equal names of different modules get a prefix.

A bundle follows `from module import names` at the top of a module, for modules of hf_ssm and of the family's own
package. Imports guarded by `try`, and `importlib.import_module`, stay as they are: they reach what may be missing where
a checkpoint is loaded, such as compiled kernels and converters.
"""

import ast
import builtins
import functools
import os
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from transformers import PreTrainedConfig

from hf_ssm.models.registry import FAMILIES, HEADS, Family
from hf_ssm.models.source import Module, Statement, read_module
from hf_ssm.utils.files import write_text_atomically

__all__ = ["HEADER", "auto_map", "bundle", "family_of", "write_code"]

HEADER = "# Part of the checkpoint's code, from the package hf_ssm"
"""How each file of a checkpoint's code begins."""

_PACKAGE = __name__.partition(".")[0]
_ORIGIN = "Bundled from the modules named below; saving the model with hf_ssm replaces this file."
_LINE_LENGTH = 120
# How transformers finds the other files: a search of the text, comments and docstrings included.
_RELATIVE = re.compile(r"^\s*(?:import\s+\.(\S+)\s*$|from\s+\.(\S+)\s+import)", re.MULTILINE)


def write_code(config: PreTrainedConfig, folder: str | os.PathLike[str]) -> None:
    """Write the code of a model into a folder, replacing older versions, and set `config.auto_map` accordingly.

    A configuration whose class is not registered (see `register_family`) is left alone.

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


@functools.cache
def bundle(config_class: type[Any]) -> dict[str, str]:
    """The two files that load the models of a family without hf_ssm.

    Args:
        config_class: The configuration class of a registered family.

    Returns:
        File name -> source, the configuration first.

    Raises:
        ValueError: An import that cannot be bundled, with its place; a class that is not registered.
    """
    family = next((family for family in FAMILIES.values() if family.config_class is config_class), None)
    if family is None:
        raise ValueError(f"{config_class.__module__}.{config_class.__name__} is not the configuration of a family")
    return _Bundle(family).files()


def _file_stems(family: Family) -> tuple[str, str]:
    name = re.sub(r"\W", "_", family.short_name)
    return f"configuration_hf_ssm_{name}", f"modeling_hf_ssm_{name}"


class _Definition(NamedTuple):
    """A name of a bundled module."""

    module: str
    name: str


class _External(NamedTuple):
    """A name imported from another library, under the name it is bound to."""

    module: str
    name: str | None
    bound: str


class _Bundle:
    """The bundle of one family.

    Attributes:
        family: The family.
        modules: The modules that its code is taken from, each after those that it imports.
    """

    def __init__(self, family: Family):
        self.family = family
        # A family may be defined in a package of its own, or in two files outside any package.
        homes = (family.config_class.__module__, family.modeling.__name__)
        self._packages = {_PACKAGE, *(home.partition(".")[0] for home in homes)}
        self.modules: dict[str, Module] = {}
        for home in homes:
            self._read(home, ())

    def files(self) -> dict[str, str]:
        """File name -> source."""
        family = self.family
        homes = family.config_class.__module__, family.modeling.__name__
        classes = [family.config_class.__name__], [cls.__name__ for cls in family.model_classes.values()]
        roots = [[_Definition(home, name) for name in names] for home, names in zip(homes, classes, strict=True)]
        configuration = self._reachable(roots[0])
        modeling = self._reachable([*roots[0], *roots[1]]) - configuration
        self._check(configuration, modeling)
        self._names = self._unique_names([*roots[0], *roots[1]], configuration | modeling)
        stems = _file_stems(family)
        heads = {cls.__name__: HEADS[head] for head, cls in family.model_classes.items()}
        files = {}
        for stem, home, statements, exported, imported in (
            (stems[0], homes[0], configuration, dict.fromkeys(classes[0], "AutoConfig"), None),
            (stems[1], homes[1], modeling, heads, (stems[0], configuration)),
        ):
            sections = [self._section(module, statements) for module in self.modules.values()]
            files[f"{stem}.py"] = _joined(
                self._header(home),
                self._imports(statements, imported),
                [section for section in sections if section],
                [f'{name}.register_for_auto_class("{auto}")' for name, auto in exported.items()],
                list(exported),
            )
            _check_relative(f"{stem}.py", files[f"{stem}.py"], set() if imported is None else {stems[0]})
        return files

    # What belongs to the bundle.

    def _read(self, name: str, importers: tuple[str, ...]) -> None:
        if name in self.modules:
            return
        if name in importers:
            raise ValueError(f"modules that import each other cannot be bundled: {' -> '.join((*importers, name))}")
        module = read_module(name)
        for imported in module.imports.values():
            if self._is_own(imported.module):
                self._read(imported.module, (*importers, name))
        self.modules[name] = module

    def _is_own(self, module: str) -> bool:
        return module.partition(".")[0] in self._packages

    def _resolve(self, module: Module, name: str) -> _Definition | _External | None:
        """What a name means in a module; `None` for builtins."""
        if name in module.binders:
            return _Definition(module.name, name)
        imported = module.imports.get(name)
        if imported is None:
            return None
        if not self._is_own(imported.module):
            return _External(*imported[:3])
        source = self.modules[imported.module]
        found = None if imported.name is None else self._resolve(source, imported.name)
        if found is None:
            raise ValueError(
                f"{module.path}:{imported.line}: `{name}` is no name that {source.path} defines: write "
                "`from module import name`, with the module that defines it"
            )
        return found

    def _meanings(self, statement: Statement) -> Iterator[tuple[str, _Definition | _External]]:
        """Names in a statement, and what they mean."""
        module = self.modules[statement.module]
        for name in sorted(statement.uses | statement.binds):
            found = self._resolve(module, name)
            if found is not None:
                yield name, found

    def _reachable(self, roots: Iterable[_Definition]) -> set[Statement]:
        """The statements that define `roots` and all that these use."""
        found: set[Statement] = set()
        names: set[_Definition] = set()
        waiting = list(roots)
        while waiting:
            while waiting:
                name = waiting.pop()
                if name in names:
                    continue
                names.add(name)
                for statement in set(self.modules[name.module].binders[name.name]) - found:
                    found.add(statement)
                    waiting += [used for _, used in self._meanings(statement) if isinstance(used, _Definition)]
            for statement in self._triggered(names) - found:
                found.add(statement)
                waiting += [used for _, used in self._meanings(statement) if isinstance(used, _Definition)]
        return found

    def _triggered(self, names: set[_Definition]) -> set[Statement]:
        """Statements that act on names of the bundle, or on the modules that these are from."""
        used = {name.module for name in names}
        found = set()
        for module in self.modules.values():
            for statement in module.statements:
                acts_on = (self._resolve(module, trigger) for trigger in statement.triggers or ())
                # A decorator of another library returns a function; one of the package may also register it.
                registers = (isinstance(self._resolve(module, name), _Definition) for name in statement.decorators)
                is_effect = statement.triggers is None or any(registers)
                if (is_effect and module.name in used) or any(meaning in names for meaning in acts_on):
                    found.add(statement)
        return found

    def _check(self, configuration: set[Statement], modeling: set[Statement]) -> None:
        """Refuse what would not work in two files."""
        shared = {_Definition(statement.module, name) for statement in configuration for name in statement.binds}
        shared &= {meaning for statement in modeling for _, meaning in self._meanings(statement)}
        for statement in (*configuration, *modeling):
            module = self.modules[statement.module]
            for node in statement.imports():
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
                if getattr(node, "level", 0) or any(map(self._is_own, names)):
                    raise ValueError(
                        f"{module.path}:{node.lineno}: `{ast.unparse(node)}` inside a definition: import names of the "
                        "package at the top of the module, or by `importlib.import_module` what a checkpoint can lack"
                    )
            for name in statement.rebinds:
                if self._resolve(module, name) in shared:
                    raise ValueError(
                        f"{module.path}:{statement.node.lineno}: `global {name}` rebinds a name that configuration and "
                        "models share, but a checkpoint has them in two files: change a mutable object instead"
                    )

    # Names.

    def _unique_names(self, public: list[_Definition], statements: set[Statement]) -> dict[Any, str]:
        """Names in the bundle, different for all that differ: the name in the module, or one with a prefix."""
        local: dict[Any, dict[str, set[str]]] = {name: {} for name in public}
        external: dict[Any, dict[str, set[str]]] = {}
        for statement in self._ordered(statements):
            for name, meaning in self._meanings(statement):
                known = local if isinstance(meaning, _Definition) else external
                known.setdefault(meaning, {}).setdefault(name, set()).add(statement.module)
        words = set().union(*(module.words for module in self.modules.values()), dir(builtins))
        taken: dict[str, Any] = dict.fromkeys(dir(builtins))
        names: dict[Any, str] = {}
        for meaning, uses in [*((name, local[name]) for name in public), *external.items(), *local.items()]:
            if meaning in names:
                continue
            name = meaning.bound if isinstance(meaning, _External) else meaning.name
            # `import a` and `import a.b` bind the same module.
            is_root = (
                isinstance(meaning, _External) and meaning.name is None and name == meaning.module.partition(".")[0]
            )
            root = name if is_root else meaning
            hidden = any(name in self.modules[user].words for alias in uses if alias != name for user in uses[alias])
            if taken.get(name, root) != root or name in dir(builtins) or hidden:
                name = _prefixed(meaning, words)
                words.add(name)
            taken[name] = root
            names[meaning] = name
        return names

    def _ordered(self, statements: set[Statement]) -> Iterator[Statement]:
        for module in self.modules.values():
            yield from (statement for statement in module.statements if statement in statements)

    # Text.

    def _header(self, home: str) -> str:
        version = sys.modules[_PACKAGE].__version__
        docstring = self.modules[home].docstring or f"Code of the {self.family.name} models."
        quoted = f'{"r" if chr(92) in docstring else ""}"""{docstring}{chr(10) if chr(10) in docstring else ""}"""'
        return f"{HEADER} {version} (Apache-2.0).\n# {_ORIGIN}\n\n{quoted}"

    def _imports(self, statements: set[Statement], imported: tuple[str, set[Statement]] | None) -> str:
        """Imports of other libraries, and of the configuration's file."""
        meanings = {meaning for statement in statements for _, meaning in self._meanings(statement)}
        groups: dict[bool, set[tuple[str, str, str]]] = {True: set(), False: set()}
        for meaning in meanings:
            if isinstance(meaning, _External):
                standard = meaning.module.partition(".")[0] in sys.stdlib_module_names
                groups[standard].add((meaning.module, meaning.name or "", self._names[meaning]))
        parts = [_import_block(groups[True]), _import_block(groups[False])]
        if imported is not None:
            stem, others = imported
            bound = {_Definition(other.module, name) for other in others for name in other.binds}
            parts.append(
                _import_block({(f".{stem}", self._names[name], self._names[name]) for name in bound & meanings})
            )
        return "\n\n".join(part for part in parts if part)

    def _section(self, module: Module, statements: set[Statement]) -> str:
        """The statements from one module, below a comment that names it."""
        found = [statement for statement in module.statements if statement in statements]
        if not found:
            return ""
        heading = f"# {'-' * (_LINE_LENGTH - 2)}\n# {module.name}"
        # The docstring of the family's own modules is that of the file.
        docstring = (
            ""
            if module.name in (self.family.config_class.__module__, self.family.modeling.__name__)
            else module.docstring
        )
        comment = textwrap.indent(docstring, "# ", lambda line: True).replace("# \n", "#\n")
        text = f"{heading}\n#\n{comment}\n" if comment else f"{heading}\n"
        previous: Statement | None = None
        for statement in found:
            names = {name: self._names[meaning] for name, meaning in self._meanings(statement)}
            is_near_definition = statement.is_definition or (previous is not None and previous.is_definition)
            gap = 2 if is_near_definition else 1 if previous is None else min(statement.gap, 1)
            text += "\n" * gap + statement.renamed(names) + "\n"
            previous = statement
        return text.rstrip("\n")


def _prefixed(meaning: _Definition | _External, words: set[str]) -> str:
    """A name with that of its module before it, which is used nowhere yet."""
    name = meaning.bound if isinstance(meaning, _External) else meaning.name
    parts = [part for part in meaning.module.split(".") if part]
    for count in range(1, len(parts) + 1):
        prefix = "_".join(parts[-count:])
        bare = name.lstrip("_")
        if bare.isupper():
            found = f"_{prefix.upper()}_{bare}"
        elif bare[0].isupper():
            found = f"_{prefix.title().replace('_', '')}{bare}"
        else:
            found = f"_{prefix}_{bare}"
        if found not in words:
            return found
    return next(other for number in range(2, len(words) + 3) if (other := f"{found}_{number}") not in words)


def _import_block(entries: Iterable[tuple[str, str, str]]) -> str:
    """Import statements for (module, name or "", bound name), sorted as ruff sorts them."""
    plain: list[str] = []
    aliased: list[tuple[str, str]] = []
    grouped: dict[str, list[str]] = {}
    for module, name, bound in entries:
        if not name:
            root = module.partition(".")[0]
            plain.append(f"import {module}" if bound in (module, root) else f"import {module} as {bound}")
        elif name != bound:
            aliased.append((module, f"from {module} import {name} as {bound}"))
        else:
            grouped.setdefault(module, []).append(name)
    grouped_lines = [(module, _import_line(module, names)) for module, names in grouped.items()]
    by_module = sorted([*aliased, *grouped_lines], key=lambda entry: (entry[0].lower(), entry[1]))
    return "\n".join([*sorted(plain), *(line for _, line in by_module)])


def _import_line(module: str, names: list[str]) -> str:
    names = sorted(names, key=lambda name: (not name.isupper(), not name[0].isupper(), name.casefold()))
    line = f"from {module} import {', '.join(names)}"
    return line if len(line) <= _LINE_LENGTH else f"from {module} import (\n    {f',{chr(10)}    '.join(names)},\n)"


def _joined(header: str, imports: str, sections: list[str], registrations: list[str], exported: list[str]) -> str:
    names = [f'"{name}"' for name in sorted(exported)]
    public = f"__all__ = [{', '.join(names)}]"
    if len(public) > _LINE_LENGTH:
        public = f"__all__ = [\n    {f',{chr(10)}    '.join(names)},\n]"
    body = "\n\n\n".join([*sections, "\n".join(registrations)])
    return f"{header}\n\n{imports}\n\n\n{body}\n\n{public}\n"


def _check_relative(name: str, source: str, expected: set[str]) -> None:
    found = {first or second for first, second in _RELATIVE.findall(source)}
    if not found <= expected:
        raise ValueError(
            f"{name}: text that looks like a relative import of {', '.join(sorted(found - expected))}: transformers "
            "would look for these files, so write it in another way"
        )
