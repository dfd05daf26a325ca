"""The code of a checkpoint: files that load a model without hf_ssm, bundled from the package's modules.

See the README of this folder for the parts of the code, and for what it leaves out.
"""

import functools
import itertools
import json
import os
import re
import sys
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from transformers import AutoConfig

from hf_ssm.checkpoint.plain import SHOWN, narrowing_of
from hf_ssm.checkpoint.simplify import Narrowing
from hf_ssm.checkpoint.sources import DEFINITIONS, Import, Name, Sources, Statement
from hf_ssm.models.registry import FAMILIES, HEADS, Family
from hf_ssm.utils.files import write_text_atomically

__all__ = ["HEADER", "auto_map", "bundle", "family_of", "file_names", "refresh_code", "write_code"]

HEADER = "# Part of the checkpoint's code, from the package hf_ssm"
"""How each file of a checkpoint's code begins."""

_PACKAGE = __name__.partition(".")[0]
_ORIGIN = "Bundled from the modules named below; saving the model with hf_ssm replaces this file."
_RUNTIME = "runtime_hf_ssm"
# A definition that the models of so many families need is in the runtime. Not a share of all, so that a new family
# changes no files of the others.
_FAMILIES_OF_RUNTIME = 4
_RUNTIME_DOCSTRING = "What models of all families share: checks, loading, caches, packed rows, and both strands of DNA."
_LINE_LENGTH = 120
# How transformers finds the other files: a search of the text, comments and docstrings included.
_RELATIVE = re.compile(r"^\s*(?:import\s+\.(\S+)\s*$|from\s+\.(\S+)\s+import)", re.MULTILINE)
# Items of a docstring about files of a package.
_FILES = re.compile(r"^- `[\w*]+\.py`.*\n(?:  .*\n)*\n?", re.MULTILINE)


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
    sources = bundle(config)
    config.auto_map = auto_map(family)
    Path(folder).mkdir(parents=True, exist_ok=True)
    for name, source in sources.items():
        write_text_atomically(Path(folder, name), source)


def refresh_code(folder: str | os.PathLike[str]) -> list[str]:
    """Replace the code in a local checkpoint of hf_ssm by that of the installed version; weights are not touched.

    Args:
        folder: Folder with the `config.json` of a model of hf_ssm.

    Returns:
        Names of the code files.

    Raises:
        ValueError: No folder, or no configuration of a family of hf_ssm in it.
    """
    path = Path(folder, "config.json")
    try:
        stored = json.loads(path.read_bytes())
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise ValueError(f"{os.fspath(folder)!r} holds no checkpoint of hf_ssm: {error}") from error
    family = family_of(config)
    if family is None:
        raise ValueError(f"{os.fspath(folder)!r} holds no checkpoint of hf_ssm, but one of {config.model_type!r}")
    older = {file.name for file in Path(folder).glob("*.py") if file.read_bytes().startswith(f"{HEADER} ".encode())}
    write_code(config, folder)
    if stored.get("auto_map") != config.auto_map:
        write_text_atomically(path, json.dumps(stored | {"auto_map": config.auto_map}, indent=2, sort_keys=True) + "\n")
    names = [*bundle(config)]
    for name in older.difference(names):
        Path(folder, name).unlink()
    return names


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


def file_names(family: Family) -> list[str]:
    """Names of the files that `bundle` returns for a family that uses the modules of hf_ssm."""
    return [f"{stem}.py" for stem in (*_file_stems(family), _RUNTIME)]


def bundle(config: Any) -> dict[str, str]:
    """The files that load the models of a configuration without hf_ssm.

    Args:
        config: A configuration of a registered family.

    Returns:
        File name -> source: configuration, models, and what all families share, if the models use it.

    Raises:
        ValueError: An import that cannot be bundled, or a name that is defined twice, with its place; a class that is
            not registered.
    """
    family = family_of(config)
    if family is None:
        kind = type(config)
        raise ValueError(f"{kind.__module__}.{kind.__name__} is not the configuration of a family")
    config_class: Any = type(config)
    return dict(_bundle(family.name, config_class, narrowing_of(config)))


@functools.cache
def _bundle(name: str, config_class: Any, narrowing: Narrowing) -> dict[str, str]:
    family = FAMILIES[name]
    homes = config_class.__module__, family.modeling.__name__
    sources = Sources(homes, narrowing)
    classes = list(family.model_classes.values())
    roots = [(homes[0], config_class.__name__), *((homes[1], cls.__name__) for cls in classes)]
    shared, _, attributes = _shared()
    in_runtime = {statement.key for statement in shared}
    used = sources.reachable(roots, attributes)
    configuration = [s for s in sources.reachable(roots[:1], attributes).statements if s.key not in in_runtime]
    elsewhere = in_runtime | {statement.key for statement in configuration}
    modeling = [s for s in used.statements if s.key not in elsewhere]
    stems = _file_stems(family)
    writer = _Writer(sources, used.attributes, homes)
    writer.place(shared, _RUNTIME)
    exported = {cls.__name__: HEADS[head] for head, cls in family.model_classes.items()}
    files = {
        f"{stems[0]}.py": writer.file(stems[0], configuration, {config_class.__name__: "AutoConfig"}),
        f"{stems[1]}.py": writer.file(stems[1], modeling, exported),
    }
    if any(s.key in in_runtime for s in used.statements):
        files[f"{_RUNTIME}.py"] = _runtime()
    return files


@functools.cache
def _runtime() -> str:
    """The file that all families share."""
    statements, attributes, _ = _shared()
    return _Writer(_package_sources(), attributes, ()).file(_RUNTIME, statements, {}, _RUNTIME_DOCSTRING)


@functools.cache
def _package_sources() -> Sources:
    families = [family for family in FAMILIES.values() if family.config_class.__module__.startswith(f"{_PACKAGE}.")]
    return Sources(home for f in families for home in (f.config_class.__module__, f.modeling.__name__))


@functools.cache
def _shared() -> tuple[list[Statement], frozenset[str], frozenset[str]]:
    """The statements of the file that all families share; names of its methods; names of attributes that it reads.

    They are what the models of four or more families of hf_ssm need, in any configuration, except `SHOWN` and what
    depends on it; and all that such statements need themselves.
    """
    sources = _package_sources()
    families = [family for family in FAMILIES.values() if not family.combines_others]
    classes = [(f.modeling.__name__, [cls.__name__ for cls in f.model_classes.values()]) for f in families]
    roots = [[(home, name) for name in names] for home, names in classes if home in sources.modules]
    union = sources.reachable(root for family in roots for root in family)
    counts = Counter(s.key for family in roots for s in sources.reachable(family).statements)
    users = {s.key: s for s in union.statements if s.binds & SHOWN}
    needs = {s.key: set(sources.needed(s.module, s.uses_with(union.attributes))) for s in union.statements}
    size = -1
    while size < len(users):
        size = len(users)
        shown = {(s.module, bound) for s in users.values() for bound in s.binds}
        users |= {s.key: s for s in union.statements if not shown.isdisjoint(needs[s.key])}
    common = [s for s in union.statements if counts[s.key] >= _FAMILIES_OF_RUNTIME and s.key not in users]
    names = [(s.module, bound) for s in common for bound in s.binds]
    chosen = sources.reachable(names, union.attributes)
    statements = [s for s in chosen.statements if s.key not in users]
    read = frozenset().union(*(s.uses_with(union.attributes).attributes for s in statements))
    return statements, union.attributes, read


class _Writer:
    """Writes files of which each imports from those before.

    Args:
        sources: The modules.
        attributes: Names of the methods that classes have.
        homes: Modules whose docstrings are those of the files.
    """

    def __init__(self, sources: Sources, attributes: frozenset[str], homes: tuple[str, ...]):
        self._sources, self._attributes, self._homes = sources, attributes, homes
        self._stems: dict[Name, str] = {}

    def place(self, statements: Iterable[Statement], stem: str) -> None:
        """Record that a file has these statements."""
        self._stems |= {(s.module, bound): stem for s in statements for bound in s.binds}

    def file(self, stem: str, statements: list[Statement], exported: dict[str, str], docstring: str = "") -> str:
        """The text of a file.

        Args:
            stem: Its name without suffix.
            statements: What it holds.
            exported: Its public classes, and the Auto class of each.
            docstring: Default: that of the module of its first public class.
        """
        self.place(statements, stem)
        imports = "\n\n".join(text for text in map(_import_block, self._imports(stem, statements)) if text)
        registered = "\n".join(f'{name}.register_for_auto_class("{auto}")' for name, auto in exported.items())
        body = "\n\n\n".join([*self._sections(statements), *([registered] if exported else [])])
        home = next((s.module for s in statements if not exported.keys().isdisjoint(s.binds)), "")
        docstring = docstring or self._sources.modules[home].docstring
        quoted = f'{"r" if chr(92) in docstring else ""}"""{docstring}{chr(10) if chr(10) in docstring else ""}"""'
        version = sys.modules[_PACKAGE].__version__
        text = f"{HEADER} {version} (Apache-2.0).\n# {_ORIGIN}\n\n{quoted}\n\n{imports}\n\n\n{body}\n"
        relative = {first or second for first, second in _RELATIVE.findall(text)} - set(self._stems.values())
        if relative:
            raise ValueError(
                f"{stem}.py contains text that looks like a relative import of {', '.join(sorted(relative))}: "
                "transformers would look for these files, so change the wording of the text"
            )
        return text

    def _imports(self, stem: str, statements: list[Statement]) -> list[set[tuple[str, str, str]]]:
        """What a file imports: from the standard library, from other libraries, and from the files before."""
        owners: dict[str, Any] = {}
        blocks: list[set[tuple[str, str, str]]] = [set(), set(), set()]
        for statement in statements:
            for name in sorted(statement.uses_with(self._attributes).names | statement.binds):
                meaning = self._sources.meaning(statement.module, name)
                if meaning is None:
                    continue
                owner = meaning[:2] if isinstance(meaning, Import) else meaning
                if owners.setdefault(name, owner) != owner:
                    path = self._sources.modules[statement.module].path
                    raise ValueError(
                        f"{path}:{statement.line}: `{name}` has another meaning in {owners[name][0]}, and a checkpoint "
                        "has both names in one file: rename one of them"
                    )
                if isinstance(meaning, Import):
                    is_standard = meaning.module.partition(".")[0] in sys.stdlib_module_names
                    blocks[0 if is_standard else 1].add((meaning.module, meaning.name or "", meaning.bound))
                elif self._stems[meaning] != stem:
                    blocks[2].add((f".{self._stems[meaning]}", name, name))
        return blocks

    def _sections(self, statements: list[Statement]) -> Iterator[str]:
        """Statements in a row from one module, below a comment that names it."""
        described = set(self._homes)
        for module, group in itertools.groupby(statements, key=lambda statement: statement.module):
            text = f"# {'-' * (_LINE_LENGTH - 2)}\n# {module}\n"
            docstring = _FILES.sub("", self._sources.modules[module].docstring)
            if docstring and module not in described:
                text += "#\n" + textwrap.indent(docstring, "# ", lambda line: True).replace("# \n", "#\n") + "\n"
            described.add(module)
            previous: Statement | None = None
            for statement in group:
                is_near_definition = any(
                    isinstance(s.node, DEFINITIONS) for s in (statement, previous) if s is not None
                )
                gap = 2 if is_near_definition else 1 if previous is None else min(statement.gap, 1)
                text += "\n" * gap + statement.rendered(self._attributes) + "\n"
                previous = statement
            yield text.rstrip("\n")


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
