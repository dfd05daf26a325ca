"""Measure the power of the tests: break one line of the package at a time, and see whether the tests near it notice.

    python tests/power.py --mutants 300 --seed 0 --output runs/power.json
    python tests/power.py --report runs/power.json

Each mutant changes one number, sign, comparison or condition, or drops one call, in a copy of the project. The tests
near a module are the test files that name it or what it defines, those of the same folder and name first. 300 mutants
take some hours of one core; an interrupted run continues. Not part of the suite.
"""

import argparse
import ast
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
OPPOSITE: dict[type, Any] = {
    **{ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE, ast.LtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq},
    **{ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.And: ast.Or, ast.Or: ast.And},
    **{ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In},
}

# Tests that all layers and models pass through, for modules that no test names.
CORE = [
    ROOT / "tests" / "models" / f"test_{name}.py"
    for name in ("padding_and_causality", "packing", "generation", "cache")
]


def mutant(path: Path, index: int) -> tuple[int, str, str] | None:
    """Line, description and new source of a mutant of a module; `None` if nothing changes."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    node = next(node for place, node in enumerate(_places(tree)) if place == index)
    before = ast.unparse(node)
    _break(node)
    after = ast.unparse(node)
    return (node.lineno, f"{before[:60]} -> {after[:60]}", ast.unparse(tree)) if before != after else None


def _places(tree: ast.AST) -> Iterator[Any]:
    """The nodes that can be broken; not those of messages, annotations or `raise`."""
    if isinstance(tree, ast.Raise | ast.JoinedStr | ast.Import | ast.ImportFrom | ast.Assert):
        return
    for name, value in ast.iter_fields(tree):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        for node in value if isinstance(value, list) else [value]:
            if not isinstance(node, ast.AST):
                continue
            is_number = isinstance(node, ast.Constant) and type(node.value) in (int, float, bool)
            is_operation = isinstance(node, ast.BinOp | ast.BoolOp) and type(node.op) in OPPOSITE
            is_comparison = isinstance(node, ast.Compare) and type(node.ops[0]) in OPPOSITE
            is_call = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
            if is_number or is_operation or is_comparison or is_call or isinstance(node, ast.IfExp):
                yield node
            yield from _places(node)


def _break(node: Any) -> None:
    if isinstance(node, ast.Constant):
        node.value = not node.value if isinstance(node.value, bool) else node.value + 1
    elif isinstance(node, ast.BinOp | ast.BoolOp):
        node.op = OPPOSITE[type(node.op)]()
    elif isinstance(node, ast.Compare):
        node.ops[0] = OPPOSITE[type(node.ops[0])]()
    elif isinstance(node, ast.IfExp):
        node.body, node.orelse = node.orelse, node.body
    else:
        node.value = ast.Constant(None)


def tests_near(module: Path, texts: dict[Path, str], most: int = 4) -> list[Path]:
    """The test files that have most to do with a module, at most `most`."""
    parts = module.relative_to(ROOT / "hf_ssm").with_suffix("").parts
    dotted = ".".join(("hf_ssm", *parts))
    tree = ast.parse(module.read_text(encoding="utf-8"))
    kinds = ast.FunctionDef | ast.ClassDef
    names = [node.name for node in tree.body if isinstance(node, kinds) and not node.name.startswith("_")]
    defined = re.compile("|".join(rf"\b{name}\b" for name in names) or "$^")
    scores = {}
    for path, text in texts.items():
        is_namesake = path.stem in (f"test_{parts[-1]}", f"test_{'_'.join(parts)}", f"test_cli_{parts[-1]}")
        is_neighbour = parts[0] in path.relative_to(ROOT / "tests").parts
        found = len(set(defined.findall(text)))
        score = 100 * is_namesake + 20 * (dotted in text) + 5 * found + 3 * (is_neighbour and found > 0)
        if score:
            scores[path] = score + 3 * is_neighbour
    near = sorted(scores, key=lambda path: (-scores[path], path))[:most]
    return near or [path for path in texts if path.parent.name == parts[0] and parts[0] != "models"][:most] or CORE


def survives(module: Path, source: str, tests: list[Path], limit: int, copies: list[Path]) -> bool | None:
    """Whether the tests pass with the new source of a module; `None` if they take longer than `limit` seconds."""
    copy = copies.pop()
    target = copy / module.relative_to(ROOT)
    original = target.read_text(encoding="utf-8")
    target.write_text(source, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", "not docs and not grid"]
    try:
        done = subprocess.run(
            [*command, *(str(path.relative_to(ROOT)) for path in tests)],
            cwd=copy,
            env=os.environ | {"PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=limit,
        )
        return done.returncode == 0
    except subprocess.TimeoutExpired:
        return None
    finally:
        target.write_text(original, encoding="utf-8")
        copies.append(copy)


def chosen(count: int, seed: int) -> list[tuple[Path, int, str, str]]:
    """Mutants of all modules in turn, each with module, line, description and source."""
    generator = random.Random(seed)
    modules = [path for path in sorted((ROOT / "hf_ssm").rglob("*.py")) if path.name != "__init__.py"]
    waiting = {}
    for path in modules:
        places = list(range(sum(1 for _ in _places(ast.parse(path.read_text(encoding="utf-8"))))))
        generator.shuffle(places)
        waiting[path] = places
    generator.shuffle(modules)
    picked: list[tuple[Path, int, str, str]] = []
    while len(picked) < count and any(waiting.values()):
        for path in modules:
            found = mutant(path, waiting[path].pop()) if waiting[path] else None
            picked += [] if found is None else [(path, *found)]
    return picked[:count]


def report(results: dict[str, Any]) -> None:
    caught = sum(entry["survived"] is False for entry in results.values())
    undecided = sum(entry["survived"] is None for entry in results.values())
    print(f"{caught} of {len(results) - undecided} mutants were noticed; {undecided} took too long to tell")
    for key, entry in sorted(results.items()):
        if entry["survived"]:
            print(f"{key}  {entry['change']}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mutants", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--limit", type=int, default=240, help="seconds for the tests of a mutant")
    parser.add_argument("--output", type=Path, default=ROOT / "runs" / "power.json")
    parser.add_argument("--report", type=Path, help="only print the results in this file")
    args = parser.parse_args()
    if args.report is not None:
        report(json.loads(args.report.read_text()))
        return
    results = json.loads(args.output.read_text()) if args.output.exists() else {}
    texts = {path: path.read_text(encoding="utf-8") for path in sorted((ROOT / "tests").rglob("test_*.py"))}
    args.output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(args.workers) as pool:
        copies = [Path(scratch, str(worker)) for worker in range(args.workers)]
        for copy in copies:
            shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".*", "runs", "site"))

        def measure(module: Path, line: int, change: str, source: str) -> None:
            key = f"{module.relative_to(ROOT).as_posix()}:{line} {change}"
            if key in results:
                return
            tests = tests_near(module, texts)
            survived = survives(module, source, tests, args.limit, copies) if tests else True
            results[key] = {"survived": survived, "change": change, "tests": [path.name for path in tests]}
            args.output.write_text(json.dumps(results, indent=1))
            print("survived" if survived else "too slow" if survived is None else "noticed", key, flush=True)

        for _ in pool.map(lambda mutant: measure(*mutant), chosen(args.mutants, args.seed)):
            pass
    report(results)


if __name__ == "__main__":
    main()
