"""A rank that loads the data of a run, and counts how often a FASTA file is read and rows are tokenized."""

import json
import os
import sys
from pathlib import Path

import datasets

from hf_ssm.data import fasta, tokenized
from hf_ssm.training import launch
from hf_ssm.training.inputs import load_data
from hf_ssm.training.settings import resolve


def counted(function, counts, name):
    def call(*arguments, **keywords):
        counts[name] += 1
        return function(*arguments, **keywords)

    return call


def main(folder: Path) -> None:
    datasets.config.HF_DATASETS_CACHE = str(folder / "cache")
    counts = {"files": 0, "batches": 0}
    fasta._lines = counted(fasta._lines, counts, "files")
    tokenized._Encoder.__call__ = counted(tokenized._Encoder.__call__, counts, "batches")
    data = {"dataset": str(folder / "genome.fa"), "window": 64, "tokenizer": "dna"}
    settings = resolve({"data": data, "model": {"task": "causal-lm"}, "training": {"use_cpu": True}})
    launch.begin(settings)
    splits = launch.main_first(lambda: load_data(settings)).splits
    found = {"counts": counts, "rows": {name: split["input_ids"][:] for name, split in splits.items()}}
    found["files"] = [file["filename"] for file in splits["train"].cache_files]
    (folder / f"{os.environ['RANK']}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
