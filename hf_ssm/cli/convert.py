"""`hf-ssm convert`."""

import argparse
from pathlib import Path


def add_convert(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "source",
        metavar="SOURCE",
        help="a file with a state dict (a selective SSM of Honarpisheh et al., the example of state-spaces/s4), or a "
        "folder or Hub id of a Mamba or HyenaDNA model",
    )
    parser.add_argument("target", metavar="TARGET", type=Path, help="folder for the result")
    parser.add_argument("--overwrite-output", action="store_true", help="replace TARGET")
    parser.add_argument(
        "--norm-first",
        action="store_true",
        default=None,
        help="S4, whose files do not say: the model has its norms before the layers (it was trained with --prenorm)",
    )
    parser.add_argument(
        "--discretization",
        choices=("zoh", "bilinear"),
        help="S4, whose files do not say: the rule it was trained with (default: that of the version that wrote it)",
    )


def run_convert(args: argparse.Namespace) -> None:
    """`hf-ssm convert`: a foreign checkpoint as a folder that the Auto classes load."""
    from hf_ssm.models.conversion import convert_checkpoint
    from hf_ssm.models.registry import FAMILIES, HEADS
    from hf_ssm.models.s4.configuration_s4 import S4Config

    model = convert_checkpoint(
        args.source,
        args.target,
        overwrite=args.overwrite_output,
        norm_first=args.norm_first,
        discretization=args.discretization,
    )
    name, config = type(model).__name__, model.config
    family = next(family for family in FAMILIES if name.startswith(family))
    print(
        f"{args.target} holds a {name}; after `import hf_ssm`, load it with "
        f"{HEADS[name.removeprefix(family)]}.from_pretrained({str(args.target)!r})"
    )
    if isinstance(config, S4Config):
        print(
            f"Not in the file, and taken as its version has it unless told otherwise: norm_first={config.norm_first} "
            f"(--norm-first), discretization={config.discretization!r} (--discretization), no dropout"
        )
