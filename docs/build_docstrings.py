"""Links from docstrings to the reference: `` `name` `` of a public object becomes a link to its entry.

Public are the names of `hf_ssm` and those of the same module. Parameters of the documented function are left alone, and
so are the types of transformers' style of docstrings, which lose their backticks. Model classes that a factory makes
are not in the source; they are added with their docstrings, as are the help texts of configurations, inherited fields
included. A class that hands all arguments to transformers' `Trainer` shows the parameters of the `Trainer`.
"""

import inspect
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import griffe
from transformers import PreTrainedConfig, Trainer

import hf_ssm
from hf_ssm.models.base.fields import help_texts

CODE = re.compile(r"(?<![`\[])`([A-Za-z_]\w*)`(?![`\]])")
ENTRY = re.compile(r"^::: (hf_ssm[\w.]*)$", re.MULTILINE)
TYPES = re.compile(r"^( +[\w, ]+ )\((.*`.*)\):", re.MULTILINE)


class LinkedNames(griffe.Extension):
    """Rewrites the docstrings of the package before they are parsed."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        public = {name: getattr(hf_ssm, name) for name in hf_ssm.__all__}
        self.top = {name: f"{found.__module__}.{found.__qualname__}" for name, found in public.items()}
        for name, found in public.items():
            self._add_made(pkg, name, found)
        for cls in {cls for found in public.values() if isinstance(found, type) for cls in found.__mro__}:
            if cls.__module__.startswith("hf_ssm.") and issubclass(cls, PreTrainedConfig):
                described = pkg[f"{cls.__module__}.{cls.__qualname__}".removeprefix("hf_ssm.")]
                described.docstring.value = "\n".join([inspect.cleandoc(cls.__doc__ or ""), *_inherited(cls)])
        for path in ("training.trainer.SSMTrainer", "training.chunks.PieceTrainer"):
            pkg[path].members["__init__"].parameters = _parameters(Trainer.__init__)
        pages = Path(__file__).parent.glob("reference/**/*.md")
        self.entries = {path for page in pages for path in ENTRY.findall(page.read_text("utf-8"))}
        self._visit(pkg)

    def _add_made(self, package: griffe.Module, name: str, found: Any) -> None:
        module = package
        for part in found.__module__.split(".")[1:]:
            module = module.members.get(part)
            if module is None:
                return
        if isinstance(found, type) and name not in module.members:
            bases = [f"{base.__module__}.{base.__name__}" for base in found.__bases__]
            made = griffe.Class(name, bases=bases, docstring=griffe.Docstring(found.__doc__ or ""))
            made.docstring.parent = made
            module.set_member(name, made)

    def _visit(self, found: Any) -> None:
        for member in found.members.values():
            if not member.is_alias:
                if member.docstring:
                    member.docstring.value = self._linked(member)
                if member.is_module or member.is_class:
                    self._visit(member)

    def _linked(self, documented: Any) -> str:
        own = {} if documented.is_attribute else {p.name for p in getattr(documented, "parameters", ())}
        module = documented if documented.is_module else documented.module
        shown = {name: member.path for name, member in module.members.items() if _is_public(member)}
        known = {name: path for name, path in shown.items() if self.entries & {path, module.path}} | self.top

        def link(match: re.Match[str]) -> str:
            name = match[1]
            if name in own or name == documented.name or name not in known:
                return match[0]
            return f"[{match[0]}][{known[name]}]"

        text = TYPES.sub(lambda match: f"{match[1]}({re.sub('[`*]', '', match[2])}):", documented.docstring.value)
        lines = (
            line if line.lstrip().startswith((">>>", "...")) else CODE.sub(link, line) for line in text.split("\n")
        )
        return "\n".join(lines)


def _inherited(config_class: Any) -> list[str]:
    """Lines on the fields that a configuration inherits, for its section on arguments."""
    texts, own = help_texts(config_class), inspect.get_annotations(config_class)
    lines = []
    for entry in fields(config_class):
        if entry.name in texts and (entry.name not in own or "help" not in entry.metadata):
            kind = entry.type.__name__ if isinstance(entry.type, type) else entry.type
            lines.append(f"    {entry.name} (`{kind}`, defaults to `{entry.default!r}`): {texts[entry.name]}")
    return lines if any("help" in entry.metadata and entry.name in own for entry in fields(config_class)) else []


def _parameters(function: Any) -> griffe.Parameters:
    """The parameters of a function of another package, which takes the place of `*args, **kwargs`."""
    return griffe.Parameters(
        *(
            griffe.Parameter(
                parameter.name,
                kind=griffe.ParameterKind.positional_or_keyword,
                default=None if parameter.default is inspect.Parameter.empty else repr(parameter.default),
            )
            for parameter in inspect.signature(function).parameters.values()
        )
    )


def _is_public(member: Any) -> bool:
    if member.is_alias or member.name.startswith("_"):
        return False
    return (member.is_class or member.is_function) and member.docstring is not None
