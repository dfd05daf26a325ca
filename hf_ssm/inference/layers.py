"""Layers of a model by number or by name, and their hidden states.

Legend: `B` texts of a batch, `L` tokens of a text, `D` width of the hidden states.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from hf_ssm.inference.model import Batch, SequenceModel
from hf_ssm.utils.evaluation import evaluating

__all__ = ["ALL", "LAST", "MIDDLE", "Layers"]

ALL, LAST, MIDDLE = "all", "last", "middle"
"""Names for numbers of layers."""


class Layers:
    """Chosen hidden states of a model.

    Args:
        reader: The model without its head.
        asked: Numbers in the `hidden_states` of the model (0 is the embedding, -1 the last layer); "all" of these, the
            "last", or the "middle" one; or names of modules, as in `model.named_modules()`, whose outputs are
            `(B, L, D)`.
        prefix: Attribute of the whole model that is the model without its head; names may begin with it.

    Attributes:
        names: Number of each layer from 0, or its name.
        width: D, of each layer.
        dtype: Of the hidden states of the first layer.

    Raises:
        ValueError: No layer, an unknown layer or a layer that is named twice; a model that returns no hidden states; a
            module that the model does not call, or whose output has another shape; layers of different widths.
    """

    def __init__(self, reader: SequenceModel, asked: int | str | Sequence[int | str], prefix: str = ""):
        self._model, self._asked = reader.model, [asked] if isinstance(asked, int | str) else list(asked)
        self._modules = self._named(prefix)
        self._outputs: dict[str, Any] = {}
        ids = torch.zeros(2, 3, dtype=torch.long, device=reader.device)
        with evaluating(reader.model), self.recording():
            outputs = reader.forward(ids, output_hidden_states=True)
        self._chosen = self._resolved(getattr(outputs, "hidden_states", None))
        self.names = [str(layer) for layer in self._chosen]
        if len(set(self.names)) < len(self.names) or not self.names:
            count = len(outputs.hidden_states or ())
            fault = "names a layer twice" if self.names else "names no layer"
            raise ValueError(f"`layers`={self._asked} {fault}; the model has {count} hidden states.")
        states = self.states(Batch([0, 1], outputs))
        widths = [state.shape[-1] for state in states]
        if len(set(widths)) > 1:
            pairs = ", ".join(f"{name}: {width}" for name, width in zip(self.names, widths, strict=True))
            raise ValueError(f"`layers`={self._asked} differ in width ({pairs}): embed these layers one by one.")
        self.width, self.dtype = widths[0], states[0].dtype

    def _named(self, prefix: str) -> dict[str, torch.nn.Module]:
        """The modules that are asked for by name."""
        known = dict(self._model.named_modules())
        modules: dict[str, torch.nn.Module] = {}
        for name in self._asked:
            if isinstance(name, str) and name not in (ALL, LAST, MIDDLE):
                path = name if name in known else name.removeprefix(f"{prefix}.")
                if not name or path not in known:
                    children = ", ".join(child for child, _ in self._model.named_children())
                    raise ValueError(
                        f"`layers`={name!r}: give a number, {ALL}, {LAST}, {MIDDLE}, or the name of a module of "
                        f"{type(self._model).__name__}, as in model.named_modules(), which begins with one of: "
                        f"{children}."
                    )
                modules[name] = known[path]
        return modules

    def _resolved(self, states: Sequence[Tensor] | None) -> list[int | str]:
        """Numbers from 0, and names of modules."""
        if not states:
            raise ValueError(f"{type(self._model).__name__} returns no hidden states: give another model.")
        count = len(states)
        numbers = {ALL: list(range(count)), LAST: [count - 1], MIDDLE: [count // 2]}
        wrong = [layer for layer in self._asked if isinstance(layer, int) and not -count <= layer < count]
        if wrong or not self._asked:
            raise ValueError(
                f"`layers`={self._asked}: the model has {count} hidden states; give numbers from {-count} to "
                f"{count - 1} (0: the embedding, -1: the last layer)."
            )
        resolved: list[int | str] = []
        for layer in self._asked:
            if isinstance(layer, int):
                resolved.append(layer % count)
            else:
                resolved += numbers.get(layer, [layer])
        return resolved

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Where the model runs: the outputs of the modules are kept."""
        handles = [module.register_forward_hook(self._keeper(name)) for name, module in self._modules.items()]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _keeper(self, name: str) -> Any:
        def keep(module: Any, inputs: Any, output: Any) -> None:
            self._outputs[name] = output

        return keep

    def states(self, batch: Batch) -> list[Tensor]:
        """The hidden states of each layer, `(B, L, D)`, after the model has read a batch within `recording`."""
        like = batch.outputs.hidden_states[0]
        return [
            self._output(layer, like) if isinstance(layer, str) else batch.outputs.hidden_states[layer]
            for layer in self._chosen
        ]

    def _output(self, name: str, like: Tensor) -> Tensor:
        if name not in self._outputs:
            raise ValueError(f"`layers`={name!r}: the model does not call this module; give another module.")
        output = self._outputs[name]
        # Blocks return states or attention beside the hidden states, and models a `ModelOutput`.
        state = output if isinstance(output, Tensor) else output[0] if len(output) else None
        if not isinstance(state, Tensor) or not state.is_floating_point() or state.shape[:-1] != like.shape[:-1]:
            shape = tuple(state.shape) if isinstance(state, Tensor) else type(state).__name__
            raise ValueError(
                f"`layers`={name!r}: the output of this module is {shape}, which is not the shape of hidden states "
                f"of texts and tokens {tuple(like.shape[:-1])}; give another module."
            )
        return state
