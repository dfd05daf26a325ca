"""`hf-ssm verify` and `hf-ssm push`."""

import argparse
import shlex

from hf_ssm.cli.summary import command, suggest
from hf_ssm.hub.pushing import push_folder
from hf_ssm.hub.verifying import verify


def run_verify(args: argparse.Namespace) -> None:
    """`hf-ssm verify`: one line per problem, and exit status 1 if there is one."""
    result = verify(args.source, args.revision)
    for problem in result.problems:
        print(problem)
    against = f" against commit {result.commit} on the Hub" if result.commit else ""
    absent = f", {len(result.absent)} not downloaded" if result.absent else ""
    print(f"{args.source}: {result.checked} files checked{against}{absent}, {len(result.problems) or 'no'} problems")
    if result.problems and result.commit:
        download = ["hf", "download", "--force-download", "--revision", result.commit, args.source]
        print(f"To download the files again: {shlex.join(download)}")
    if result.problems:
        raise SystemExit(1)
    if result.commit is None:
        suggest((command("push", args.source, "USER/NAME"), "share it"))


def run_push(args: argparse.Namespace) -> None:
    """`hf-ssm push`: push a finished folder as one commit; repeating it changes nothing."""
    url = push_folder(args.folder, args.repo_id, private=args.private or None, revision=args.revision)
    print(f"Pushed to {url}")
    revision = () if args.revision is None else ("--revision", args.revision)
    suggest((command("verify", args.repo_id, *revision), "compare the files on the Hub with their checksums"))
