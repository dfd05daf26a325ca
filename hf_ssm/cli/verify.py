"""`hf-ssm verify` and `hf-ssm push`."""

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path

from hf_ssm.cli.summary import command, suggest
from hf_ssm.hub.pushing import check_model, push_folder, upload_list
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


def push(folder: Path, repo_id: str, private: bool, revision: str | None = None, include: Sequence[str] = ()) -> None:
    """Print the files that are uploaded, push them, and print the address."""
    if folder.is_dir():
        print_upload(folder, include)
    print(f"Pushed to {push_folder(folder, repo_id, private=private or None, revision=revision, include=include)}")


def print_upload(folder: Path, include: Sequence[str]) -> None:
    """Print the files that are uploaded, and those that are not."""
    files, others = upload_list(folder, include)
    print(f"To upload, beside the code of the model: {', '.join(sorted(files))}")
    if "train_config.yaml" in files:
        print("In train_config.yaml, base names replace local paths.")
    if others:
        print(f"Not uploaded: {', '.join(others)} (`hf-ssm push {folder} ... --include NAME` adds a file or a folder)")


def run_push(args: argparse.Namespace) -> None:
    """`hf-ssm push`: push a finished folder as one commit; repeating it changes nothing."""
    if args.dry_run:
        check_model(args.folder)
        print_upload(args.folder, args.include)
        print("Nothing was uploaded.")
        return
    push(args.folder, args.repo_id, args.private, args.revision, args.include)
    revision = () if args.revision is None else ("--revision", args.revision)
    suggest((command("verify", args.repo_id, *revision), "compare the files on the Hub with their checksums"))
