"""Edits of sources: what is decided disappears, and the text of the rest stays."""

import ast
import importlib

import pytest

import hf_ssm
from hf_ssm.checkpoint.plain import ABSENT, FIXED_CALLS, REPLACED
from hf_ssm.checkpoint.simplify import Narrowing, simplify
from hf_ssm.checkpoint.sources import Sources
from hf_ssm.models.registry import FAMILIES

FIXED = {"exporting": False, "traced": True, "check": None}
HEAD = "from m import Operation, Other, check, exporting, traced\n"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("if exporting():\n    a = 1\nelse:\n    # Why β.\n    b = 2\n", "# Why β.\nb = 2\n"),
        ("# When exported.\nif exporting():\n    a = 1\nb = 2\n", "b = 2\n"),
        ("def f(x):\n    if exporting():\n        return 1\n", "def f(x):\n    pass\n"),
        ("if x:\n    a\nelif exporting():\n    b\nelse:\n    c\n", "if x:\n    a\nelse:\n    c\n"),
        ("if exporting():\n    a\nelif x:\n    b\nelse:\n    c\n", "if x:\n    b\nelse:\n    c\n"),
        ("if x:\n    a\nelif traced():\n    b\nelse:\n    c\n", "if x:\n    a\nelse:\n    b\n"),
        ("if x and not exporting():\n    a\n", "if x:\n    a\n"),
        ("if exporting() or (x or y) and z:\n    a\n", "if (x or y) and z:\n    a\n"),
        ("if traced() and (x or y) and z:\n    a\n", "if (x or y) and z:\n    a\n"),
        ("def f():\n    if traced():\n        return 1\n    return 2\n", "def f():\n    return 1\n"),
        ("a = 1 if exporting() else f(2)\n", "a = f(2)\n"),
        ("def f():\n    check(1)\n    return 2\n", "def f():\n    return 2\n"),
        (
            'def f(x):\n    """F.\n\n    Raises:\n        E: x.\n    """\n    check(x)\n    return 2\n',
            'def f(x):\n    """F.\n    """\n    return 2\n',
        ),
        ("if (y := check(1)) is not None:\n    a = y\nb = 1\n", "b = 1\n"),
        ("a = Operation(fast=g, torch=h)\nb = a(1), c.a\n", "b = h(1), c.a\n"),
        ("a = Operation(fast=g)\n", "a = Operation(fast=g)\n"),
        ("class A(Other, B):\n    def f(self) -> B | Other | None:\n        ...\n", None),
        ("class A:\n    def dropped(self):\n        ...\n\n    x = 1\n", "class A:\n\n    x = 1\n"),
        ('T = {"a": f, "b": g}\n', 'T = {"b": g}\n'),
        ('T: dict[str, F] = {"a": f, "b": g}\n', 'T: dict[str, F] = {"b": g}\n'),
        ("if self.flag:\n    a\nself.flag = 1\n", "a\nself.flag = 1\n"),
    ],
)
def test_what_is_decided_disappears(source, expected):
    if expected is None:
        expected = "class A(B):\n    def f(self) -> B | None:\n        ...\n"
    narrowing = Narrowing((("T", ("b",)),), (("flag", True),))
    found = simplify(HEAD + source, FIXED, {"Other", "A.dropped"}, narrowing)
    assert found == HEAD + expected
    ast.parse(found)


def test_a_module_that_does_not_import_a_function_keeps_its_calls():
    source = "def exporting():\n    return 1\n\n\na = exporting()\n"
    assert simplify(source, FIXED, (), Narrowing()) == source


def test_declared_names_exist():
    """A function that is renamed would become part of checkpoints again."""
    homes = [f.modeling.__name__ for f in FAMILIES.values() if f.modeling.__name__.startswith("hf_ssm.")]
    texts = [importlib.import_module(name).__spec__.loader.get_source(name) for name in Sources(homes).modules]
    assert hf_ssm.__name__ == "hf_ssm"
    for name in [*(n.removeprefix("self.") for n in FIXED_CALLS), *REPLACED, *(ABSENT - {"FusedGeneration"})]:
        name = name.rpartition(".")[2]
        assert any(f"def {name}(" in text or f"class {name}" in text for text in texts), name
