"""The Triton kernels as a repository of the Hub's `kernels` library, pure Triton ("torch-noarch").

build.toml                       what `kernel-builder` reads
torch-ext/hf_ssm_kernels/        the package: the files of `hf_ssm/ops` that the kernels need
build/torch-cuda/ torch-rocm/ torch-cpu/
                                 the same package with metadata.json, as `kernels.get_kernel` loads it
"""

import ast
import hashlib
import json
from importlib.metadata import version
from pathlib import Path

from hf_ssm.hub.exporting import new_folder
from hf_ssm.ops import backends

__all__ = ["save_kernels"]

NAME, PACKAGE, VERSION = "hf-ssm-kernels", "hf_ssm_kernels", 1
_ROOT, _PREFIX = Path(backends.__file__).parent, "hf_ssm.ops."
_ENTRY = "gpu.layers"
# kernel-builder's names of platforms. On a CPU the kernels run in Triton's interpreter, or else PyTorch serves.
_PLATFORMS = ("cuda", "rocm", "cpu")

_INIT = '''"""Triton kernels of state space models: selective scan, state space duality (Mamba-2), short convolution.

Written by hf_ssm {version}. `layers` has the layers that transformers asks for with `use_kernels=True`; the functions
here are the same.
"""

from . import layers

{functions}

__all__ = {names}
'''

_BUILD_TOML = """[general]
name = "{name}"
version = {version}
license = "Apache-2.0"
backends = ["cuda", "rocm"]

[torch-noarch]
"""

_CARD = """---
library_name: kernels
license: apache-2.0
tags: [kernels, state-space-models]
---

# Triton kernels of state space models

The kernels compute the selective scan (Mamba), state space duality (Mamba-2) and the short convolution, with gradients.
They are for NVIDIA GPUs from compute capability 8.0 on and for AMD GPUs, and need Triton. Calls that the kernels do not
support, such as double precision, run in PyTorch. hf_ssm {version} wrote this repository.

```python
from transformers import AutoModelForCausalLM, KernelConfig

path = "PATH/OF/THIS/FOLDER"
names = ["selective_scan_fn", "mamba_chunk_scan_combined", "causal_conv1d_fn", "causal_conv1d_update"]
kernels = KernelConfig({{name: f"{{path}}:{{name}}" for name in names}}, use_local_kernel=True)
model = AutoModelForCausalLM.from_pretrained("MAMBA/CHECKPOINT", use_kernels=True, kernel_config=kernels).cuda()
```
"""


def _add_module(module: str, sources: dict[str, str]) -> None:
    """Add the source of a module below `hf_ssm.ops`, and of those that it imports, with relative imports."""
    if module in sources:
        return
    path = _ROOT / Path(*module.split(".")).with_suffix(".py")
    if not path.is_file():
        raise ValueError(
            f"hf_ssm.ops.{module} is a package: kernels, and the modules that they import, must import from the "
            "modules of the package"
        )
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    sources[module] = ""
    for node in ast.walk(ast.parse("".join(lines))):
        if not isinstance(node, ast.ImportFrom) or node.module is None or not node.module.startswith("hf_ssm"):
            continue
        if not node.module.startswith(_PREFIX):
            raise ValueError(f"hf_ssm.ops.{module} imports {node.module}: the kernels must not need it")
        target = node.module.removeprefix(_PREFIX)
        dots, at = "." * (module.count(".") + 1), node.lineno - 1
        lines[at] = lines[at].replace(f"from {node.module} import", f"from {dots}{target} import")
        _add_module(target, sources)
    sources[module] = "".join(lines)


def _package_files() -> dict[str, str]:
    """Text of each file of the package, by its path."""
    from hf_ssm.ops.gpu import layers

    modules: dict[str, str] = {}
    _add_module(_ENTRY, modules)
    files = {f"{module.replace('.', '/')}.py": text for module, text in modules.items()}
    for folder in {Path(path).parent.as_posix() for path in files} - {"."}:
        files[f"{folder}/__init__.py"] = ""
    functions = "\n".join(f"{name} = layers.{name}()" for name in layers.__all__)
    init = _INIT.format(version=version("hf_ssm"), functions=functions, names=json.dumps(["layers", *layers.__all__]))
    files["__init__.py"] = init.replace("from . import layers", "from .gpu import layers")
    return dict(sorted(files.items()))


def _write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def save_kernels(folder: str | Path) -> Path:
    """Write the Triton kernels as a kernel repository, which `kernels.get_local_kernel` loads.

    Args:
        folder: The repository; a folder that does not exist or is empty.

    Returns:
        The folder.

    Raises:
        FileExistsError: The folder is not empty.
        NotADirectoryError: `folder` is a file.
    """
    with new_folder(folder) as repository:
        package = _package_files()
        digest = hashlib.sha256(json.dumps(package).encode()).hexdigest()[:12]
        build = _BUILD_TOML.format(name=NAME, version=VERSION)
        _write(repository, {"build.toml": build, "README.md": _CARD.format(version=version("hf_ssm"))})
        _write(repository / "torch-ext" / PACKAGE, package)
        for platform in _PLATFORMS:
            metadata = {
                "name": NAME,
                "id": f"_{PACKAGE}_{platform}_{digest}",
                "version": VERSION,
                "license": "Apache-2.0",
                "python-depends": [],
                "backend": {"type": platform},
            }
            metadata_file = {"metadata.json": json.dumps(metadata, indent=1)}
            _write(repository / "build" / f"torch-{platform}", package | metadata_file)
    return Path(folder).absolute()
