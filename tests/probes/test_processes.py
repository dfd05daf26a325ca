"""Two processes share the sequences of a run, and the first one merges the results."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from hf_ssm.probes import MaskingResults
from hf_ssm.probes.resuming import ResultsFile

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


@pytest.mark.slow
def test_two_processes_find_the_same_as_one(tmp_path):
    output = tmp_path / "probe.safetensors"
    # The environment that `accelerate launch` and `torchrun` set.
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "ACCELERATE_USE_CPU": "true"}
    environment = {**os.environ, **shared, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(HERE / "shared_worker.py"), str(output)]
    workers = [
        subprocess.Popen(command, env=environment | {"RANK": rank, "LOCAL_RANK": rank}, stderr=subprocess.PIPE)
        for rank in "01"
    ]
    try:
        errors = [worker.communicate(timeout=600)[1] for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    assert [worker.returncode for worker in workers] == [0, 0], errors
    assert MaskingResults.load(output).indices == [0, 1, 2, 3]
    assert [path.name for path in tmp_path.iterdir()] == ["probe.safetensors"]


class SecondOfTwo:
    """The second of two processes, without the first."""

    process_index, num_processes, is_main_process = 1, 2, False

    def __init__(self, cpu):
        pass

    def wait_for_everyone(self):
        pass


def test_parts_of_an_interrupted_run_are_resumed(tmp_path, make_model, monkeypatch):
    from hf_ssm.probes import MaskingProbe, masking
    from hf_ssm.tokenization import build_dna_tokenizer

    output, texts = tmp_path / "probe[1].safetensors", ["ACGT", "GGCA", "TTAC"]
    probe = MaskingProbe(make_model("S4", "ForSequenceClassification"), build_dna_tokenizer())
    monkeypatch.setattr(masking, "PartialState", SecondOfTwo)
    monkeypatch.setattr(ResultsFile, "join", lambda file: file.finished)
    assert list(probe.run(texts, output=output, progress=False)) == [1]
    assert [path.name for path in tmp_path.iterdir()] == ["probe[1].safetensors.part-1-of-2"]
    monkeypatch.undo()
    asked, search = [], masking.search
    monkeypatch.setattr(masking, "search", lambda evaluator, *rest: asked.append(1) or search(evaluator, *rest))
    assert probe.run(texts, output=output, progress=False).indices == [0, 1, 2]
    assert len(asked) == 2
    assert [path.name for path in tmp_path.iterdir()] == [output.name]
    assert MaskingResults.load(output).indices == [0, 1, 2]
