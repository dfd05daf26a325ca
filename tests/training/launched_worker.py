"""What `accelerate launch` runs in each process for `test_distributed.py`: the training command, time and again.

    accelerate launch --multi_gpu --num_processes 2 launched_worker.py FOLDER OPTION ...

Trains into FOLDER/run with the options; tries the same again, which has to fail; takes the last checkpoint from a copy
of it, FOLDER/resumed, and continues there. Writes the exit statuses of this process.
"""

import json
import os
import shutil
import sys
from pathlib import Path

import torch.distributed as dist

from hf_ssm import cli


def status(*arguments: str) -> int:
    """The exit status of `hf-ssm`."""
    try:
        return cli.main(arguments)
    except SystemExit as end:
        return int(end.code or 0)


def main(folder: Path, *options: str) -> None:
    rank = int(os.environ["RANK"])
    statuses = [status("train", *options, "--output", str(folder / "run")) for _ in range(2)]
    resumed = folder / "resumed"
    if rank == 0:
        shutil.copytree(folder / "run", resumed)
        checkpoints = sorted(resumed.glob("checkpoint-*"), key=lambda path: int(path.name.rpartition("-")[2]))
        shutil.rmtree(checkpoints[-1])
        (resumed / "model.safetensors").unlink()
    dist.barrier()
    statuses.append(status("train", "--resume", "--output", str(resumed)))
    (folder / f"statuses-{rank}.json").write_text(json.dumps(statuses), encoding="utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
