"""Evaluation results in the form of the Hub: written for data on the Hub, pushed, verified."""

import re
from dataclasses import replace

import pytest
import yaml
from huggingface_hub import parse_eval_result_entries

from hf_ssm.hub.card import CardFacts
from hf_ssm.hub.eval_results import EVAL_RESULTS, write_eval_results
from hf_ssm.hub.pushing import push_folder
from hf_ssm.hub.verifying import verify

REVISION = "5" * 40
FACTS = CardFacts(
    model_name="worms",
    family="s4",
    task="sequence-classification",
    num_parameters=1,
    dataset_name="worms.csv.gz",
    splits={},
    results={"validation": {"accuracy": 0.95}, "test": {"accuracy": 0.9123456789, "f1": 0.91, "loss": 0.3}},
    settings={},
)


def test_written_for_data_on_the_hub_only(tmp_path):
    assert write_eval_results(tmp_path, FACTS) is None and not any(tmp_path.iterdir())
    path = write_eval_results(tmp_path, replace(FACTS, dataset_id="ada/worms"), REVISION)
    assert path == tmp_path / EVAL_RESULTS
    (entry,) = parse_eval_result_entries(yaml.safe_load(path.read_text()))
    assert (entry.dataset_id, entry.task_id, entry.value) == ("ada/worms", "default", 0.912346)
    assert entry.dataset_revision == REVISION and entry.date.endswith("Z")
    assert entry.notes == "accuracy on the split test, measured by `hf-ssm train`"
    path = write_eval_results(
        tmp_path, replace(FACTS, dataset_id="ada/x", results={"test": {"perplexity": 3.5}}), "main"
    )
    (entry,) = parse_eval_result_entries(yaml.safe_load(path.read_text()))
    assert entry.value == 3.5 and entry.dataset_revision is None
    write_eval_results(tmp_path, FACTS)  # of another run
    assert not path.exists()


def test_a_push_takes_these_dot_files_only(hub, folder, proofs):
    write_eval_results(folder, replace(FACTS, dataset_id="ada/worms"))
    push_folder(folder, "ada/x")
    assert hub.repo("ada/x").files()[EVAL_RESULTS] == (folder / EVAL_RESULTS).read_bytes()
    assert verify("ada/x", "main").problems == () and len(proofs) == 1
    for name in (".eval_results/notes.txt", ".eval_results/.hidden.yaml", "sub/.eval_results/a.yaml", ".env"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("[]")
        with pytest.raises(ValueError, match=re.escape(name)):
            push_folder(folder, "ada/x")
        (folder / name).unlink()
    assert len(proofs) == 1
