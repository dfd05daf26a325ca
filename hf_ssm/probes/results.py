"""What a probe finds, in memory and in files.

Legend: `L` tokens of a sequence, `M` of them that could be masked.
"""

import importlib.metadata
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import torch
from torch import Tensor

if TYPE_CHECKING:
    from datasets import Dataset

__all__ = ["MaskingResult", "MaskingResults"]

_FORMAT = "hf_ssm masking results"
_VERSION = 1
_PER_SEQUENCE = ("target", "strategy", "mask", "evaluations", "tokens", "tokens_text")


@dataclass(eq=False)
class MaskingResult:
    """The order in which the tokens of one sequence were masked, and what the model said after each.

    Attributes:
        input_ids: `(L,)`, int64.
        order: `(M,)`, int64: positions in the order of masking, those that matter least first.
        probabilities: `(M + 1,)`, float64: of the target, before the first masking and after each. (Of a callable
            target, its numbers.)
        target: What was asked: {"kind": "class", "label": ...}, {"kind": "token", "position": ..., "token": ...} or
            {"kind": "callable", "name": ...}.
        strategy: "exact", "screened" or "one_shot".
        mask: What masked tokens were replaced by.
        evaluations: Masked variants of the sequence that were evaluated.
        tokens: Tokens that went through the model for it; a backward pass counts as two passes.
        tokens_text: The tokens as text, where there is a tokenizer.
    """

    input_ids: Tensor
    order: Tensor
    probabilities: Tensor
    target: dict[str, Any]
    strategy: str
    mask: str
    evaluations: int
    tokens: int
    tokens_text: list[str] | None = None

    @property
    def area(self) -> float:
        """Mean probability over the share of tokens masked, by the trapezoidal rule."""
        return torch.trapezoid(self.probabilities, dx=1 / len(self.order)).item()

    def tokens_left(self, threshold: float) -> int:
        """How few tokens are left unmasked, of the M, before the probability first falls below a threshold.

        All M where it is below from the start.
        """
        fallen = (self.probabilities < threshold).nonzero()
        prefix = int(fallen[0]) - 1 if len(fallen) else len(self.order)
        return len(self.order) - max(prefix, 0)

    def survivors(self, count: int) -> Tensor:
        """The positions of the tokens that were masked last, the very last first, `(count,)`.

        Raises:
            ValueError: There are not so many.
        """
        if not 0 <= count <= len(self.order):
            raise ValueError(f"`count`={count}: {len(self.order)} tokens were masked, so give 0 to {len(self.order)}.")
        return self.order.flip(0)[:count]

    @property
    def importance(self) -> Tensor:
        """k / M of the token that was masked as the k-th, `(L,)`, float64; NaN where none was masked."""
        found = torch.full((len(self.input_ids),), math.nan, dtype=torch.float64)
        found[self.order] = torch.arange(1, len(self.order) + 1, dtype=torch.float64) / len(self.order)
        return found

    def agreement(self, other: "MaskingResult") -> dict[str, float]:
        """How another strategy's result agrees with this one.

        Returns:
            "spearman": rank correlation of the two orders (NaN where but one token was masked);
            "area_difference": the area of this one less that of the other.

        Raises:
            ValueError: The other one is of another sequence, or masks other tokens.
        """
        ranks, others = self.importance, other.importance
        same = torch.equal(self.input_ids, other.input_ids) and torch.equal(ranks.isnan(), others.isnan())
        if not same:
            raise ValueError("`other` is of another sequence, or other tokens of it could be masked: compare like.")
        count = len(self.order)
        distance = ((ranks - others)[~ranks.isnan()] * count).square().sum().item()
        spearman = 1 - 6 * distance / (count * (count**2 - 1)) if count > 1 else math.nan
        return {"spearman": spearman, "area_difference": self.area - other.area}

    def plot(self, path: str | Path | None = None) -> Any:
        """Draw the curve; see `hf_ssm.plotting.plot_masking_curves`."""
        return MaskingResults([self]).plot(path)

    def to_dataset(self) -> "Dataset":
        """A `datasets.Dataset` of one row; see `MaskingResults.to_dataset`."""
        return MaskingResults([self]).to_dataset()

    def save(self, path: str | Path) -> None:
        """Write a safetensors file."""
        MaskingResults([self]).save(path)

    @classmethod
    def load(cls, path: str | Path) -> "MaskingResult":
        """Read it again.

        Raises:
            ValueError: It is no such file, or holds several sequences.
            FileNotFoundError: There is none.
        """
        found = MaskingResults.load(path)
        if len(found) != 1:
            raise ValueError(f"{str(path)!r} holds the results of {len(found)} sequences: use `MaskingResults.load`.")
        return found[0]

    def _row(self) -> dict[str, Any]:
        return {
            "input_ids": self.input_ids.tolist(),
            "tokens": self.tokens_text,
            "order": self.order.tolist(),
            "probabilities": self.probabilities.tolist(),
            "importance": self.importance.tolist(),
            "area": self.area,
            "target": json.dumps(self.target),
            "strategy": self.strategy,
            "mask": self.mask,
            "evaluations": self.evaluations,
            "tokens_run": self.tokens,
        }


class MaskingResults(Sequence[MaskingResult]):
    """Results of several sequences, in the order in which the sequences were given.

    Args:
        results: Of each sequence.
        settings: How they were made: model, mask, strategy and the rest, which JSON can hold.
        indices: The number of each among the sequences given; default: all of them.
    """

    def __init__(
        self,
        results: Iterable[MaskingResult],
        settings: Mapping[str, Any] | None = None,
        indices: Iterable[int] | None = None,
    ):
        self._results = list(results)
        self.settings = dict(settings or {})
        self.indices = list(range(len(self._results)) if indices is None else indices)

    def __len__(self) -> int:
        return len(self._results)

    @overload
    def __getitem__(self, index: int) -> MaskingResult: ...
    @overload
    def __getitem__(self, index: slice) -> "MaskingResults": ...
    def __getitem__(self, index: int | slice) -> "MaskingResult | MaskingResults":
        if isinstance(index, slice):
            return MaskingResults(self._results[index], self.settings, self.indices[index])
        return self._results[index]

    def mean_curve(self, points: int = 101) -> tuple[Tensor, Tensor, Tensor]:
        """Mean and standard deviation of the probability by the share of tokens masked.

        Curves of sequences of different lengths meet by linear interpolation between their points.

        Args:
            points: Shares from 0 to 1.

        Returns:
            The shares, the mean, and the standard deviation of the sample (0 for a single sequence), each `(points,)`,
            float64.

        Raises:
            ValueError: There is no result, or there are fewer than two points.
        """
        if not self._results or points < 2:
            raise ValueError(
                f"`points`={points}, {len(self)} results: a mean takes two points and one result at least."
            )
        shares = torch.linspace(0, 1, points, dtype=torch.float64)
        curves = torch.stack([_interpolated(result.probabilities, shares) for result in self._results])
        spread = curves.std(dim=0) if len(curves) > 1 else torch.zeros_like(shares)
        return shares, curves.mean(dim=0), spread

    def agreement(self, other: "MaskingResults") -> list[dict[str, float]]:
        """`MaskingResult.agreement` of each sequence.

        Raises:
            ValueError: The other results are of other sequences.
        """
        if len(other) != len(self):
            raise ValueError(f"`other` has {len(other)} results, this one {len(self)}: compare the same sequences.")
        return [own.agreement(theirs) for own, theirs in zip(self, other, strict=True)]

    def plot(self, path: str | Path | None = None) -> Any:
        """Draw the curves, with their mean and standard deviation; see `hf_ssm.plotting.plot_masking_curves`."""
        from hf_ssm.plotting import plot_masking_curves

        return plot_masking_curves(self._results, path)

    def to_dataset(self) -> "Dataset":
        """A `datasets.Dataset` with one row for each sequence.

        Columns: "input_ids", "tokens" (text, or None), "order", "probabilities", "importance" (NaN where nothing was
        masked), "area", "target" (JSON), "strategy", "mask", "evaluations", "tokens_run".
        """
        from datasets import Dataset

        return Dataset.from_list([result._row() for result in self._results])

    def save(self, path: str | Path) -> None:
        """Write one safetensors file: tensors end to end, the rest as JSON in its metadata.

        A file that is there is replaced, in one step.
        """
        from safetensors.torch import save_file

        results = self._results
        empty = torch.zeros(0, dtype=torch.int64)
        tensors = {
            "input_ids": torch.cat([empty, *(result.input_ids for result in results)]),
            "input_lengths": torch.tensor([len(result.input_ids) for result in results], dtype=torch.int64),
            "order": torch.cat([empty, *(result.order for result in results)]),
            "order_lengths": torch.tensor([len(result.order) for result in results], dtype=torch.int64),
            "probabilities": torch.cat([empty.double(), *(result.probabilities for result in results)]),
        }
        header = {
            "format": _FORMAT,
            "version": _VERSION,
            "settings": self.settings,
            "indices": self.indices,
            "libraries": {name: importlib.metadata.version(name) for name in ("torch", "transformers")},
            "results": [{name: getattr(result, name) for name in _PER_SEQUENCE} for result in results],
        }
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            # As the umask says: safetensors writes files that nobody but the owner can read.
            unfinished.touch()
            mode = unfinished.stat().st_mode & 0o777
            save_file(tensors, unfinished, metadata={"hf_ssm": json.dumps(header)})
            unfinished.chmod(mode)
            os.replace(unfinished, path)
        finally:
            unfinished.unlink(missing_ok=True)

    @classmethod
    def load(cls, path: str | Path) -> "MaskingResults":
        """Read them again.

        Raises:
            ValueError: It is no such file, is not whole, or is of a later version.
            FileNotFoundError: There is none.
        """
        if not Path(path).is_file():
            raise FileNotFoundError(f"there is no file {str(path)!r}")
        header, tensors = _read(path)
        ids = tensors["input_ids"].split(tensors["input_lengths"].tolist())
        orders = tensors["order"].split(tensors["order_lengths"].tolist())
        curves = tensors["probabilities"].split((tensors["order_lengths"] + 1).tolist())
        parts = zip(ids, orders, curves, header["results"], strict=True)
        results = [MaskingResult(*(part.clone() for part in own), **rest) for *own, rest in parts]
        return cls(results, header["settings"], header["indices"])


def _read(path: str | Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Header and tensors of a file of ours."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            header = json.loads((file.metadata() or {}).get("hf_ssm", "null"))
            if not isinstance(header, dict) or header.get("format") != _FORMAT:
                raise ValueError(f"{str(path)!r} is a safetensors file, but holds no masking results of hf_ssm.")
            if header["version"] > _VERSION:
                raise ValueError(f"{str(path)!r} was written by a later hf_ssm: update the package to read it.")
            return header, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, json.JSONDecodeError, KeyError) as error:
        raise ValueError(f"{str(path)!r} is no file of masking results, or is not whole ({error}).") from error


def _interpolated(curve: Tensor, shares: Tensor) -> Tensor:
    """The curve at shares of its way, linear between its points."""
    places = shares * (len(curve) - 1)
    below = places.floor().long().clamp(max=len(curve) - 2)
    return torch.lerp(curve[below], curve[below + 1], places - below)
