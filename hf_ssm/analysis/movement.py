"""How far training moves the parameters of a model, by what they stand for (Yu et al. 2025, Table 1).

Legend: `C` channels of a filter or scan, `N` state size, `S` stored states (N, or N / 2 conjugate pairs), `R` rank of
the step projection.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.utils import logging

__all__ = ["GROUPS", "ParameterMovement", "movement_of_log", "relative_change"]

logger = logging.get_logger(__name__)

GROUPS: dict[str, str] = {
    "step_size": "step sizes Δ (selective: softplus of the bias)",
    "A_real": "Re A",
    "A_imag": "Im A",
    "P": "low-rank part of A",
    "B": "B (selective: W_B)",
    "C": "C (selective: W_C)",
    "BC": "B∘C of the state space filters",
    "D": "feed-through D",
    "sobolev_order": "Sobolev order β",
    "step_projection": "projection to the step size",
    "filter_frequency": "frequencies of Hyena's filters",
    "filter_amplitude": "amplitudes of the sinusoid filters",
    "filter_mlp": "MLP of the implicit filters",
    "short_convolution": "short convolutions",
    "projection": "projections of the mixers",
    "mlp": "MLPs of the blocks",
    "norm": "norms",
    "embedding": "embedding",
    "head": "head",
    "adapter": "adapters (PEFT)",
    "other": "other parameters",
}
"""The groups of parameters, in the order of a table, and what they are called in it."""

_PREFIX = "relative_change_"
_STEP = "relative_change_step"
_SINCE = "relative_change_since_step"
_SNAPSHOT_NAME = "initial_parameters.safetensors"


def _minus_exp(stored: Tensor) -> Tensor:
    return -stored.exp()


# Own name of a parameter of a filter or scan -> its group, and the quantity that is stored in another form.
_OF_OPERATORS: dict[str, tuple[str, Callable[[Tensor], Tensor] | None]] = {
    "log_dt": ("step_size", torch.exp),
    "dt_bias": ("step_size", nn.functional.softplus),
    "log_A_real": ("A_real", _minus_exp),
    "A_log": ("A_real", _minus_exp),
    "A": ("A_real", None),
    **{name: (name, None) for name in ("A_imag", "B", "C", "P", "D", "sobolev_order")},
    **dict.fromkeys(("frequency", "frequencies"), ("filter_frequency", None)),
    "amplitudes": ("filter_amplitude", None),
}
# Part of a parameter's path -> its group; the first that fits.
_OF_MODULES = (
    (r"lora_\w+|adapter\w*|ia3_\w+", "adapter"),
    (r"dt_proj", "step_projection"),
    (r"short_filter|(reverse_)?conv1d", "short_convolution"),
    (r"in_proj|out_proj", "projection"),
    (r"mlp", "mlp"),
    (r"norm\d?", "norm"),
    (r"embed_tokens|input_projection", "embedding"),
    (r"classifier|lm_head", "head"),
)
_OPERATORS = frozenset({"filter", "scan", "reverse_scan", "long_conv"})


def _quantities(parameters: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Group and value of each quantity, in float64 on the CPU, one after the other."""
    for name, stored in parameters.items():
        path = name.split(".")
        own, owners = path[-1], path[:-1]
        # Beside a part that is trained as a whole, PEFT keeps what it was before; the model does not use it.
        if "original_module" in owners:
            continue
        value = stored.detach().to("cpu", torch.float64)
        if "x_proj" in owners and own == "weight" and _group_of_modules(owners) != "adapter":
            yield from _parts_of_selection(name, value, parameters)
        elif _OPERATORS & set(owners[-1:]) and (own in _OF_OPERATORS or re.fullmatch(r"(weight|bias)_\d+", own)):
            group, quantity = _OF_OPERATORS.get(own, ("filter_mlp", None))
            yield group, value if quantity is None else quantity(value)
        else:
            yield _group_of_modules(owners) or "other", value
        partner = parameters.get(".".join([*owners, "C"])) if own == "B" and owners[-1:] == ["filter"] else None
        if partner is not None:
            B, C = (torch.view_as_complex(part.contiguous()) for part in (value, partner.detach().cpu().double()))
            yield "BC", torch.view_as_real(B * C)


def _group_of_modules(owners: Sequence[str]) -> str | None:
    return next((group for pattern, group in _OF_MODULES if any(re.fullmatch(pattern, part) for part in owners)), None)


def _parts_of_selection(name: str, weight: Tensor, parameters: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """The projections to Δ `(R, C)`, B `(N, C)` and C `(N, C)` that `x_proj` stacks."""
    scan = name[: name.rindex("x_proj")]
    state = next((parameters[scan + own] for own in ("A", "A_log") if scan + own in parameters), None)
    if state is None:
        yield "other", weight
        return
    size = state.shape[1] * (2 if f"{scan}A_imag" in parameters else 1)
    step, B, C = weight.split([len(weight) - 2 * size, size, size])
    yield from [("step_projection", step)] if len(step) else []
    yield from [("B", B), ("C", C)]


def relative_change(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> dict[str, float | None]:
    """‖θ_after - θ_before‖ / ‖θ_before‖ of each group of parameters, Frobenius norms over all layers together.

    θ are the quantities of the theory, not what is stored: Δ instead of its logarithm, Re A = -exp(log_A_real), and
    besides B and C of a state space filter their product B∘C, by which alone they enter its kernel. `x_proj` of a
    selective scan is taken apart into the projections to Δ, B and C.

    Args:
        before: Parameters by name, such as `dict(model.named_parameters())` or a state dict.
        after: Those of the same model later on.

    Returns:
        By the groups of `GROUPS` that are there; `None` where the group was zero before, of which no ratio can be
        taken (a trainable Sobolev order that starts at 0).

    Raises:
        ValueError: The two have other names or shapes.

    Source: Yu et al. 2025, Table 1, which gives the average over the matrices of a model.
    """
    if before.keys() != after.keys():
        odd = sorted(before.keys() ^ after.keys())
        raise ValueError(f"`before` and `after` are of different models: only one of them has {', '.join(odd[:3])}.")
    for name, tensor in before.items():
        if tensor.shape != after[name].shape:
            shapes = tuple(tensor.shape), tuple(after[name].shape)
            raise ValueError(f"{name} has the shape {shapes[0]} in `before` and {shapes[1]} in `after`.")
    # A file may hold the tensors in another order.
    after = {name: after[name] for name in before}
    sizes: dict[str, float] = {}
    changes: dict[str, float] = {}
    for (group, first), (_, last) in zip(_quantities(before), _quantities(after), strict=True):
        sizes[group] = sizes.get(group, 0.0) + first.square().sum().item()
        changes[group] = changes.get(group, 0.0) + (last - first).square().sum().item()
    return {
        group: (changes[group] / sizes[group]) ** 0.5 if sizes[group] > 0 else None
        for group in GROUPS
        if group in sizes
    }


def movement_of_log(log_history: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The relative changes of the last entry of a Trainer's log that has them, by group.

    Empty where none has, or where that one counts from a resumption only, not from the start of training.
    """
    for entry in reversed(log_history):
        found = {group: entry[f"{_PREFIX}{group}"] for group in GROUPS if f"{_PREFIX}{group}" in entry}
        if found:
            return {} if _SINCE in entry else found
    return {}


class ParameterMovement(TrainerCallback):
    """Writes the relative change of each group of parameters since the start of training into the Trainer's log.

    At each entry with the training loss, and at the end (of the model that is kept: the best checkpoint where the
    Trainer loads that), `log_history` gets `relative_change_<group>` for the groups of `GROUPS`; a group that was zero
    at the start is left out. The last entry says under `relative_change_step` after which step the model was taken.

    The start is `on_train_begin`, after a rescaling. Each checkpoint also holds the parameters of the start
    (`initial_parameters.safetensors`, as large as the weights), from which a resumed run takes them. Where it finds
    none, changes are counted from the resumption, with a warning, and each entry says so under
    `relative_change_since_step`.

    Works with `SSMTrainer` and with transformers' Trainer, for models that each process holds whole. It keeps a copy of
    the parameters on the CPU.

    Args:
        resumed_from: Checkpoint folder that the run goes on from; default: `checkpoint-STEP` in the output folder.

    Source: Yu et al. 2025, Table 1.
    """

    def __init__(self, resumed_from: str | Path | None = None):
        self.resumed_from = resumed_from
        self.initial: dict[str, Tensor] = {}
        self.since_step = 0

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if not state.is_world_process_zero:
            return
        self.initial = {name: _copied(value) for name, value in _parameters(kwargs["model"]).items()}
        self.since_step = 0
        if state.global_step == 0:
            return
        folder = _checkpoint(args, state) if self.resumed_from is None else Path(self.resumed_from)
        stored = _stored_snapshot(folder, self.initial)
        if stored is None:
            self.since_step = state.global_step
            logger.warning(
                f"{str(folder)!r} holds no {_SNAPSHOT_NAME} of this model: changes of parameters are counted from step "
                f"{state.global_step}, where the run goes on."
            )
        else:
            self.initial = stored

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        # The entry is in the history already; what stands on the screen is not made longer.
        if self.initial and "loss" in (kwargs.get("logs") or {}) and state.log_history:
            state.log_history[-1].update(self._changes(kwargs["model"]))

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        folder = _checkpoint(args, state)
        # What began in the middle is no start.
        if self.initial and folder.is_dir() and self.since_step == 0:
            save_file(self.initial, folder / _SNAPSHOT_NAME)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self.initial:
            best = args.load_best_model_at_end and state.best_model_checkpoint is not None
            entry: dict[str, Any] = dict(self._changes(kwargs["model"]))
            entry[_STEP] = state.best_global_step if best else state.global_step
            state.log_history.append({**entry, "epoch": state.epoch, "step": state.global_step})

    @contextmanager
    def start(self, model: nn.Module) -> Iterator[None]:
        """Within the context the model has the parameters of the start of training, if they are known here."""
        present = _parameters(model)
        kept = {name: present[name].detach().clone() for name in self.initial}
        try:
            _assign(present, self.initial)
            yield
        finally:
            _assign(present, kept)

    def _changes(self, model: nn.Module) -> dict[str, float]:
        changes = relative_change(self.initial, _parameters(model))
        known = {f"{_PREFIX}{group}": value for group, value in changes.items() if value is not None}
        return {**known, _SINCE: self.since_step} if self.since_step else known


def _checkpoint(args: TrainingArguments, state: TrainerState) -> Path:
    """Where the Trainer keeps what there is at this step."""
    return Path(args.output_dir or "", f"checkpoint-{state.global_step}")


def _parameters(model: nn.Module) -> dict[str, Tensor]:
    """Parameters by name, without the prefixes of wrappers for several devices or a compiler."""
    return {re.sub(r"(^|\.)(module|_orig_mod)\.", r"\1", name): value for name, value in model.named_parameters()}


@torch.no_grad()
def _assign(parameters: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> None:
    for name, value in values.items():
        parameters[name].copy_(value)


def _copied(value: Tensor) -> Tensor:
    return value.detach().cpu().clone(memory_format=torch.contiguous_format)


def _stored_snapshot(folder: Path, like: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
    """The parameters that an earlier run began with, if the folder has those of this model."""
    if not (folder / _SNAPSHOT_NAME).is_file():
        return None
    stored = load_file(folder / _SNAPSHOT_NAME)
    fits = stored.keys() == like.keys() and all(stored[name].shape == like[name].shape for name in like)
    return stored if fits else None
