"""`hf-ssm verify` and `hf-ssm push`."""

import argparse
import shlex
from pathlib import Path

from hf_ssm.hub.pushing import push_folder
from hf_ssm.hub.verifying import verify


def add_verify(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="SOURCE", help="a folder, or USER/NAME on the Hub")
    parser.add_argument("--revision", metavar="REVISION", help="branch, tag or commit on the Hub")


def run_verify(args: argparse.Namespace) -> None:
    """`hf-ssm verify`: one line per problem, and exit status 1 if there is one."""
    found = verify(args.source, args.revision)
    for problem in found.problems:
        print(problem)
    against = f" against commit {found.commit} on the Hub" if found.commit else ""
    absent = f", {len(found.absent)} not downloaded" if found.absent else ""
    print(f"{args.source}: {found.checked} files checked{against}{absent}, {len(found.problems) or 'no'} problems")
    if found.problems and found.commit:
        command = ["hf", "download", "--force-download", "--revision", found.commit, args.source]
        print(f"To download it again: {shlex.join(command)}")
    if found.problems:
        raise SystemExit(1)


def add_push(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="the output folder of a run, or an export")
    parser.add_argument("repo_id", metavar="USER/NAME", help="the repository; created if absent")
    parser.add_argument("--revision", metavar="BRANCH", help="default: main; created if absent")
    parser.add_argument("--private", action="store_true", help="make a new repository private")


def run_push(args: argparse.Namespace) -> None:
    """`hf-ssm push`: push a finished folder as one commit; repeating it changes nothing."""
    url = push_folder(args.folder, args.repo_id, private=args.private or None, revision=args.revision)
    print(f"Pushed to {url}")
