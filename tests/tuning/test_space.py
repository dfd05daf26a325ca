"""The search space: its ranges, and a search of the Trainer with optuna."""

import logging

import pytest
import torch
from transformers import AutoModelForSequenceClassification, BertConfig

from hf_ssm import HyenaConfig, S4Config, SSMTrainer
from hf_ssm.training import SSMTrainingArguments
from hf_ssm.training.arguments import TRAINING_DEFAULTS
from hf_ssm.training.settings import resolve
from hf_ssm.tuning.space import SearchSpace

optuna = pytest.importorskip("optuna", reason="the extra tuning is not installed")
SIZES = {"hidden_size": 4, "num_hidden_layers": 1, "state_size": 4}


def sampled(space: SearchSpace, count: int = 40) -> list[dict]:
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    trials = []
    for _ in range(count):
        trial = study.ask()
        config, training = space.config(trial), space(trial)
        assert training["learning_rate"] == trial.params["learning_rate"]
        # The settings of a trial are its configuration.
        settings = resolve(
            {"data": {"dataset": "planted-motifs"}}, space.settings(trial.params), {"model": {"family": "s4"}}
        )
        assert {name: getattr(config, name) for name in settings.config_fields} == settings.config_fields
        assert settings.training["learning_rate"] == training["learning_rate"]
        trials.append({**settings.config_fields, **training})
        study.tell(trial, 0.0)
    return trials


def test_ranges():
    trials = sampled(SearchSpace(S4Config(**SIZES), 2e-3))
    assert all(2e-4 <= trial["learning_rate"] <= 2e-2 for trial in trials)
    assert all(1e-5 <= trial["time_step_min"] <= trial["time_step_max"] <= 1 for trial in trials)
    assert {trial["rescale_init"] for trial in trials} == {False, True}
    weights = [trial["tau_weight"] for trial in trials]
    assert 0 in weights and any(1e-6 <= weight <= 1e-1 for weight in weights) and max(weights) <= 1e-1
    assert not {"frequency_scale", "sobolev_order"} & set(trials[0])


def test_default_rate_is_that_of_the_command():
    rates = [trial["learning_rate"] for trial in sampled(SearchSpace(S4Config(**SIZES)))]
    middle = TRAINING_DEFAULTS["learning_rate"]
    assert middle / 10 <= min(rates) < middle / 3 and 3 * middle < max(rates) <= middle * 10


def test_optional_flags_and_models_without_step_sizes():
    trials = sampled(SearchSpace(S4Config(**SIZES), alpha=True, beta=True), 5)
    assert all(0.1 <= trial["frequency_scale"] <= 10 and -1 <= trial["sobolev_order"] <= 1 for trial in trials)
    space = SearchSpace(HyenaConfig(hidden_size=4, num_hidden_layers=1, filter_order=8))
    trial = optuna.create_study().ask()
    space.config(trial)
    assert not {"time_step_max", "time_step_span"} & set(trial.params) and "rescale_init" in trial.params


def test_models_of_a_checkpoint_are_not_initialised():
    space = SearchSpace(S4Config(**SIZES), of_checkpoint=True)
    trial = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0)).ask()
    space(trial)
    assert set(trial.params) - {"tau_weight"} == {"learning_rate", "tau_penalty"}
    assert not {"rescale_init", "time_step_max"} & set(space.settings(trial.params)["model"])
    with pytest.raises(ValueError, match="leave `alpha` and `beta` out"):
        SearchSpace(S4Config(**SIZES), alpha=True, of_checkpoint=True)


def test_a_trial_of_given_values():
    """Values outside of their ranges become the ends."""
    space = SearchSpace(S4Config(**SIZES, tau_weight=0.5), 2e-3, alpha=True, beta=True)
    study = optuna.create_study()
    study.enqueue_trial(space.hyperparameters({"time_step_min": 0.02, "time_step_max": 1.0, "rescale_init": True}))
    trial = study.ask()
    settings = space.settings({**space(trial), **trial.params})
    expected = {"time_step_min": 0.02, "time_step_max": 1.0, "rescale_init": True, "tau_weight": 0.1}
    assert settings["model"] == pytest.approx({**expected, "frequency_scale": 1.0, "sobolev_order": 0.0})
    assert settings["training"] == {"learning_rate": 2e-3}


def test_bad_arguments():
    with pytest.raises(TypeError, match="configuration of hf_ssm, got BertConfig"):
        SearchSpace(BertConfig())
    with pytest.raises(ValueError, match="`learning_rate` must be positive"):
        SearchSpace(S4Config(), 0.0)
    with pytest.raises(ValueError, match="`alpha=True` needs a state matrix with frequencies"):
        SearchSpace(S4Config(init="real"), alpha=True)


def test_search_of_the_trainer(tmp_path, caplog):
    """Each trial trains a model with its own configuration and learning rate, and warns of nothing."""
    rows = [{"input_ids": torch.randint(12, (8,)), "labels": index % 2} for index in range(8)]
    space = SearchSpace(S4Config(**SIZES, num_labels=2))
    models = []

    def build(config: S4Config) -> torch.nn.Module:
        models.append(AutoModelForSequenceClassification.from_config(config))
        return models[-1]

    args = SSMTrainingArguments(
        str(tmp_path), max_steps=2, report_to="none", disable_tqdm=True, dataloader_pin_memory=False, save_strategy="no"
    )
    trainer = SSMTrainer(model_init=space.model_init(build), args=args, train_dataset=rows, eval_dataset=rows)
    with caplog.at_level(logging.WARNING):
        best = trainer.hyperparameter_search(
            hp_space=space, backend="optuna", n_trials=3, sampler=optuna.samplers.RandomSampler(seed=3)
        )
    assert "no corresponding field" not in caplog.text
    configs = [model.config for model in models[1:]]
    assert len(configs) == 3 and len({config.time_step_max for config in configs}) == 3
    settings = space.settings(best.hyperparameters)
    assert any(all(getattr(config, name) == value for name, value in settings["model"].items()) for config in configs)
    # A model whose trial has `rescale_init` was rescaled.
    assert [config.rescaled for config in configs] == [config.rescale_init for config in configs]
    assert len({config.rescale_init for config in configs}) == 2
