"""The script `hf-ssm`, beside the package: the import of hf_ssm registers its models, which takes seconds.

Python imports a package before the modules in it, so that the choice to leave the models out is made here.
"""

import sys
from collections.abc import Sequence
from importlib.util import find_spec, module_from_spec


def main() -> int:
    """Run the command line; for help and version, without the models."""
    if prints_text(sys.argv[1:]):
        import_without_models()
    from hf_ssm import cli

    return cli.main()


def prints_text(arguments: Sequence[str]) -> bool:
    """Whether the command prints a text for which torch and transformers are not needed."""
    return list(arguments[:1]) in ([], ["--version"]) or not {"-h", "--help"}.isdisjoint(arguments)


def import_without_models() -> None:
    """Import hf_ssm without the registration of its families."""
    spec = find_spec("hf_ssm")
    assert spec is not None and spec.loader is not None
    package = module_from_spec(spec)
    package.registers_families = False  # type: ignore[attr-defined]
    sys.modules["hf_ssm"] = package
    spec.loader.exec_module(package)
