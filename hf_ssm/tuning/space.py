"""A search space of the flags of theory for `Trainer.hyperparameter_search(backend="optuna")`."""

import copy
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any

from transformers import PreTrainedModel

from hf_ssm.analysis.time_steps import has_time_steps
from hf_ssm.models.base.configuration import SSMConfig
from hf_ssm.training.loading import read_config
from hf_ssm.training.settings import RunSettings, config_class

__all__ = ["SearchSpace", "check_optuna"]

_RATE_SPAN = 10.0
_LARGEST_STEPS, _STEP_SPANS = (1e-2, 1.0), (1.0, 1e3)
_WEIGHTS = (1e-6, 1e-1)
_ALPHAS, _BETAS = (0.1, 10.0), (-1.0, 1.0)
# What the trials name, beside fields of the configuration and of the training arguments.
_SPAN, _PENALTY = "time_step_span", "tau_penalty"


def check_optuna() -> None:
    """Raise an `ImportError` that names the extra if optuna is not installed."""
    if find_spec("optuna") is None:
        raise ImportError('the search needs optuna, which is not installed: pip install "hf_ssm[tuning]"')


class SearchSpace:
    """Learning rate, step sizes, rescaling and regulariser, and optionally α and β, for optuna.

    ```python
    space = SearchSpace(config)
    trainer = SSMTrainer(model_init=space.model_init(AutoModelForSequenceClassification.from_config), args=args, ...)
    best = trainer.hyperparameter_search(hp_space=space, backend="optuna", n_trials=12, direction="maximize",
                                         compute_objective=lambda metrics: metrics["eval_accuracy"])
    space.settings(best.hyperparameters)  # sections of a settings file of `hf-ssm train`
    ```

    | name in a trial | values |
    | --- | --- |
    | `learning_rate` | log-uniform from a tenth to ten times `learning_rate` |
    | `time_step_max` | log-uniform from 0.01 to 1, for models with step sizes |
    | `time_step_span` | log-uniform from 1 to 1000: `time_step_max` divided by `time_step_min` |
    | `rescale_init` | on or off |
    | `tau_penalty`, `tau_weight` | without λ, or λ log-uniform from 1e-6 to 0.1 |
    | `frequency_scale` (with `alpha`) | log-uniform from 0.1 to 10, for models with frequencies |
    | `sobolev_order` (with `beta`) | uniform from -1 to 1 |

    Args:
        config: The configuration of the models, fresh ones; each trial changes a copy.
        learning_rate: The middle of the range; default: that of `hf-ssm train` for fresh models.
        alpha: Whether α is searched too. On the tasks of the project's pilot it gave nothing.
        beta: Whether β is searched too. On the tasks of the project's pilot it gave nothing.
        of_checkpoint: Whether the models are loaded from a checkpoint, which fixes step sizes and initialisation: only
            the learning rate and λ are searched.

    Raises:
        TypeError: `config` is not a configuration of hf_ssm.
        ValueError: `learning_rate` is not positive, or `alpha` is set for a model without frequencies, or `alpha` or
            `beta` for a checkpoint.
    """

    def __init__(
        self,
        config: SSMConfig,
        learning_rate: float = 3e-3,
        *,
        alpha: bool = False,
        beta: bool = False,
        of_checkpoint: bool = False,
    ):
        if not isinstance(config, SSMConfig):
            raise TypeError(f"`config` must be a configuration of hf_ssm, got {type(config).__name__}.")
        if not learning_rate > 0:
            raise ValueError(f"`learning_rate` must be positive, got {learning_rate}.")
        if alpha and not config.has_frequencies:
            raise ValueError(
                f"`alpha=True` needs a state matrix with frequencies: {config.no_alpha_rule} Leave `alpha` out."
            )
        if of_checkpoint and (alpha or beta):
            raise ValueError("`of_checkpoint=True` fixes the initialisation: leave `alpha` and `beta` out.")
        self._config, self._alpha, self._beta, self._is_fresh = config, alpha, beta, not of_checkpoint
        self._rate = learning_rate
        self._rates = learning_rate / _RATE_SPAN, learning_rate * _RATE_SPAN
        self._has_steps = self._is_fresh and has_time_steps(config)

    @classmethod
    def of_run(cls, settings: RunSettings) -> "SearchSpace":
        """The space around the settings of a run, without α and β."""
        rate, checkpoint = settings.training["learning_rate"], settings.model["checkpoint"]
        if checkpoint is not None:
            return cls(read_config(checkpoint), rate, of_checkpoint=True)
        return cls(config_class(str(settings.model["family"]))(**settings.config_fields), rate)

    def __call__(self, trial: Any) -> dict[str, Any]:
        """The `hp_space` of `hyperparameter_search`: the fields of the training arguments."""
        # In distributed training, the other processes get what the trial has by then.
        self._suggested(trial)
        return {"learning_rate": trial.suggest_float("learning_rate", *self._rates, log=True)}

    def config(self, trial: Any) -> SSMConfig:
        """The configuration of a trial; a copy of the given one without a trial."""
        config = copy.deepcopy(self._config)
        if trial is not None:
            for name, value in self.settings(self._suggested(trial))["model"].items():
                setattr(config, name, value)
        return config

    def model_init(self, build: Callable[[SSMConfig], PreTrainedModel]) -> Callable[[Any], PreTrainedModel]:
        """The `model_init` of a Trainer: `build` with the configuration of the trial.

        Args:
            build: Such as `AutoModelForSequenceClassification.from_config`.
        """

        def model_init(trial: Any) -> PreTrainedModel:
            return build(self.config(trial))

        return model_init

    def settings(self, hyperparameters: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """The sections of a settings file for the values of a trial, such as `BestRun.hyperparameters`."""
        model = {
            name: value for name, value in hyperparameters.items() if name not in (_SPAN, _PENALTY, "learning_rate")
        }
        if _SPAN in hyperparameters:
            model["time_step_min"] = hyperparameters["time_step_max"] / hyperparameters[_SPAN]
        if not hyperparameters.get(_PENALTY, True):
            model["tau_weight"] = 0.0
        training = {name: hyperparameters[name] for name in ("learning_rate",) if name in hyperparameters}
        return {"model": model, "training": training}

    def hyperparameters(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        """The values of a trial, for `optuna.Study.enqueue_trial`: the given configuration with changes.

        Args:
            changes: Values of fields of the configuration. A value outside of its range becomes the end of the range.
        """
        config = copy.deepcopy(self._config)
        for name, value in changes.items():
            setattr(config, name, value)
        values: dict[str, Any] = {"learning_rate": self._rate, _PENALTY: config.tau_weight > 0}
        if self._is_fresh:
            values["rescale_init"] = config.rescale_init
        if self._has_steps:
            values["time_step_max"] = _clipped(config.time_step_max, _LARGEST_STEPS)
            values[_SPAN] = _clipped(config.time_step_max / config.time_step_min, _STEP_SPANS)
        if values[_PENALTY]:
            values["tau_weight"] = _clipped(config.tau_weight, _WEIGHTS)
        if self._alpha:
            values["frequency_scale"] = _clipped(config.frequency_scale, _ALPHAS)
        if self._beta:
            values["sobolev_order"] = _clipped(config.sobolev_orders[0], _BETAS)
        return values

    def _suggested(self, trial: Any) -> dict[str, Any]:
        """The fields of the configuration, with the names of the trial."""
        values: dict[str, Any] = {}
        if self._has_steps:
            values["time_step_max"] = trial.suggest_float("time_step_max", *_LARGEST_STEPS, log=True)
            values[_SPAN] = trial.suggest_float(_SPAN, *_STEP_SPANS, log=True)
        if self._is_fresh:
            values["rescale_init"] = trial.suggest_categorical("rescale_init", [False, True])
        values[_PENALTY] = trial.suggest_categorical(_PENALTY, [False, True])
        if values[_PENALTY]:
            values["tau_weight"] = trial.suggest_float("tau_weight", *_WEIGHTS, log=True)
        if self._alpha:
            values["frequency_scale"] = trial.suggest_float("frequency_scale", *_ALPHAS, log=True)
        if self._beta:
            values["sobolev_order"] = trial.suggest_float("sobolev_order", *_BETAS)
        return values


def _clipped(value: float, limits: tuple[float, float]) -> float:
    return min(max(float(value), limits[0]), limits[1])
