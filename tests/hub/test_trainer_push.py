"""Pushes of the Trainer, with every strategy, and their failures."""

import json
import logging
import threading
from pathlib import Path

import pytest
import torch
from huggingface_hub import HfApi, ModelCard
from transformers import AutoModelForSequenceClassification, Trainer, TrainerCallback, TrainingArguments

from hf_ssm.tokenization import build_dna_tokenizer
from hf_ssm.training import SSMTrainer, pushes

NAME = "ada/run"
COMMIT = ("POST", "/commit/")
ROWS = [{"input_ids": torch.arange(7, 12).roll(i), "labels": torch.tensor(i % 2)} for i in range(8)]


def is_whole(files):
    """Whether a commit has all that another process needs to load the model."""
    names = {"config.json", "model.safetensors", "tokenizer.json", "README.md"}
    return files.keys() >= names and any(name.startswith("modeling_") for name in files)


@pytest.fixture(scope="module")
def tokenizer():
    return build_dna_tokenizer()


@pytest.fixture
def trainer(hub, make_model, tokenizer, tmp_path):
    """`trainer(hub_strategy, **arguments)`, of two epochs with two steps each."""

    def make(strategy: str, trainer_class: type = SSMTrainer, **arguments):
        defaults = {
            "output_dir": str(tmp_path / "run"),
            "push_to_hub": True,
            "hub_strategy": strategy,
            "hub_model_id": NAME,
            # Each save is pushed, also during another push.
            "hub_always_push": True,
            "num_train_epochs": 2,
            "per_device_train_batch_size": 4,
            "save_strategy": "epoch",
            "report_to": "none",
            "disable_tqdm": True,
            "use_cpu": True,
        }
        torch.manual_seed(0)
        model = make_model("S4", "ForSequenceClassification")
        return trainer_class(
            model=model,
            args=TrainingArguments(**{**defaults, **arguments}),
            train_dataset=ROWS,
            processing_class=tokenizer,
        )

    return make


class AtTheEnd(TrainerCallback):
    def __init__(self, action):
        self.action = action

    def on_train_end(self, args, state, control, **others):
        self.action()


class WaitForPush(TrainerCallback):
    def __init__(self, run):
        self.run = run

    def on_save(self, args, state, control, **others):
        self.run.report_failed_pushes(wait_for_all=True)


def titles(hub, revision="main"):
    return [commit.title for commit in reversed(hub.repo(NAME).commits(revision))]


def test_end(hub, trainer):
    run = trainer("end")
    assert titles(hub) == ["initial commit"]
    run.train()
    assert titles(hub) == ["initial commit"]
    info = run.push_to_hub(tags="dna")
    repo = hub.repo(NAME)
    assert titles(hub) == ["initial commit", "End of training"] and info.oid == repo.commit().oid
    files = repo.files()
    assert is_whole(files)
    assert not [name for name in files if "checkpoint" in name or name == "training_args.bin"]
    assert len(json.loads(files["config.json"])["auto_map"]) == 8
    card = ModelCard(files["README.md"].decode())
    assert {"dna", "hf_ssm", "generated_from_trainer"} <= set(card.data.tags)
    assert f'AutoModelForSequenceClassification.from_pretrained("{NAME}", trust_remote_code=True)' in card.text
    loaded = AutoModelForSequenceClassification.from_pretrained(NAME).eval()
    tokens = torch.arange(7, 12)[None]
    assert torch.equal(loaded(tokens).logits, run.model.eval()(tokens).logits)


@pytest.mark.parametrize("strategy", ["every_save", "checkpoint", "all_checkpoints"])
def test_each_save_is_whole(hub, trainer, strategy):
    run = trainer(strategy)
    run.train()
    assert titles(hub) == ["initial commit", "Training in progress, epoch 1", "Training in progress, epoch 2"]
    repo = hub.repo(NAME)
    weights = []
    for commit, step in zip(repo.commits()[:2], (4, 2), strict=True):
        files = repo.files(commit.oid)
        assert is_whole(files) and "trainer_state.json" not in files and "optimizer.pt" not in files
        weights.append(files["model.safetensors"])
        place = {"every_save": None, "checkpoint": "last-checkpoint", "all_checkpoints": f"checkpoint-{step}"}[strategy]
        if place is not None:
            assert files[f"{place}/model.safetensors"] == files["model.safetensors"]
            assert json.loads(files[f"{place}/trainer_state.json"])["global_step"] == step
            assert f"{place}/optimizer.pt" in files
        assert not [name for name in files if name.endswith("training_args.bin")]
    assert weights[0] != weights[1]
    folders = {name.split("/")[0] for name in repo.files() if "/" in name}
    expected = {"every_save": set(), "checkpoint": {"last-checkpoint"}}
    assert folders == expected.get(strategy, {"checkpoint-2", "checkpoint-4"})


def test_a_slow_push_is_not_overtaken(hub, trainer, monkeypatch):
    """As in transformers, a save is not pushed during another push; its folder may be deleted meanwhile."""
    may_start, pushed, send = threading.Event(), [], pushes.push_files

    def slow(files, *given, **options):
        assert may_start.wait(300)
        pushed.append(options["message"])
        return send(files, *given, **options)

    monkeypatch.setattr(pushes, "push_files", slow)
    run = trainer("checkpoint", hub_always_push=False, save_total_limit=1, num_train_epochs=3)
    run.callback_handler.callbacks.insert(0, AtTheEnd(may_start.set))
    run.train()
    assert pushed == ["Training in progress, epoch 1"]
    assert not Path(run.args.output_dir, "checkpoint-2").exists()
    assert json.loads(hub.repo(NAME).files()["last-checkpoint/trainer_state.json"])["global_step"] == 2


def test_old_shards_do_not_survive(hub, trainer):
    stale = {"model-00001-of-00002.safetensors": b"\0", "model.safetensors.index.json": "{}"}
    hub.create(NAME, files={**stale, "last-checkpoint/rng_state_7.pth": b"\0", "notes.txt": "mine"})
    trainer("checkpoint").train()
    files = hub.repo(NAME).files()
    assert not stale.keys() & files.keys() and "last-checkpoint/rng_state_7.pth" not in files and "notes.txt" in files


def test_branch_and_name(hub, trainer):
    run = trainer("every_save", hub_model_id=None, hub_revision="tries", hub_private_repo=True, num_train_epochs=1)
    run.train()
    assert run.hub_model_id == NAME and hub.repo(NAME).private
    assert titles(hub) == ["initial commit"]
    assert titles(hub, "tries") == ["initial commit", "Training in progress, epoch 1"]


@pytest.fixture
def errors(caplog, monkeypatch):
    """Messages of errors logged by the package."""
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    return lambda: [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]


def test_failed_pushes_are_reported_and_the_training_continues(hub, trainer, errors):
    hub.fail(*COMMIT, status=500, times=99)
    run = trainer("every_save", hub_token=hub.token)
    # The push of an epoch ends before the next save.
    run.add_callback(WaitForPush(run))
    run.train()
    assert run.state.global_step == 4 and titles(hub) == ["initial commit"]
    assert len(errors()) == 2
    for line in errors():
        assert "push to 'ada/run' failed" in line and "500" in line and "call `trainer.push_to_hub()` again" in line
        assert hub.token not in line and "\n" not in line
    with pytest.raises(OSError, match=r"failed, .* call `trainer\.push_to_hub\(\)` again"):
        run.push_to_hub()
    for fault in hub._faults:
        fault.times = 0
    run.push_to_hub()
    assert titles(hub) == ["initial commit", "End of training"]


def test_full_disk(hub, trainer, errors, monkeypatch):
    def fail(*given):
        raise OSError("No space left on device")

    run = trainer("every_save")
    monkeypatch.setattr(pushes, "stage", fail)
    run.train()
    assert run.state.global_step == 4 and len(errors()) == 2
    assert "checkpoint-2 is not pushed: No space left on device" in errors()[0]


@pytest.mark.parametrize("name", [".env", "notes.txt"])
def test_secrets_of_the_output_folder_are_not_published(hub, trainer, name):
    run = trainer("end", hub_token=hub.token)
    Path(run.args.output_dir).mkdir(exist_ok=True)
    Path(run.args.output_dir, name).write_text("hf_" + "aB3" * 12)
    with pytest.raises(ValueError, match=name):
        run.push_to_hub()
    assert titles(hub) == ["initial commit"]


class Plant(TrainerCallback):
    """Writes files of somebody else beside those of the run."""

    names = ("handler.py", "evil.pkl", "MODELING.PY", "pytorch_model.bin", "zero_to_fp32.py")

    def on_save(self, args, state, control, **others):
        for folder in (Path(args.output_dir), Path(args.output_dir, f"checkpoint-{state.global_step}")):
            for name in self.names:
                (folder / name).write_bytes(b"import os")


@pytest.mark.parametrize("strategy", ["every_save", "all_checkpoints"])
def test_other_files_of_the_output_folder_are_not_uploaded(hub, trainer, strategy):
    run = trainer(strategy, num_train_epochs=1)
    run.callback_handler.callbacks.insert(0, Plant())
    run.train()
    run.push_to_hub()
    assert len(titles(hub)) == 3
    for commit in hub.repo(NAME).commits()[:2]:
        files = hub.repo(NAME).files(commit.oid)
        assert is_whole(files)
        assert not {Path(name).name for name in files} & set(Plant.names)
        assert not [name for name, content in files.items() if content == b"import os"]


def test_a_card_from_elsewhere_is_not_uploaded(hub, trainer, tmp_path, errors):
    run = trainer("every_save", num_train_epochs=1)
    (tmp_path / "private.md").write_text("---\ntags: [mine]\n---\n# Mine\n")
    Path(run.args.output_dir).mkdir(exist_ok=True)
    Path(run.args.output_dir, "README.md").symlink_to(tmp_path / "private.md")
    run.train()
    assert "README.md' is a symbolic link out of the folder" in errors()[0] and titles(hub) == ["initial commit"]
    with pytest.raises(ValueError, match=r"README\.md \(a symbolic link out of the folder"):
        run.push_to_hub()


def test_pushes_of_transformers_are_turned_off(hub, trainer, monkeypatch):
    """They would upload `training_args.bin`, which contains the token; "end" is the strategy without any."""
    for name in ("upload_folder", "upload_file"):
        monkeypatch.setattr(HfApi, name, lambda *given, **options: pytest.fail("a push of transformers"))
    run = trainer("all_checkpoints", hub_token=hub.token)
    run.train()
    run.push_to_hub()
    assert run.args.hub_strategy == "end" and len(titles(hub)) == 4
    for commit in hub.repo(NAME).commits():
        assert not [name for name, content in hub.repo(NAME).files(commit.oid).items() if hub.token.encode() in content]


def test_transient_fault(hub, trainer):
    hub.fail("POST", "/api/repos/create", status=503)
    hub.fail("POST", "/api/validate-yaml", status=503)
    hub.fail(*COMMIT, lose_answer=True)
    run = trainer("every_save", num_train_epochs=1)
    run.train()
    assert titles(hub) == ["initial commit", "Training in progress, epoch 1"]


def test_push_without_waiting(hub, trainer):
    run = trainer("end", num_train_epochs=1)
    future = run.push_to_hub(blocking=False)
    # What is pushed is what was there.
    weights = Path(run.args.output_dir, "model.safetensors")
    expected = weights.read_bytes()
    weights.write_bytes(b"")
    assert future.result(timeout=600).oid == hub.repo(NAME).commit().oid
    assert hub.repo(NAME).files()["model.safetensors"] == expected


def test_save_model_pushes(hub, trainer):
    trainer("end").save_model()
    assert titles(hub) == ["initial commit", "Model save"] and is_whole(hub.repo(NAME).files())


def test_own_card_stays(hub, trainer):
    run = trainer("end")
    card = Path(run.args.output_dir, "README.md")
    card.write_text("---\ntags: [mine]\n---\n# My own words\n")
    run.push_to_hub()
    assert hub.repo(NAME).files()["README.md"].endswith(b"# My own words\n")
    run.push_to_hub(dataset_tags="ada/data")
    assert b"ada/data" in hub.repo(NAME).files()["README.md"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda hub, patch: patch.delenv("HF_TOKEN"), "needs a login"),
        (lambda hub, patch: hub.read_only.add(hub.token), "right to write"),
        (lambda hub, patch: patch.setattr(pushes, "write_code", _fail), "cannot be exported"),
    ],
)
def test_what_cannot_work_is_refused_at_once(hub, trainer, monkeypatch, change, message):
    change(hub, monkeypatch)
    with pytest.raises(ValueError, match=message):
        trainer("end")
    assert hub.repos == {}


def _fail(*given):
    raise ValueError("the code cannot be exported")


def test_the_stock_trainer_at_the_end(hub, trainer):
    """Fine-tuning without this package's Trainer: what it pushes at the end can be loaded by others, too."""
    trainer("end", Trainer).push_to_hub()
    assert is_whole(hub.repo(NAME).files())
    assert len(json.loads(hub.repo(NAME).files()["config.json"])["auto_map"]) == 8


@pytest.mark.parametrize("by_saving", [False, True])
def test_models_push_themselves(hub, make_model, tmp_path, by_saving):
    """By transformers' own way, with the code of the model."""
    model = make_model("S4", "ForSequenceClassification")
    if by_saving:
        model.save_pretrained(tmp_path / "m", push_to_hub=True, repo_id=NAME)
    else:
        model.push_to_hub(NAME)
    assert {"config.json", "model.safetensors"} <= hub.repo(NAME).files().keys()
    loaded = AutoModelForSequenceClassification.from_pretrained(NAME).eval()
    tokens = torch.arange(7, 12)[None]
    assert torch.equal(loaded(tokens).logits, model(tokens).logits)
