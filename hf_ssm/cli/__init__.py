"""The `hf-ssm` command. A subcommand is an entry of `_COMMANDS`; only its own module is imported."""

import argparse
import importlib
import os
import re
import sys
import traceback
from collections.abc import Sequence

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError

from hf_ssm import __version__

# Name -> help (the list of commands shows the part before the colon), module with `add_NAME` and `run_NAME`.
_COMMANDS: dict[str, tuple[str, str]] = {
    "train": (
        "train or fine-tune a model: settings come from --config, the options and --set, the later winning. "
        "The output folder is in Hub layout.",
        "train",
    ),
    "demo": (
        "a complete example in two minutes: train on generated DNA, save, load in a new process, compare. "
        "Needs no account and no network.",
        "train",
    ),
    "report": (
        "theoretical quantities of a checkpoint on its data: complexity, frequency responses, the useful range of α, "
        "bounds, change of the parameters in training.",
        "report",
    ),
    "spectrum": (
        "power spectrum of a data set: the frequencies of its sequences (and of the inputs of a checkpoint's layers), "
        "and the range of frequency_scale (α) that they recommend.",
        "spectrum",
    ),
    "probe": (
        "importance of tokens to a checkpoint: masks them one after the other, the least important first, and plots "
        "the probability of the prediction and the importance of each token.",
        "probe",
    ),
    "embed": (
        "hidden states of sequences as a table: of chosen layers, pooled or per token, averaged over both strands, for "
        "models of hf_ssm and transformers. With --linear-probe, the scores of a linear classifier on them.",
        "embed",
    ),
    "predict": (
        "classes with probabilities, or values, of sequences: a table with a row for each sequence, window or token. "
        "An interrupted command continues where it stopped.",
        "predict",
    ),
    "score": (
        "scores of variants, without labels: log-likelihood ratios of alleles under a language model, from a VCF file "
        "or a table; with --saturate every substitution of a region, as a heat map.",
        "score",
    ),
    "convert": (
        "convert a checkpoint of another library: HyenaDNA with its head, transformers' Mamba as a causal language "
        "model, a selective SSM of Honarpisheh et al. or the example of state-spaces/s4 (.pth) as a sequence "
        "classifier. No code of the checkpoint is run.",
        "convert",
    ),
    "export": (
        "export a checkpoint as a program of ONNX or torch.export: any batch size and length, without this package. "
        "With --with-cache, a prompt and a step for generation.",
        "export",
    ),
    "kernels": (
        "write the Triton kernels as a repository of the kernels library: transformers' own Mamba models run them too, "
        "with use_kernels=True.",
        "kernels",
    ),
    "app": (
        "a web page on which a checkpoint can be tried: predictions, importance of bases, variants, frequencies, "
        "theory. Needs the extra app (gradio, matplotlib).",
        "app",
    ),
    "push": (
        "push a finished folder to the Hub: one commit, which also deletes weights of an earlier push. Repeating the "
        "command changes nothing.",
        "verify",
    ),
    "verify": (
        "check that a checkpoint is complete: the files of a folder for consistency, those from the Hub also by their "
        "checksums.",
        "verify",
    ),
}

# How to continue after an interruption.
_CONTINUATION = {
    "train": "; `hf-ssm train --resume --output DIR` continues the run",
    "score": "; the same command continues where it stopped",
    "probe": "; the same command continues with the results in --output",
    "embed": "; the same command continues where it stopped",
    "predict": "; the same command continues where it stopped",
}


# One line is enough for these: bad input, files, missing packages, diverged training. A RuntimeError is mostly one of
# torch about shapes, memory or a full disk. Other errors are defects of hf_ssm or of a library: their traceback is what
# a report of the defect needs.
_EXPECTED = (
    *(ValueError, OSError, ImportError, RuntimeError, MemoryError, FloatingPointError),
    *(SafetensorError, StrictDataclassError),
)
# Errors of the operating system for a file that cannot grow, to which libraries do not add the path.
_FULL = re.compile(r"os error (28|122|27)\b|file write failed|unexpected pos")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status: 0, 1 for a defect, 2 for bad input, 130 if interrupted."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    args = build_parser(*arguments[:1]).parse_args(arguments)
    try:
        args.function(args)
    except KeyboardInterrupt:
        print(f"\nhf-ssm: interrupted{_CONTINUATION.get(arguments[0], '')}", file=sys.stderr)
        return 130
    except _EXPECTED as error:
        if args.debug:
            traceback.print_exc()
        # In a distributed run, each process may report the error.
        where = f" in process {os.environ['RANK']}" if os.environ.get("RANK", "0") != "0" else ""
        print(f"hf-ssm: error{where}: {_message(error, args)}", file=sys.stderr)
        return 2
    except Exception as error:
        traceback.print_exc()
        print(
            f"hf-ssm: unexpected {type(error).__name__}, a defect of hf_ssm {__version__} or of a library: please "
            "report it with the lines above",
            file=sys.stderr,
        )
        return 1
    return 0


def _message(error: Exception, args: argparse.Namespace) -> str:
    """One line, with the folder where an error of the disk names no file."""
    text = " ".join(str(error).split()) or type(error).__name__
    target = getattr(args, "output", None) or getattr(args, "target", None)
    nameless = isinstance(error, OSError) and error.errno is not None and error.filename is None
    if target is not None and (nameless or _FULL.search(text)):
        return f"cannot write to {str(target)!r}: {text}"
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in text:
        return f"out of memory: {text}; use smaller batches, shorter sequences or a smaller model"
    if isinstance(error, RuntimeError):
        return f"{type(error).__name__}: {text} (--debug shows where)"
    return text


def build_parser(command: str = "") -> argparse.ArgumentParser:
    """The parser of all subcommands, with the options of `command`."""
    parser = argparse.ArgumentParser(
        prog="hf-ssm", description="State space models with measured and tunable generalization."
    )
    parser.add_argument("--version", action="version", version=f"hf-ssm {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for name, (help_text, module_name) in _COMMANDS.items():
        added = commands.add_parser(name, help=help_text.split(":")[0], description=help_text, allow_abbrev=False)
        if name == command:
            module = importlib.import_module(f"hf_ssm.cli.{module_name}")
            added.add_argument("--debug", action="store_true", help="show the traceback of an error")
            getattr(module, f"add_{name}")(added)
            added.set_defaults(function=getattr(module, f"run_{name}"))
    return parser
