"""The `hf-ssm` command. A subcommand is an entry of `_COMMANDS`.

Modules that take seconds to import are imported inside the functions, so that `hf-ssm --help` stays fast.
"""

import argparse
import os
import sys
import traceback
from collections.abc import Callable, Sequence

from safetensors import SafetensorError

from hf_ssm import __version__
from hf_ssm.cli.convert import add_convert, run_convert
from hf_ssm.cli.probe import add_probe, run_probe
from hf_ssm.cli.report import add_report, run_report
from hf_ssm.cli.spectrum import add_spectrum, run_spectrum
from hf_ssm.cli.train import add_demo, add_train, run_demo, run_train
from hf_ssm.cli.verify import add_push, add_verify, run_push, run_verify

# Name -> help (the list of commands shows the part before the colon), function that adds the options, function.
_COMMANDS: dict[str, tuple[str, Callable[[argparse.ArgumentParser], None], Callable[[argparse.Namespace], None]]] = {
    "train": (
        "train or fine-tune a model: settings come from --config, the options and --set, the later winning. "
        "The output folder is in Hub layout.",
        add_train,
        run_train,
    ),
    "demo": (
        "a complete example in two minutes: train on generated DNA, save, load in a new process, compare. "
        "Needs no account and no network.",
        add_demo,
        run_demo,
    ),
    "report": (
        "theoretical quantities of a checkpoint on its data: complexity, frequency responses, the useful range of α, "
        "bounds, change of the parameters in training.",
        add_report,
        run_report,
    ),
    "spectrum": (
        "power spectrum of a data set: the frequencies of its sequences (and of the inputs of a checkpoint's layers), "
        "and the range of frequency_scale (α) that they recommend.",
        add_spectrum,
        run_spectrum,
    ),
    "probe": (
        "importance of tokens to a checkpoint: masks them one after the other, the least important first, and plots "
        "the probability of the prediction and the importance of each token.",
        add_probe,
        run_probe,
    ),
    "convert": (
        "convert a checkpoint of another library: HyenaDNA with its head, transformers' Mamba as a causal language "
        "model, a selective SSM of Honarpisheh et al. or the example of state-spaces/s4 (.pth) as a sequence "
        "classifier. No code of the checkpoint is run.",
        add_convert,
        run_convert,
    ),
    "push": (
        "push a finished folder to the Hub: one commit, which also deletes weights of an earlier push. Repeating the "
        "command changes nothing.",
        add_push,
        run_push,
    ),
    "verify": (
        "check that a checkpoint is complete: the files of a folder for consistency, those from the Hub also by their "
        "checksums.",
        add_verify,
        run_verify,
    ),
}

# How to continue after an interruption.
_CONTINUATION = {
    run_train: "; `hf-ssm train --resume --output DIR` continues the run",
    run_probe: "; the same command continues with the results in --output",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status: 0, 2 for bad input, 130 if interrupted."""
    args = build_parser().parse_args(argv)
    try:
        args.function(args)
    except KeyboardInterrupt:
        print(f"\nhf-ssm: interrupted{_CONTINUATION.get(args.function, '')}", file=sys.stderr)
        return 130
    except (ValueError, OSError, ImportError, SafetensorError) as error:
        if args.debug:
            traceback.print_exc()
        # In a distributed run, each process may report the error.
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
