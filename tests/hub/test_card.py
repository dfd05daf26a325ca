"""The card has metadata that can be read back, and says what the run measured."""

from dataclasses import replace

import pytest
from huggingface_hub import ModelCard

from hf_ssm.hub import card

FACTS = card.CardFacts(
    model_name="worms",
    family="hyena",
    task="sequence-classification",
    num_parameters=12345,
    dataset_name="worms.csv.gz",
    splits={"train": 100, "validation": 20, "test": 30},
    results={
        "validation": {"accuracy": 0.95, "f1": 0.94, "mcc": 0.9, "loss": 0.2},
        "test": {"accuracy": 0.9123456789, "f1": 0.91, "mcc": 0.82, "loss": 0.3},
    },
    settings={"training.learning_rate": 0.001, "model.sobolev_order": [0.0, 1.0], "odd": "a|b\nc"},
    tau={"at initialisation": [12.5, 3.0], "after training": [1.25, 1.0]},
    selection_note="Chosen on validation.",
    dna=True,
)


def build_text(facts: card.CardFacts) -> str:
    return str(card.build_card(facts))


def test_card_reads_back(tmp_path):
    path = card.write_card(tmp_path, replace(FACTS, has_picture=True))
    read = ModelCard.load(path)
    assert path.name == "README.md"
    assert read.data.library_name == "transformers"
    assert read.data.pipeline_tag == "text-classification"
    assert read.data.tags == ["hf_ssm", "state-space-model", "hyena", "biology", "dna"]
    assert read.data.datasets is None
    assert read.data.model_name == "worms"
    results = {result.metric_type: result for result in read.data.eval_results}
    assert set(results) == {"accuracy", "f1", "matthews_correlation"}
    assert results["accuracy"].metric_value == pytest.approx(0.912346)
    assert results["accuracy"].dataset_split == "test"
    text = read.text
    assert "| accuracy | 0.9500 | 0.9123 |" in text
    assert "| Matthews correlation | 0.9000 | 0.8200 |" in text
    assert "| 0 | 12.5 | 1.25 |" in text and "| 1 | 3 | 1 |" in text
    assert "| train | 100 |" in text
    assert "| odd | `a\\|b c` |" in text
    assert "![Training log](training_log.png)" in text
    assert "{{" not in text and "{%" not in text


def test_tables_are_whole():
    """Every line of a table has as many bars as its head: a stray line break would cut the table in two."""
    lines = build_text(FACTS).splitlines()
    tables = [i for i, line in enumerate(lines) if line.startswith("| --- ")]
    assert len(tables) == 4
    for index in tables:
        end = index
        while end < len(lines) and lines[end].startswith("|"):
            end += 1
        rows = lines[index - 1 : end]
        assert len({row.replace("\\|", "").count("|") for row in rows}) == 1, rows
        assert len(rows) > 2


def test_data_from_the_hub_stands_in_the_metadata():
    built = card.build_card(replace(FACTS, dataset_id="user/data", base_model="user/base", repo_id="me/model"))
    assert built.data.datasets == ["user/data"]
    assert built.data.base_model == "user/base"
    assert 'from_pretrained("me/model")' in built.text
    assert "fine-tuned from user/base" in built.text
    assert "https://huggingface.co/datasets/user/data" in built.text


def test_without_results_and_tau_there_is_no_index_and_no_section():
    built = card.build_card(replace(FACTS, results={}, tau={}, task="causal-lm"))
    assert built.data.eval_results is None
    assert built.data.metrics is None
    assert "Complexity" not in built.text
    assert "AutoModelForCausalLM" in built.text


def test_usage_snippet_is_python():
    text = build_text(FACTS)
    compile(text.split("```python\n")[1].split("```")[0], "card", "exec")


def test_unknown_task_is_refused():
    with pytest.raises(ValueError, match=r"task must be one of .*causal-lm.*'translation'"):
        card.build_card(replace(FACTS, task="translation"))
