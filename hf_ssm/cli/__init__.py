"""The `hf-ssm` command: a file for the subcommands of a kind; to add one, add an entry to `_COMMANDS`.

What takes seconds to import is imported inside the functions, so that `hf-ssm --help` answers at once.
"""

import argparse
import os
import sys
import traceback
from collections.abc import Callable, Sequence

from hf_ssm import __version__
from hf_ssm.cli.convert import add_convert, run_convert
from hf_ssm.cli.probe import add_probe, run_probe
from hf_ssm.cli.report import add_report, run_report
from hf_ssm.cli.spectrum import add_spectrum, run_spectrum
from hf_ssm.cli.train import add_demo, add_train, run_demo, run_train
from hf_ssm.cli.verify import add_push, add_verify, run_push, run_verify

# Name -> help (the part before the colon stands in the list of commands), its arguments, what it does.
_COMMANDS: dict[str, tuple[str, Callable[[argparse.ArgumentParser], None], Callable[[argparse.Namespace], None]]] = {
    "train": (
        "train or fine-tune a model: settings come from --config, the options and --set, the later winning. "
        "The output folder is in Hub layout.",
        add_train,
        run_train,
    ),
    "demo": (
        "the main job in two minutes: train on generated DNA, save, load in a new process, compare. "
        "Needs no account and no network.",
        add_demo,
        run_demo,
    ),
    "report": (
        "what the theory says of a checkpoint and its data: complexity, frequency responses, the useful range of α, "
        "bounds, movement of the parameters.",
        add_report,
        run_report,
    ),
    "spectrum": (
        "frequencies of a data set: where the power of its sequences (and of what the layers of a checkpoint read) "
        "lies, and the range of frequency_scale (α) that it recommends.",
        add_spectrum,
        run_spectrum,
    ),
    "probe": (
        "which tokens a checkpoint needs: masks them one after the other, first those that matter least, and draws "
        "how long the prediction holds, and by which letters.",
        add_probe,
        run_probe,
    ),
    "convert": (
        "checkpoints of others as ours: HyenaDNA with its head, transformers' Mamba as a causal language model, a "
        "selective SSM of Honarpisheh et al. or the example of state-spaces/s4 (.pth) as a sequence classifier. "
        "No code of theirs is run.",
        add_convert,
        run_convert,
    ),
    "push": (
        "a finished folder to the Hub: one commit, without stale weights beside the new ones. Repeating it changes "
        "nothing.",
        add_push,
        run_push,
    ),
    "verify": (
        "whether a checkpoint is whole: a folder by what its files say of each other, one from the Hub also by the "
        "Hub's checksums.",
        add_verify,
        run_verify,
    ),
}

# What to do after an interruption.
_GOING_ON = {
    run_train: "; `hf-ssm train --resume --output DIR` goes on",
    run_probe: "; the same command goes on with what is in --output",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status: 0, 2 for bad input, 130 if interrupted."""
    args = build_parser().parse_args(argv)
    try:
        args.function(args)
    except KeyboardInterrupt:
        print(f"\nhf-ssm: interrupted{_GOING_ON.get(args.function, '')}", file=sys.stderr)
        return 130
    except (ValueError, OSError, ImportError) as error:
        if args.debug:
            traceback.print_exc()
        # One of several processes of `accelerate launch`, which may all say the same.
        where = f" in process {os.environ['RANK']}" if os.environ.get("RANK", "0") != "0" else ""
        print(f"hf-ssm: error{where}: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return 0


def build_parser() -> argparse.ArgumentParser:
    """The parser of all subcommands."""
    parser = argparse.ArgumentParser(
        prog="hf-ssm", description="State space models with measured and tunable generalization."
    )
    parser.add_argument("--version", action="version", version=f"hf-ssm {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for name, (help_text, add_arguments, function) in _COMMANDS.items():
        command = commands.add_parser(name, help=help_text.split(":")[0], description=help_text, allow_abbrev=False)
        command.add_argument("--debug", action="store_true", help="show the traceback of an error")
        add_arguments(command)
        command.set_defaults(function=function)
    return parser
