"""The code of a checkpoint: three readable files, with everything that a family's models use and nothing else."""

import ast
import importlib
import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from transformers.dynamic_module_utils import get_imports, get_relative_import_files

import hf_ssm
from hf_ssm.checkpoint import HEADER, auto_map, bundle, file_names, write_code
from hf_ssm.models.registry import FAMILIES, HEADS, Family

AVAILABLE = {"huggingface_hub", "numpy", "packaging", "safetensors", "torch", "transformers"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundles of all families."""
    home = tmp_path_factory.mktemp("bundles")
    for family in FAMILIES.values():
        write_code(family.config_class(), home)
    return home


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_a_bundle_is_three_files_that_transformers_can_load(name, folder):
    family = FAMILIES[name]
    files = bundle(family.config_class())
    stems = [f"{kind}_hf_ssm_{family.short_name}" for kind in ("configuration", "modeling")]
    configuration, modeling, runtime = (folder / f"{stem}.py" for stem in (*stems, "runtime_hf_ssm"))
    assert list(files) == file_names(family) == [configuration.name, modeling.name, runtime.name]
    assert get_relative_import_files(runtime) == []
    assert get_relative_import_files(configuration) == [str(runtime)]
    assert set(get_relative_import_files(modeling)) == {str(configuration), str(runtime)}
    for path in (configuration, modeling, runtime):
        assert path.read_text(encoding="utf-8") == files[path.name]
        assert set(get_imports(path)) <= AVAILABLE | sys.stdlib_module_names
    classes = {auto: reference.split(".") for auto, reference in auto_map(family).items()}
    assert {stem for stem, _ in classes.values()} == set(stems)
    heads = {cls.__name__: HEADS[head] for head, cls in family.model_classes.items()}
    registered = [
        (heads.get(cls.__name__, "AutoConfig"), (stems[bool(heads.get(cls.__name__))], cls.__name__))
        for cls in (family.config_class, *family.model_classes.values())
    ]
    assert ast.get_docstring(ast.parse(files[runtime.name])) is not None
    for stem, source in zip(stems, files.values(), strict=False):
        assert source.startswith(f"{HEADER} {hf_ssm.__version__} (Apache-2.0).\n")
        tree = ast.parse(source)
        assert ast.get_docstring(tree) is not None
        last = [ast.unparse(node) for node in tree.body if "register_for_auto_class" in ast.unparse(node)]
        assert last == [f"{cls}.register_for_auto_class({auto!r})" for auto, (file, cls) in registered if file == stem]
    others = [f"class {other}Mixer" for other in ("Hyena", "S4", "Selective") if not name.startswith(other)]
    assert not any(other in source for other in others for source in files.values())


def test_ruff_finds_no_undefined_or_unused_name_and_hardly_another_layout(folder):
    ruff = shutil.which("ruff", path=f"{Path(sys.executable).parent}:/usr/bin:/usr/local/bin")
    if ruff is None:
        pytest.skip("ruff is not installed (the extra `lint`)")
    # A variable may be assigned for options that the configuration excludes: draws keep their order.
    checked = subprocess.run(
        [ruff, "check", "--isolated", "--select", "F", "--ignore", "F841", folder], capture_output=True, text=True
    )
    assert checked.returncode == 0, checked.stdout
    options = ["--diff", "--isolated", "--line-length", "120"]
    diff = subprocess.run([ruff, "format", *options, folder], capture_output=True, text=True).stdout.splitlines()
    changed = [line for line in diff if line.startswith("-") and not line.startswith("---")]
    # A longer name can make a line too long.
    total = sum(path.read_text(encoding="utf-8").count("\n") for path in folder.glob("*.py"))
    assert len(changed) < total / 1000, "\n".join(changed)


@pytest.mark.parametrize(
    ("config", "absent"),
    [
        (hf_ssm.HyenaConfig(), ["StateSpaceFilter", "SinusoidFilter", "dplr_kernel"]),
        (hf_ssm.HyenaConfig(filter_type="s4d"), ["ImplicitFilter", "dplr_kernel"]),
        (hf_ssm.S4Config(), ["ImplicitFilter", "dplr_kernel"]),
        (hf_ssm.S4Config(kernel_type="s4"), ["ImplicitFilter"]),
        (hf_ssm.S5Config(), ["LongConvolution"]),
        (hf_ssm.SelectiveSSMConfig(rc_equivariant=True), ["LongConvolution"]),
        (hf_ssm.SSDConfig(), ["SelectiveMixer"]),
        (hf_ssm.ConvS5Config(), ["SSMForCausalLM"]),
        (hf_ssm.Hyena2Config(), ["ImplicitFilter", "StateSpaceFilter", "dplr_kernel"]),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, list) else "",
)
def test_a_modeling_file_is_short_and_has_the_model_of_its_configuration_only(config, absent):
    _, modeling, runtime = bundle(config).values()
    assert modeling.count("\n") <= 1500
    assert not any(name in modeling for name in ("is_exporting", "Operation(", "Compiled(", "custom_op", *absent))
    assert runtime == list(bundle(hf_ssm.S4Config()).values())[2]


def test_a_model_without_the_filter_says_so(tmp_path):
    (tmp_path / "bundled_s4").mkdir()
    for name, source in {"__init__.py": "", **bundle(hf_ssm.S4Config(kernel_type="s4d"))}.items():
        (tmp_path / "bundled_s4" / name).write_text(source, encoding="utf-8")
    run = "from bundled_s4.modeling_hf_ssm_s4 import S4Model as M; M(M.config_class(kernel_type='s4'))"
    done = subprocess.run([sys.executable, "-c", run], cwd=tmp_path, capture_output=True, text=True)
    assert "has only the filter 's4d', not 's4': install and import hf_ssm." in done.stderr


# A family in a package of its own.

Plant = Callable[..., Family]

BASE = """class Base:
    @classmethod
    def register_for_auto_class(cls, auto="AutoConfig"):
        cls.auto = auto
"""
CONFIGURATION = """from toys.base import Base


class ToyConfig(Base):
    model_type = "toy"
"""


@pytest.fixture
def plant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plant:
    """`plant(**sources)` writes the modules of the package `toys` and imports its family."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(**sources: str) -> Family:
        sources = {"__init__": "", "base": BASE, "configuration_toy": CONFIGURATION} | sources
        for name, source in sources.items():
            (tmp_path / "toys").mkdir(exist_ok=True)
            (tmp_path / "toys" / f"{name}.py").write_text(source, encoding="utf-8")
        importlib.invalidate_caches()
        configuration = importlib.import_module("toys.configuration_toy")
        modeling = importlib.import_module("toys.modeling_toy")
        family = Family("Toy", configuration.ToyConfig, {"Model": modeling.ToyModel}, modeling)
        monkeypatch.setitem(FAMILIES, "Toy", family)
        return family

    yield write
    forget("toys")


def forget(package: str) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        del sys.modules[name]


def load(files: dict[str, str], folder: Path) -> ModuleType:
    """The modeling module of a bundle, imported where `toys` cannot be."""
    shutil.rmtree(folder / "toys")
    forget("toys")
    (folder / "bundled").mkdir()
    for name, source in {"__init__.py": "", **files}.items():
        (folder / "bundled" / name).write_text(source, encoding="utf-8")
    importlib.invalidate_caches()
    try:
        return importlib.import_module("bundled.modeling_hf_ssm_toy")
    finally:
        forget("bundled")


FIRST = '''"""First.

Legend: `B` batch.
"""

import math
from dataclasses import dataclass

# A step.
_STEP = 2
"""Documented."""
LOG = []


@dataclass
class _Box:
    size: int = _STEP


def first(x: int, box: "_Box | None" = None) -> int:
    box = box or _Box(x)
    return box.size * _STEP + math.floor(0.5)  # at the end of a line


def note(function):
    LOG.append(_STEP)
    return function


def unused():
    return _unused_helper()


def _unused_helper():
    return decimal
'''
SECOND = '''"""Second."""

from toys.first import LOG, first, note


@note
def second(x):
    return first(x)


LOG.append("side effect")


def elsewhere():
    return second
'''
TOY = '''"""Toy models."""

import importlib

from toys.base import Base
from toys.second import LOG, second

try:
    from toys.compiled import fast
except ImportError:
    fast = None


class ToyModel(Base):
    """A model."""

    def __call__(self, x):
        return (second(x), list(LOG), fast)

    def convert(self):
        return importlib.import_module("toys.convert").convert(self)
'''


def test_what_a_model_uses_is_in_its_bundle(plant, tmp_path):
    family = plant(first=FIRST, second=SECOND, modeling_toy=TOY)
    expected = family.modeling.ToyModel()(5)
    source = bundle(family.config_class())["modeling_hf_ssm_toy.py"]
    assert load(bundle(family.config_class()), tmp_path).ToyModel()(5) == expected
    # Comments, docstrings of constants and legends remain; definitions that no model uses do not.
    assert '# A step.\n_STEP = 2\n"""Documented."""\n' in source and "# at the end of a line" in source
    assert "# toys.first\n#\n# First.\n#\n# Legend: `B` batch.\n" in source
    assert "unused" not in source and "elsewhere" not in source


@pytest.mark.parametrize(
    ("model", "others", "message"),
    [
        ("from toys import base\nclass ToyModel: x = base.Base\n", {}, r"toy\.py:1: `base` cannot be bundled"),
        ("import toys.base\nclass ToyModel: x = toys.base\n", {}, r"toy\.py:1: `toys` cannot be bundled"),
        ("from toys.base import *\nclass ToyModel: x = Base\n", {}, r"toy\.py:1: .* cannot use `from .* \*`"),
        (
            "class ToyModel:\n    def f(self):\n        from toys.base import Base\n",
            {},
            r"toy\.py:3: `from toys\.base import Base` is inside a definition",
        ),
        (
            'class ToyModel:\n    """Write\n\n    from .x import y\n    """\n',
            {},
            r"modeling_hf_ssm_toy\.py contains text that looks like a relative import of x:",
        ),
        (
            "from toys.a import f as other\nclass ToyModel: x = other\n",
            {"a": "def f(): pass\n"},
            r"toy\.py:1: `other` cannot be bundled",
        ),
        (
            "from toys.a import f\nfrom toys.b import g\nclass ToyModel: x = f, g\n",
            {"a": "def _n(): pass\ndef f(): return _n\n", "b": "def _n(): pass\nclass g:\n    _n = _n\n"},
            r"b\.py:1: `_n` has another meaning in toys\.a",
        ),
    ],
)
def test_what_cannot_be_bundled_is_refused_with_its_place(plant, model, others, message):
    family = plant(**{"modeling_toy": model, **others})
    with pytest.raises(ValueError, match=message):
        bundle(family.config_class())


def test_modules_that_import_each_other_are_refused(plant, tmp_path):
    family = plant(modeling_toy="from toys.b import x\nclass ToyModel: y = x\n", b="x = 1\n")
    (tmp_path / "toys" / "b.py").write_text("from toys.c import z\nx = 1\n")
    (tmp_path / "toys" / "c.py").write_text("from toys.b import x\nz = 1\n")
    with pytest.raises(ValueError, match=r"import each other .*: toys\.modeling_toy -> toys\.b -> toys\.c -> toys\.b"):
        bundle(family.config_class())


def test_a_class_without_a_file_or_a_family_is_refused(plant):
    with pytest.raises(ValueError, match="is not the configuration of a family"):
        bundle({})
    family = plant(modeling_toy="class ToyModel: pass\n")
    del family.modeling.__file__
    with pytest.raises(ValueError, match=r"'toys\.modeling_toy' has no source file"):
        bundle(family.config_class())


@pytest.mark.parametrize("left", ["", "class Hyena", None])
def test_an_interrupted_save_does_not_hinder_the_next(tmp_path, left, monkeypatch):
    """A file that is empty, cut off or only temporary, as a killed process leaves it."""
    config = hf_ssm.HyenaConfig()
    model = hf_ssm.HyenaModel(config)
    names = list(bundle(config))
    if left is None:
        (tmp_path / f".{names[1]}.1.tmp").write_text("half")
    else:
        (tmp_path / names[1]).write_text(left)
    model.save_pretrained(tmp_path)
    assert (tmp_path / names[1]).read_text(encoding="utf-8") == bundle(config)[names[1]]

    def fail(self: Path, *args: Any) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="No space left"):
        model.save_pretrained(tmp_path)
    assert (tmp_path / names[1]).read_text(encoding="utf-8") == bundle(config)[names[1]]
    assert sorted(path.name for path in tmp_path.glob("*.py")) == sorted(names)
