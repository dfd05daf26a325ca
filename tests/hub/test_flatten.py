"""The code that travels with a checkpoint: flat, complete, and asking for nothing that may be absent."""

import ast
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from transformers.dynamic_module_utils import get_imports, get_relative_import_files

import hf_ssm
from hf_ssm.hub import flatten as module
from hf_ssm.hub.flatten import HEADER, flatten
from hf_ssm.models.registry import FAMILIES

AT_HAND = {"huggingface_hub", "numpy", "safetensors", "torch", "transformers"}


@pytest.fixture(scope="module", params=sorted(FAMILIES))
def files(request: pytest.FixtureRequest) -> dict[str, str]:
    return flatten(FAMILIES[request.param].modeling.__name__)


@pytest.fixture
def folder(files: dict[str, str], tmp_path: Path) -> Path:
    for name, source in files.items():
        (tmp_path / name).write_text(source, encoding="utf-8")
    return tmp_path


def test_modeling_and_configuration_keep_their_names(files):
    (modeling,) = (name for name in files if name.startswith("modeling_"))
    assert modeling.replace("modeling_", "configuration_") in files
    assert all(re.fullmatch(r"[a-z0-9_]+\.py", name) for name in files)
    rooms = ("configuration_", "models_", "modules_", "ops_", "theory_")
    assert [name for name in files if not name.startswith(rooms)] == [modeling]


def test_every_file_compiles_and_says_where_it_is_from(files):
    for name, source in files.items():
        compile(source, name, "exec")
        where = re.match(rf"{HEADER} {re.escape(hf_ssm.__version__)} \((\S+), Apache-2\.0\)\.\n", source)
        assert where is not None, name
        assert (Path(hf_ssm.__file__).parents[1] / where[1]).is_file()


def test_transformers_finds_every_file_and_no_other(files, folder):
    (modeling,) = folder.glob("modeling_*.py")
    found = {Path(path).name for path in get_relative_import_files(modeling)}
    assert found == set(files) - {modeling.name}


def test_nothing_is_demanded_that_may_be_absent(folder):
    for path in folder.iterdir():
        assert set(get_imports(path)) <= AT_HAND | sys.stdlib_module_names, path.name


def test_all_siblings_have_what_is_imported_from_them(files):
    trees = {name: ast.parse(source) for name, source in files.items()}
    defined: dict[str, set[str]] = {}
    for name, tree in trees.items():
        nodes = list(ast.walk(tree))
        defined[name] = {node.id for node in nodes if isinstance(node, ast.Name)}
        defined[name] |= {getattr(statement, "name", "") for statement in tree.body}
        defined[name] |= {alias.name for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names}
    for name, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.level:
                assert node.level == 1
                assert {alias.name for alias in node.names} <= defined[f"{node.module}.py"], f"{name}: {node.lineno}"


def test_ruff_would_leave_the_files_as_they_are(folder):
    ruff = shutil.which("ruff", path=f"{Path(sys.executable).parent}:/usr/bin:/usr/local/bin")
    if ruff is None:
        pytest.skip("ruff is not installed (the extra `lint`)")
    command = [ruff, "format", "--check", "--isolated", "--line-length", "120", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.fixture
def planted(tmp_path, monkeypatch) -> Callable[..., dict[str, str]]:
    """`planted(**sources)`: the files of a small package, flattened from `hf_ssm.models.modeling_x`."""
    monkeypatch.setattr(module, "_ROOT", tmp_path / "hf_ssm")

    def plant(**sources: str) -> dict[str, str]:
        for name, source in sources.items():
            path = tmp_path.joinpath("hf_ssm", *name.split("__")).with_suffix(".py")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(source, encoding="utf-8")
        return flatten.__wrapped__("hf_ssm.models.modeling_x")

    return plant


def test_heads_of_imports_are_all_that_changes(planted):
    found = planted(
        models__modeling_x='"""X"""\nfrom hf_ssm.ops.deep.sum import (\n    a\n)\nfrom .common import c\n',
        models__common="def c():\n    from hf_ssm.ops.late import d\n    return d\n",
        ops__deep__sum="a = 1\n",
        ops__late="try:\n    from hf_ssm.ops.cpu.fast import d\nexcept ImportError:\n    d = None\n",
    )
    bodies = {name: source.partition("\n")[2] for name, source in found.items()}
    assert bodies == {
        "modeling_x.py": '"""X"""\nfrom .ops_deep_sum import (\n    a\n)\nfrom .models_common import c\n',
        "models_common.py": "def c():\n    from .ops_late import d\n    return d\n",
        "ops_deep_sum.py": "a = 1\n",
        # What may be absent is left to the `try` it stands in.
        "ops_late.py": "try:\n    from hf_ssm.ops.cpu.fast import d\nexcept ImportError:\n    d = None\n",
    }


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("from hf_ssm.ops import kernels\n", r"modeling_x\.py:1: .*not the module hf_ssm\.ops itself"),
        ("import torch\nimport hf_ssm.ops.kernels\n", r"modeling_x\.py:2: write `from module import names`"),
        ("from . import common\n", r"modeling_x\.py:1: .*not the module hf_ssm\.models itself"),
        ("from hf_ssm.ops.kernels \\\n    import a\n", r"modeling_x\.py:1: .*with the head on one line"),
        ("def late():\n    import numba\n", r"modeling_x\.py:2: numba need not be there"),
        ("if True:\n    from scipy.linalg import eig\n", r"modeling_x\.py:2: scipy need not be there"),
        ('"""Write\n\nfrom .x import y\n"""\n', r"looks like a relative import is none.*: x$"),
        ("a = 1; from hf_ssm.ops.kernels import b\n", r"does not look like it.*: ops_kernels$"),
    ],
)
def test_what_cannot_travel_is_refused(planted, source, message):
    with pytest.raises(ValueError, match=message):
        planted(models__modeling_x=source, ops____init__="", ops__kernels="a = b = 1\n", models____init__="")
