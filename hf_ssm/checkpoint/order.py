"""The order in which a model reads from the top: a definition, then what it uses, as far as Python allows."""

import ast
import re
from collections.abc import Iterable, Iterator

from hf_ssm.checkpoint.sources import Import, Name, Sources, Statement

__all__ = ["in_reading_order"]


def in_reading_order(
    sources: Sources, statements: list[Statement], attributes: frozenset[str], home: str, roots: Iterable[Name]
) -> list[Statement]:
    """Sort statements: each root is followed by what it uses, in the order in which its text names that.

    Statements of a module stay together, except those of `home`. What Python evaluates when it executes a definition
    (base classes, decorators, defaults, annotations, constants) comes before the definition.

    Args:
        sources: The modules.
        statements: In order of execution.
        attributes: Names of the methods that classes have.
        home: The module of the models.
        roots: Definitions to begin with.
    """
    groups: dict[object, list[Statement]] = {}
    for statement in statements:
        groups.setdefault(statement.key if statement.module == home else statement.module, []).append(statement)
    group_of = {(s.module, bound): key for key, group in groups.items() for s in group for bound in s.binds}
    uses: dict[object, list[object]] = {}
    needs: dict[object, list[object]] = {}
    calls: dict[object, list[object]] = {}
    for key, group in groups.items():
        uses[key], needs[key], calls[key] = [], [], []
        for statement in group:

            def known(names: Iterable[str], statement: Statement = statement) -> Iterator[object]:
                meanings = (sources.meaning(statement.module, name) for name in names)
                return (group_of[m] for m in meanings if m is not None and not isinstance(m, Import) and m in group_of)

            in_text = re.findall(r"[^\W\d]\w*", statement.rendered(attributes))
            used = statement.uses_with(attributes).names
            uses[key] += known(name for name in dict.fromkeys(in_text) if name in used)
            executed = list(_executed(statement.node))
            needs[key] += known(name for name, _ in executed)
            calls[key] += known(name for name, is_called in executed if is_called)
    ordered: list[object] = []
    begun: set[object] = set()

    def place(key: object) -> None:
        """Place a group after those that it needs, and those that functions use which are called on execution."""
        if key not in begun:
            begun.add(key)
            for other in [*needs[key], *_closure(calls[key], uses)]:
                place(other)
            ordered.append(key)

    def visit(key: object) -> None:
        if key not in begun:
            first = len(ordered)
            place(key)
            for placed in ordered[first:][::-1]:
                for other in uses[placed]:
                    visit(other)

    for key in [*(group_of[root] for root in roots if root in group_of), *groups]:
        visit(key)
    return [statement for key in ordered for statement in groups[key]]


def _closure(keys: Iterable[object], uses: dict[object, list[object]]) -> list[object]:
    reached: dict[object, None] = {}
    waiting = list(keys)
    while waiting:
        if (key := waiting.pop()) not in reached:
            reached[key] = None
            waiting += uses[key]
    return list(reached)


def _executed(node: ast.AST, is_called: bool = False) -> Iterator[tuple[str, bool]]:
    """Names that Python looks up when it executes a statement, and whether it may call what they mean."""
    if isinstance(node, ast.Lambda):
        return
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        for decorator in node.decorator_list:
            yield from _executed(decorator, True)
        defaults = [default for default in (*node.args.defaults, *node.args.kw_defaults) if default is not None]
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs, node.args.vararg, node.args.kwarg]
        annotations = [argument.annotation for argument in arguments if argument is not None]
        for part in (*defaults, *annotations, node.returns):
            if part is not None:
                yield from _executed(part)
        return
    if isinstance(node, ast.ClassDef):
        for decorator in node.decorator_list:
            yield from _executed(decorator, True)
        node = ast.Module([*map(ast.Expr, (*node.bases, *(k.value for k in node.keywords))), *node.body], [])
    if isinstance(node, ast.Name):
        yield node.id, is_called
    for child in ast.iter_child_nodes(node):
        yield from _executed(child, is_called or isinstance(node, ast.Call))
