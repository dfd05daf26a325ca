"""Metrics as Spaces: pushed as one commit, loaded back without hf_ssm, and the Hub's own in the place of ours."""

import json
import subprocess
import sys

import pytest
import yaml

from hf_ssm import metrics

BACK = """
import json, runpy, sys, types

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "hf_ssm":
            raise ModuleNotFoundError(f"{name} is not installed here")

sys.meta_path.insert(0, Missing())
import evaluate
perplexity = evaluate.load("ada/ppl-of-tokens", "sums")
tau = evaluate.load("ada/tau")

# The page, with stand-ins for the widgets.
gradio = types.ModuleType("gradio")
gradio.Textbox = gradio.JSON = lambda label: label
gradio.Error = RuntimeError
gradio.Interface = lambda **settings: settings
sys.modules["gradio"] = gradio
page = runpy.run_path(sys.argv[1])["page"]
try:
    page["fn"]("[1, 2]", "[1]")
except RuntimeError as error:
    refused = str(error)
print(json.dumps({
    "perplexity": perplexity.compute(predictions=[0.0], references=[3]),
    "tau": tau.compute(predictions=[[1.0, 2.0]]),
    "inputs": page["inputs"],
    "page": page["fn"]("[0.5, 0.5]", "[1, 1]"),
    "refused": refused,
}))
"""

FROM_HUB = """
import json, warnings
from hf_ssm.metrics import load

found = {}
for name in ("f1", "mcc", "tau"):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        metric = load(name, source="hub")
    found[name] = [type(metric).__name__, metric.name, [str(w.message) for w in caught if w.category is UserWarning]]
    if name == "f1":
        metric.add_batch(predictions=[[0, 2], [1, 1]], references=[[0, -100], [1, 0]])
        found["result"] = metric.compute()
print(json.dumps(found))
"""

# A metric as the Hub has them, which tells what it was given.
THEIR_F1 = """
import datasets
import evaluate

class F1(evaluate.Metric):
    def _info(self):
        features = {name: datasets.Value("int32") for name in ("predictions", "references")}
        return evaluate.MetricInfo(description="", citation="", features=datasets.Features(features))

    def _compute(self, predictions, references, average="binary"):
        cells = sorted(zip(references, predictions))
        return {"f1": 0.625 if (cells, average) == ([(0, 0), (0, 1), (1, 1)], "macro") else -1.0}
"""


def answer(hub, script, *arguments, cwd):
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], env=hub.env(), cwd=cwd, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_spaces_load_back_without_hf_ssm(hub, tmp_path):
    assert metrics.push("tau", "ada/tau") == f"{hub.endpoint}/spaces/ada/tau"
    metrics.push("perplexity", "ada/ppl-of-tokens", token=hub.token, private=False)
    space = hub.repo("ada/ppl-of-tokens", "space")
    files = space.files()
    assert set(files) - {".gitattributes"} == {
        *("README.md", "app.py", "base.py", "ppl-of-tokens.py", "requirements.txt")
    }
    assert len(space.commits("main")) == 2 and space.sdk == "gradio"
    assert b"hf_ssm.metrics" not in files["ppl-of-tokens.py"].partition(b'_INPUTS = """')[0]
    for name in files:
        (tmp_path / name).write_bytes(files[name])
    found = answer(hub, BACK, str(tmp_path / "app.py"), cwd=tmp_path)
    assert found["perplexity"] == {"perplexity": 1.0}
    assert found["tau"] == {"tau": 3.0, "tau_per_layer": [1.0, 2.0]}
    assert found["inputs"] == ["predictions, as JSON", "references, as JSON"]
    assert found["page"]["perplexity"] == pytest.approx(1.6487, abs=1e-4)
    assert "shapes must be equal" in found["refused"]


@pytest.mark.parametrize("name", metrics.NAMES)
def test_card_says_what_the_metric_is(hub, name):
    metrics.push(name, "ada/card")
    text = hub.repo("ada/card", "space").files()["README.md"].decode()
    _, head, body = text.split("---\n", 2)
    data = yaml.safe_load(head)
    assert data["sdk"] == "gradio" and data["app_file"] == "app.py" and {"evaluate", "metric"} <= set(data["tags"])
    metric = metrics.load(name)
    assert metric.description.strip() in body and metric.citation.strip() in body
    assert 'evaluate.load("ada/card"' in body and "hf_ssm.metrics" not in body and "$" not in body
    assert hub.token not in text


def test_pushing_again_changes_nothing(hub):
    metrics.push("mcc", "ada/mcc")
    before = hub.repo("ada/mcc", "space").commits("main")
    metrics.push("mcc", "ada/mcc")
    assert hub.repo("ada/mcc", "space").commits("main") == before


@pytest.mark.parametrize("repo_id", ["mcc", "ada/", "ada/my.metric", "ada/base", "ada/app", "ada/numpy", "ada/json"])
def test_names_that_evaluate_could_not_import(hub, repo_id):
    with pytest.raises(ValueError, match=r"USER/NAME|under its name"):
        metrics.push("mcc", repo_id)
    with pytest.raises(ValueError, match="metric must be one of"):
        metrics.push("bleu", "ada/bleu")
    assert not hub.requests


def test_refusals_are_one_line(hub):
    for repo_id, token in (("ben/mcc", None), ("ada/mcc", "hf_" + "x" * 32)):
        with pytest.raises(
            OSError, match=rf"metric 'mcc' was not pushed to '{repo_id}' \(.*call `push` again"
        ) as caught:
            metrics.push("mcc", repo_id, token=token)
        assert "\n" not in str(caught.value) and hub.token not in str(caught.value) and "xxxx" not in str(caught.value)


def test_the_hubs_own_metrics(hub, tmp_path):
    hub.create("evaluate-metric/f1", files={"f1.py": THEIR_F1}, type="space")
    found = answer(hub, FROM_HUB, cwd=tmp_path)
    assert found["f1"] == ["HubMetric", "f1", []] and found["result"] == {"f1": 0.625}
    for name, ours in (("mcc", "MCC"), ("tau", "Tau")):
        kind, _, said = found[name]
        assert kind == ours and len(said) == 1 and f"metric {name!r} of the Hub cannot be used" in said[0]
        assert "\n" not in said[0]
