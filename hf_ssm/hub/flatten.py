"""The code that travels with a checkpoint: a modeling file and all it imports of this package, as flat siblings.

transformers loads the code of a checkpoint from single files beside `config.json`, which may import each other by
`from .name import something` and in no other way. So each module that a modeling file reaches becomes one file:
`hf_ssm/ops/long_conv.py` is `ops_long_conv.py`; of the files in `hf_ssm/models`, modeling and configuration keep their
names. Nothing but the heads of imports is changed.

An import inside `try` stays what it is, and is not followed: what it asks for may be absent (see
`hf_ssm.ops.backends`).
"""

import ast
import functools
import re
import sys
from collections.abc import Iterator
from pathlib import Path

__all__ = ["HEADER", "flatten"]

_PACKAGE = "hf_ssm"
_ROOT = Path(__file__).resolve().parents[1]
# What may be imported besides the standard library: torch, transformers, and what these need themselves.
_AT_HAND = frozenset({"huggingface_hub", "numpy", "safetensors", "torch", "transformers"})
# As transformers looks for them, in code and text alike.
_RELATIVE = re.compile(r"^\s*(?:import\s+\.(\S+)\s*$|from\s+\.(\S+)\s+import)", re.MULTILINE)
_HEAD = re.compile(r"(\s*from\s+)(\S+)(\s+import\b)")

HEADER = "# Part of the checkpoint's code, from the package hf_ssm"
"""How each file begins."""


@functools.cache
def flatten(module: str) -> dict[str, str]:
    """The source of a module and of all it imports of this package, by file name.

    Args:
        module: Its full name, such as `"hf_ssm.models.hyena.modeling_hyena"`.

    Raises:
        ValueError: Some import cannot travel; the message says where and why.
    """
    found: dict[str, str] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        file_name = _file_name(name)
        if file_name not in found:
            found[file_name], imported = _flat_source(name)
            waiting.extend(imported)
    return dict(sorted(found.items()))


def _path(module: str) -> Path:
    path = _ROOT.joinpath(*module.split(".")[1:])
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _file_name(module: str) -> str:
    """`hf_ssm.ops.cpu.calling` -> `ops_cpu_calling.py`."""
    _, room, *rest = module.split(".")
    if room == "models" and rest[-1].startswith(("modeling_", "configuration_")):
        return f"{rest[-1]}.py"
    return f"{'_'.join((room, *rest))}.py"


def _flat_source(module: str) -> tuple[str, list[str]]:
    """The source of a module as it travels, and the modules of this package it imports."""
    path = _path(module)
    where = path.relative_to(_ROOT.parent).as_posix()
    source = path.read_text(encoding="utf-8")
    lines = source.splitlines(keepends=True)
    imported = []
    for node in _imports(ast.parse(source, filename=where)):
        target = _target(node, module)
        if target is None:
            _check_foreign(node, where)
            continue
        if not _path(target).is_file():
            raise ValueError(f"{where}:{node.lineno}: import names from a module, not the module {target} itself")
        sibling = f".{_file_name(target).removesuffix('.py')}"
        head, changed = _HEAD.subn(rf"\g<1>{sibling}\g<3>", lines[node.lineno - 1], count=1)
        if not changed:
            raise ValueError(f"{where}:{node.lineno}: write `from module import names`, with the head on one line")
        lines[node.lineno - 1] = head
        imported.append(target)
    flat = f"{HEADER} {_version()} ({where}, Apache-2.0).\n{''.join(lines)}"
    _check_found(flat, {_file_name(target).removesuffix(".py") for target in imported}, where)
    return flat, imported


def _imports(node: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """All imports, those in functions too, but not those inside `try`, which transformers does not demand either."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.Import, ast.ImportFrom)):
            yield child
        elif not isinstance(child, ast.Try):
            yield from _imports(child)


def _target(node: ast.Import | ast.ImportFrom, module: str) -> str | None:
    """The module of this package that an import is from; `None` for those of others."""
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names if alias.name.split(".")[0] == _PACKAGE]
        return names[0] if names else None
    if node.level:
        return ".".join([*module.split(".")[: -node.level], *([node.module] if node.module else [])])
    name = node.module or ""
    return name if name.split(".")[0] == _PACKAGE else None


def _check_foreign(node: ast.Import | ast.ImportFrom, where: str) -> None:
    names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
    for name in names:
        top = name.split(".")[0]
        if top not in _AT_HAND and top not in sys.stdlib_module_names:
            raise ValueError(f"{where}:{node.lineno}: {top} need not be there where a checkpoint is loaded")


def _check_found(flat: str, siblings: set[str], where: str) -> None:
    """transformers searches the text for imports: it must find all of them, and nothing else."""
    found = {first or second for first, second in _RELATIVE.findall(flat)}
    if found != siblings:
        raise ValueError(
            f"{where}: what looks like a relative import is none, or one does not look like it: "
            f"{', '.join(sorted(found ^ siblings))}"
        )


def _version() -> str:
    return sys.modules[_PACKAGE].__version__
