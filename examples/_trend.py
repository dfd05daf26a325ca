"""Training recipe and trend test of the experiments on length (Honarpisheh et al. 2025)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from scipy import stats
from torch import Tensor


@dataclass(frozen=True)
class Trend:
    """A straight line through measurements.

    Attributes:
        slope: change of y per unit of x.
        low, high: bounds of its confidence interval.
        p_value: probability of a slope of at least this magnitude without a trend, under normal errors.
    """

    slope: float
    low: float
    high: float
    p_value: float


def slope_with_confidence(x: Sequence[float], y: Sequence[float], confidence: float = 0.95) -> Trend:
    """Least squares slope of y against x, with its interval from Student's t with n - 2 degrees of freedom."""
    line = stats.linregress(x, y)
    reach = float(line.stderr * stats.t.ppf((1 + confidence) / 2, len(x) - 2))
    return Trend(float(line.slope), float(line.slope) - reach, float(line.slope) + reach, float(line.pvalue))


def collapse_penalty(logits: Tensor) -> Tensor:
    """max(0, 10 (0.1 - std(σ(logits)))): penalises a constant output."""
    return torch.clamp(10 * (0.1 - logits.sigmoid().std()), min=0)


def train_recipe(
    model: torch.nn.Module,
    input_ids: Tensor,
    labels: Tensor,
    attention_mask: Tensor | None = None,
    *,
    epochs: int,
    batch_size: int,
    learning_rate: float = 1e-2,
    weight_decay: float = 1e-5,
) -> list[float]:
    """Train a model with one logit as in the authors' published code; return the loss of each epoch.

    Adam, cross-entropy plus `collapse_penalty`, gradients clipped to the norm 5; the rate is multiplied by 0.9 after
    5 epochs without a decrease of the training loss by 1 %.

    Args:
        model: A model with logits `(B, 1)`.
        input_ids: `(n, L)`.
        labels: `(n,)`, 0 or 1.
        attention_mask: `(n, L)`; None reads padding as tokens.
        epochs: Passes over the rows, each in a random order from torch's generator.
        batch_size: Rows per step; the last step of an epoch may have fewer, but a single row is skipped.
        learning_rate: Initial learning rate.
        weight_decay: Weight decay of Adam, added to the gradient.
    """
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate, weight_decay=weight_decay)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.9, patience=5, threshold=0.01)
    device = next(model.parameters()).device
    losses = []
    model.train()
    for _ in range(epochs):
        total, steps = 0.0, 0
        for rows in torch.randperm(len(labels)).split(batch_size):
            if len(rows) < 2:
                continue
            mask = None if attention_mask is None else attention_mask[rows].to(device)
            logits = model(input_ids=input_ids[rows].to(device), attention_mask=mask).logits.squeeze(-1)
            target = labels[rows].to(device, logits.dtype)
            loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, target) + collapse_penalty(logits)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            total, steps = total + loss.item(), steps + 1
        losses.append(total / steps)
        scheduler.step(losses[-1])
    return losses


@torch.no_grad()
def accuracy(
    model: torch.nn.Module,
    input_ids: Tensor,
    labels: Tensor,
    attention_mask: Tensor | None = None,
    batch_size: int = 256,
) -> float:
    """Accuracy of the sign of the logit; arguments as in `train_recipe`."""
    model.eval()
    device = next(model.parameters()).device
    right = 0
    for rows in torch.arange(len(labels)).split(batch_size):
        mask = None if attention_mask is None else attention_mask[rows].to(device)
        logits = model(input_ids=input_ids[rows].to(device), attention_mask=mask).logits.squeeze(-1)
        right += int(((logits > 0).cpu() == (labels[rows] > 0)).sum())
    return right / len(labels)
