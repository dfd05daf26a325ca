"""The parser of `hf-ssm`: the list of commands, short usage lines, and options with hyphens or underscores."""

import argparse
import importlib
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, NoReturn

from hf_ssm import __version__
from hf_ssm.cli.commands import COMMANDS, FIRST
from hf_ssm.training.arguments import DataArguments
from hf_ssm.utils.hints import closest_name
from hf_ssm.utils.versions import TESTED, installed_versions

_WIDTH = 100
_DATA = {entry.name for entry in fields(DataArguments)}


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """`-o, --output DIR` in place of `-o DIR, --output DIR`, as Python 3.13 prints it."""

    def __init__(self, prog: str):
        super().__init__(prog, max_help_position=28, width=_WIDTH)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        value = self._format_args(action, self._get_default_metavar_for_optional(action))
        return f"{', '.join(action.option_strings)} {value}"


class _Versions(argparse.Action):
    """Print this version, and of each library the installed and the newest tested one."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        print(f"hf-ssm {__version__}")
        for name, installed in installed_versions().items():
            print(f"{name} {installed or 'not installed'} (tested: {TESTED[name]})")
        parser.exit()


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def __init__(self, **options: Any):
        super().__init__(formatter_class=_Formatter, allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"hf-ssm: error: {message}; see `{self.prog} --help`\n")


def build_parser(*names: str) -> Parser:
    """The parser of all commands, with the options of the named ones."""
    parser = Parser(
        prog="hf-ssm",
        usage="hf-ssm COMMAND [options]",
        description="State space models with measured and tunable generalization, for transformers and DNA.",
        epilog=_list_of_commands(),
    )
    parser.add_argument("--version", action=_Versions, nargs=0, help="show versions, installed and tested, and exit")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", help=argparse.SUPPRESS)
    for name, command in COMMANDS.items():
        text = command.description
        if "\n" not in text:
            text = textwrap.fill(text, _WIDTH, break_on_hyphens=False)
        added = commands.add_parser(
            name, help=command.summary, description=text, epilog=_examples(command.examples), prog=f"hf-ssm {name}"
        )
        if name in names:
            module = importlib.import_module(f"hf_ssm.cli.options.{command.options}")
            getattr(module, f"add_{name}")(added)
            added.add_argument("--debug", action="store_true", help="show the traceback of an error")
            added.usage = _usage(added)
    return parser


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse a command line; exits with a one-line error for a bad one.

    Options that a command does not have are an error, except for `train` and `tune`: there they are settings, in
    `fields` of the result. `typed` has the name of each given option, as it was written.
    """
    written, arguments = arguments, _with_hyphens(arguments)
    name = arguments[0] if arguments else ""
    parser = build_parser(name)
    if name and name[0] != "-" and name not in COMMANDS:
        near = closest_name(name, COMMANDS)
        parser.error(f"unknown command {name!r}" + (f": did you mean {near!r}?" if near else ""))
    args, rest = parser.parse_known_args(arguments)
    if args.command != name:
        parser.error(f"unknown option {name} before the command")
    command = _command(parser, name)
    rest = _with_late_arguments(command, args, rest)
    options = list(command._option_string_actions)
    args.words = arguments
    if name in ("train", "tune"):
        args.fields, rest = _fields(rest)
    args.typed = _typed(written, command, getattr(args, "fields", {}))
    if rest:
        near = closest_name(rest[0], options, cutoff=0.6) if rest[0].startswith("-") else None
        kind = "option" if rest[0].startswith("-") else "argument"
        hint = f": did you mean {near}?" if near else ""
        if others := [f"`hf-ssm {other}`" for other in COMMANDS if _has(other, rest[0])]:
            hint = f", which is an option of {' and '.join(others)}"
        parser.exit(2, f"hf-ssm: error: unknown {kind} {rest[0]}{hint}; see `hf-ssm {name} --help`\n")
    return args


def options_of(parser: argparse.ArgumentParser, name: str) -> list[str]:
    """The options of a command, as they are written."""
    return list(_command(parser, name)._option_string_actions)


def _has(name: str, option: str) -> bool:
    """Whether a command has an option of this name."""
    return option.startswith("--") and option.partition("=")[0] in options_of(build_parser(name), name)


def _command(parser: argparse.ArgumentParser, name: str) -> argparse.ArgumentParser:
    (commands,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    chosen: argparse.ArgumentParser = commands.choices[name]
    return chosen


def _with_late_arguments(command: argparse.ArgumentParser, args: argparse.Namespace, rest: list[str]) -> list[str]:
    """Take optional arguments behind an option, where argparse does not look for them; what is left of the rest."""
    for action in command._actions:
        is_missing = not action.option_strings and action.nargs == "?" and getattr(args, action.dest) is None
        if is_missing and rest and not rest[0].startswith("-"):
            value, *rest = rest
            setattr(args, action.dest, action.type(value) if callable(action.type) else value)
    return rest


def _with_hyphens(arguments: Sequence[str]) -> list[str]:
    """The arguments with hyphens for the underscores in names of options."""
    words = []
    for argument in arguments:
        option, equals, value = argument.partition("=")
        words.append(option.replace("_", "-") + equals + value if option.startswith("--") else argument)
    return words


def _fields(arguments: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """The fields `--name value`, `--name=value`, `--name` (true) and `--no_name` (false), and other arguments."""
    fields: dict[str, str] = {}
    rest: list[str] = []
    name = None
    for argument in arguments:
        if argument.startswith("--") and len(argument) > 2:
            option, equals, value = argument.removeprefix("--").partition("=")
            option = option.replace("-", "_")
            if not equals and option.startswith("no_"):
                option, value = option.removeprefix("no_"), "false"
            fields[option] = value if equals or value else "true"
            name = None if equals or value else option
        elif name is not None:
            fields[name], name = argument, None
        else:
            rest.append(argument)
    return fields, rest


def _typed(arguments: Sequence[str], command: argparse.ArgumentParser, others: Mapping[str, str]) -> dict[str, str]:
    """Name of each setting that an option gives, to the option as it was written."""
    typed = {}
    for option in (word.partition("=")[0] for word in arguments if word.startswith("--")):
        action = command._option_string_actions.get(option.replace("_", "-"))
        name = option.removeprefix("--").replace("-", "_")
        if action is not None and ("." in action.dest or action.dest in _DATA):
            typed[action.dest.rpartition(".")[2]] = option
        elif name.removeprefix("no_") in others:
            typed[name.removeprefix("no_")] = option
    return typed


def _usage(parser: argparse.ArgumentParser) -> str:
    """The required arguments and `[options]`: the list of all options follows it in the help."""
    words = [parser.prog]
    for action in parser._actions:
        value = str(action.metavar or action.dest.upper())
        if not action.option_strings:
            words.append(f"[{value}]" if action.nargs == "?" else value)
        elif action.required:
            words.append(f"{action.option_strings[0]} {value}")
    return " ".join([*words, "[options]"])


def _list_of_commands() -> str:
    lines = ["Start here:"]
    for name in FIRST:
        lines += [f"  {name:<12}{COMMANDS[name].summary}", f"{'':14}$ {COMMANDS[name].examples[0]}"]
    more = (f"  {name:<12}{command.summary}" for name, command in COMMANDS.items() if name not in FIRST)
    return "\n".join([*lines, "", "More:", *more, "", "Options of a command: hf-ssm COMMAND --help"])


def _examples(examples: Sequence[str]) -> str:
    return "\n".join(["examples:", *(f"  {example}" for example in examples)])
