"""The house stands only while imports point one way; this reads them all and says where one does not."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = "hf_ssm"
ROOT = Path(__file__).resolve().parents[1] / PACKAGE

_BELOW_TRAINING = frozenset({"ops", "theory", "modules", "models", "utils"})
_LEAVES = frozenset({"tokenization", "data", "metrics", "plotting"})
_TOP_ROOMS = frozenset({"training", "probes", "hub"})
# What the theory says of a model and data: trained runs, probes and cards show it.
_ANALYSIS = frozenset({"analysis"})
# Room -> the rooms it may import from (its own apart). "" is hf_ssm/__init__.py.
ALLOWED = {
    "utils": frozenset(),
    "ops": frozenset({"utils"}),
    "theory": frozenset({"ops", "utils"}),
    "modules": frozenset({"ops", "theory", "utils"}),
    # A converted checkpoint gets the tokenizer that it had.
    "models": frozenset({"ops", "theory", "modules", "tokenization", "utils"}),
    "tokenization": frozenset(),
    "data": frozenset({"utils"}),
    "metrics": frozenset({"utils"}),
    "plotting": frozenset(),
    "analysis": _BELOW_TRAINING | {"plotting"},
    **dict.fromkeys(_TOP_ROOMS, _BELOW_TRAINING | _LEAVES | _ANALYSIS),
    # The Trainer pushes.
    "training": _BELOW_TRAINING | _LEAVES | _ANALYSIS | {"hub"},
    "": _BELOW_TRAINING | _LEAVES | _ANALYSIS | _TOP_ROOMS,
    "cli": _BELOW_TRAINING | _LEAVES | _ANALYSIS | _TOP_ROOMS | {""},
}


def _room(parts: tuple[str, ...]) -> str:
    """The room of a module path below the package: `("ops", "hippo")` -> `"ops"`, `()` -> `""`."""
    return parts[0] if parts else ""


def _imported_modules(tree: ast.AST, module: tuple[str, ...], is_package: bool) -> Iterator[tuple[int, str]]:
    """Line and dotted target of each import, function-level ones included; relative ones resolved."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module.split(".") if node.module else []
            if node.level:
                here = (PACKAGE, *module) if is_package else (PACKAGE, *module[:-1])
                base = [*here[: len(here) - node.level + 1], *base]
            for alias in node.names:
                # `from hf_ssm import ops` names a room, `from hf_ssm import HyenaConfig` the package itself.
                # The package's own name list decides nothing here: a known room is a room.
                target = [*base, alias.name] if base == [PACKAGE] and alias.name in ALLOWED else base
                yield node.lineno, ".".join(target)


def violations(root: Path) -> list[str]:
    """`file:line: room imports room` for each import below `root` that the picture does not allow."""
    found = []
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        module = parts[:-1] if is_package else parts
        room = _room(module)
        where = f"{PACKAGE}/{path.relative_to(root).as_posix()}"
        if room not in ALLOWED:
            found.append(f"{where}:1: room {room!r} is not in the picture: add it to ALLOWED and CONTRIBUTING.md")
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
        for line, target in _imported_modules(tree, module, is_package):
            head, *rest = target.split(".")
            if head != PACKAGE:
                continue
            target_room = _room(tuple(rest))
            if target_room != room and target_room not in ALLOWED[room]:
                found.append(f"{where}:{line}: {room or '__init__'} imports {target}, which points back")
    return found


def test_imports_point_one_way():
    assert any(ROOT.rglob("*.py")), f"no code below {ROOT}"
    found = violations(ROOT)
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("path", "source", "line"),
    [
        ("ops/hippo.py", "import torch\nfrom hf_ssm.models.base.backbone import Backbone\n", 2),
        ("ops/hippo.py", "def late():\n    import hf_ssm.cli\n", 2),
        ("theory/bounds.py", "from hf_ssm import HyenaConfig\n", 1),
        ("modules/mixer.py", "from hf_ssm import training\n", 1),
        ("models/common.py", "from ..training.trainer import SSMTrainer\n", 1),
        ("models/__init__.py", "from ..hub import card\n", 1),
        ("analysis/report.py", "from hf_ssm.training.trainer import SSMTrainer\n", 1),
        ("data/loading.py", "from hf_ssm.tokenization import build_dna_tokenizer\n", 1),
        ("probes/masking.py", "from hf_ssm.hub.card import write_card\n", 1),
        ("hub/card.py", "from hf_ssm import cli\n", 1),
        ("attic/old.py", "", 1),
    ],
)
def test_planted_violation_is_found(tmp_path, path, source, line):
    file = tmp_path / path
    file.parent.mkdir(parents=True)
    file.write_text(source, encoding="utf-8")
    (found,) = violations(tmp_path)
    assert found.startswith(f"hf_ssm/{path}:{line}: ")


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("ops/hippo.py", "import math\nfrom hf_ssm.ops.lti.discretize import zoh\n"),
        (
            "models/common.py",
            "from .configuration_s4 import S4Config\nfrom hf_ssm.modules import block\n",
        ),
        ("training/run.py", "from hf_ssm.data import load_sequences\n"),
        ("cli/train.py", "import hf_ssm\nfrom hf_ssm.hub import card\n"),
        ("training/run.py", "from hf_ssm.analysis.report import report\n"),
        ("__init__.py", "from hf_ssm.models.hyena.configuration_hyena import HyenaConfig\n"),
    ],
)
def test_allowed_import_is_let_through(tmp_path, path, source):
    file = tmp_path / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(source, encoding="utf-8")
    assert violations(tmp_path) == []
