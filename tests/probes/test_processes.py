"""Two processes share the sequences of a run, and the first one merges the results."""

from pathlib import Path

import pytest
import torch
from launching import run_workers

import hf_ssm
from hf_ssm.probes import MaskingResults
from hf_ssm.probes.resuming import ResultsFile

WORKER = Path(__file__).with_name("shared_worker.py")


@pytest.mark.slow
def test_two_processes_find_the_same_as_one(tmp_path, monkeypatch):
    # The environment that `accelerate launch` and `torchrun` set.
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    run_workers(WORKER, tmp_path, 2)
    results = MaskingResults.load(tmp_path / "probe.safetensors")
    assert results.indices == [0, 1, 2, 3]
    # One process draws the same tokens, alone or among others.
    torch.manual_seed(0)
    model = hf_ssm.S4ForSequenceClassification(hf_ssm.S4Config(hidden_size=8, state_size=8, initializer_range=0.4))
    probe = hf_ssm.MaskingProbe(model, hf_ssm.build_dna_tokenizer(), draws=4)
    for result in results:
        alone = probe.run("".join(result.tokens_text), progress=False)
        assert torch.equal(alone.order, result.order) and torch.equal(alone.probabilities, result.probabilities)
        assert alone.evidence == result.evidence
    assert {path.name for path in tmp_path.iterdir()} == {"probe.safetensors", "0.log", "1.log"}


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
