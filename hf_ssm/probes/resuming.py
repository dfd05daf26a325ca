"""Runs over many sequences: the file that grows with them, and the processes that share them."""

import hashlib
import json
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hf_ssm.probes.results import MaskingResult, MaskingResults

__all__ = ["Company", "Store", "fingerprint_of_inputs", "fingerprint_of_model"]

# Seconds between two writings of the file.
_INTERVAL = 5.0
# Numbers of each weight that enter the fingerprint of a model.
_SAMPLE = 64
# What a configuration says of where it came from, and not of the model.
_NOT_THE_MODEL = ("_name_or_path", "transformers_version", "architectures", "dtype", "torch_dtype")


def fingerprint_of_model(model: nn.Module) -> str:
    """A hash of the configuration and of some numbers of every weight."""
    config: Any = model.config
    known = {name: value for name, value in config.to_dict().items() if name not in _NOT_THE_MODEL}
    digest = hashlib.sha256(json.dumps(known, sort_keys=True, default=str).encode())
    for name, weight in sorted(model.state_dict().items()):
        flat = weight.detach().flatten()
        places = torch.linspace(0, max(len(flat) - 1, 0), min(len(flat), _SAMPLE), dtype=torch.float64).long()
        sample = flat[places.to(flat.device)].cpu()
        numbers = torch.view_as_real(sample) if sample.is_complex() else sample
        digest.update(f"{name} {tuple(weight.shape)}".encode())
        digest.update(numbers.double().numpy().tobytes())
    return digest.hexdigest()


def fingerprint_of_inputs(sequences: Iterable[Tensor], targets: Iterable[Mapping[str, Any]]) -> str:
    """A hash of all sequences and what is asked of each."""
    digest = hashlib.sha256()
    for ids, target in zip(sequences, targets, strict=True):
        digest.update(json.dumps([ids.tolist(), target], sort_keys=True).encode())
    return digest.hexdigest()


class Company:
    """The processes of a run under `accelerate launch`, or this one alone."""

    def __init__(self) -> None:
        self.index, self.count = 0, 1
        if int(os.environ.get("WORLD_SIZE", "1")) > 1 or torch.distributed.is_initialized():
            from accelerate import PartialState

            state = PartialState()
            self.index, self.count = state.process_index, state.num_processes

    @property
    def is_first(self) -> bool:
        """Whether this process writes the whole file and shows the progress."""
        return self.index == 0

    def share(self, numbers: list[int]) -> list[int]:
        """Every n-th of what is to be done."""
        return numbers[self.index :: self.count]

    def wait(self) -> None:
        """Until all have come so far."""
        if self.count > 1:
            from accelerate.utils import wait_for_everyone

            wait_for_everyone()

    def gathered(self, found: dict[int, MaskingResult]) -> dict[int, MaskingResult]:
        """What all of them found."""
        if self.count == 1:
            return found
        from accelerate.utils import gather_object

        return dict(gather_object(list(found.items())))


class Store:
    """What is finished, in memory and, where a path is given, in a file.

    Under several processes each has a file of its own beside it, `PATH.part-K-of-N`, until the first joins them.

    Args:
        path: The file, or `None` for none.
        settings: How the results are made; those of the file must be the same.
        company: The processes.

    Raises:
        ValueError: The file is of another model, of other settings or of other inputs, or is no file of results.
    """

    def __init__(self, path: str | Path | None, settings: dict[str, Any], company: Company):
        self.path = None if path is None else Path(path)
        self.settings = settings
        self.company = company
        self.finished: dict[int, MaskingResult] = {}
        self._own: dict[int, MaskingResult] = {}
        self._written = float("-inf")
        self._unwritten = False
        if self.path is not None:
            for file in [self.path, *self._parts()]:
                if file.exists():
                    self._take_in(file)
        # Nobody writes before all have read.
        company.wait()

    def _parts(self) -> list[Path]:
        assert self.path is not None
        return sorted(self.path.parent.glob(f"{_escaped(self.path.name)}.part-*-of-*"))

    def _take_in(self, file: Path) -> None:
        found = MaskingResults.load(file)
        for name, value in self.settings.items():
            other = found.settings.get(name)
            if other != value:
                what = {"model": "another model", "inputs": "other inputs"}.get(name, f"other settings ({name})")
                raise ValueError(
                    f"`output`={str(file)!r} holds results of {what}: {_short(other)}, now {_short(value)}. "
                    "Choose another file, or delete this one."
                )
        self.finished |= dict(zip(found.indices, found, strict=True))

    def add(self, index: int, result: MaskingResult) -> None:
        """Keep a result, and write the file if that was not done just now."""
        self.finished[index] = self._own[index] = result
        self._unwritten = True
        if time.monotonic() - self._written > _INTERVAL:
            self.write()

    def write(self) -> None:
        """Write what this process has to write, if there is anything new."""
        if self.path is None or not self._unwritten:
            return
        alone = self.company.count == 1
        name = f"{self.path.name}.part-{self.company.index}-of-{self.company.count}"
        self._save(self.path if alone else self.path.with_name(name), self.finished if alone else self._own)
        self._written, self._unwritten = time.monotonic(), False

    def _save(self, path: Path, results: dict[int, MaskingResult]) -> None:
        ordered = dict(sorted(results.items()))
        MaskingResults(ordered.values(), self.settings, ordered).save(path)

    def join(self) -> MaskingResults:
        """The results of all processes, in the order of the sequences; the first process writes them."""
        self.finished |= self.company.gathered(self._own)
        ordered = dict(sorted(self.finished.items()))
        if self.path is not None:
            parts = self._parts() if self.company.is_first else []
            if parts:
                self._save(self.path, ordered)
            for part in parts:
                part.unlink()
            self.company.wait()
        return MaskingResults(ordered.values(), self.settings, ordered)


def _escaped(name: str) -> str:
    """A name that `glob` takes literally."""
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 20 else f"{text[:16]}…"
