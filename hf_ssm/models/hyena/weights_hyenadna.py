"""The tensors of a HyenaDNA checkpoint, of both layouts, under the names of ours.

Legend: `V` vocabulary, `D` channels, `M` width of the MLP, `O` order, `C` = (O - 1) D kernels, `K` taps of the short
convolution, `T` longest input, `E` width of the positional embedding, `F` width of the filter's MLP.

Below `backbone`, both layouts hold `embeddings.word_embeddings.weight` `(V, D)`, `ln_f` (weight and bias, `(D,)`), and
in each of `layers.{0, 1, ...}`:

* `norm1`, `norm2`: `(D,)` each;
* `mixer.in_proj` `((O + 1) D, D)`, `mixer.short_filter` `((O + 1) D, 1, K)`, `mixer.out_proj` `(D, D)`, `mlp.fc1`
  `(M, D)`, `mlp.fc2` `(D, M)`: weights of these shapes, and biases;
* `mixer.filter_fn.bias` `(C,)`: the feed-through of the long convolutions;
* `mixer.filter_fn.pos_emb.z` `(1, T, E)` and `.t` `(1, T, 1)`, `mixer.filter_fn.modulation.deltas` `(1, 1, C)`:
  positional embedding, time axis and decay rates;
* `mixer.filter_fn.implicit_filter.{0, 2, 4}` (weights `(F, E)`, then `(F, F)`, and biases), `.{1, 3, 5}.freq` `(1, F)`
  and `.6.weight` `(C, F)`: linear maps and sines in turn.

Three things are not as they are here:

* All sines of a filter share one frequency, which may be saved once or each time.
* The layout of the Hub has kernel after kernel of the first convolution, then those of the second; the original one,
  and ours, has those of one channel side by side. With O = 2 there is one convolution, and no difference.
* The decay rates are stored with a sign that has no effect.

Source: Nguyen et al. 2023 (HyenaDNA).
"""

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from hf_ssm.models.hyena.configuration_hyena import HyenaConfig

_FIRST_SINE = "implicit_filter.1.freq"
# What the original checkpoints hold beside the model: how many tokens it has seen.
_COUNTERS = re.compile(r"(train|val|test)_torchmetrics\..*")
# Where a checkpoint was trained with gradient checkpointing, mixer and MLP lie one level deeper.
_CHECKPOINTED = re.compile(r"\.(mixer|mlp)\.layer\.")
_HEADS = {"lm_head.weight": "lm_head.weight", "score.weight": "classifier.weight"}


class _Stored(NamedTuple):
    """A tensor of a HyenaDNA checkpoint: what it is called here, its shape there, and its shape here."""

    ours: str
    there: tuple[int, ...]
    here: tuple[int, ...]


def _same(ours: str, *shape: int) -> _Stored:
    return _Stored(ours, shape, shape)


def holds_hyenadna(names: Iterable[str]) -> bool:
    """Whether tensors of these names are those of a HyenaDNA checkpoint, of either layout."""
    return any("backbone.layers." in name and ".filter_fn.implicit_filter." in name for name in names)


def own_weights(state: Mapping[str, Tensor], config: HyenaConfig, *, original: bool = False) -> dict[str, Tensor]:
    """The weights of a HyenaDNA checkpoint under the names that they have in a head's model.

    Every tensor of the backbone must be there. What else there is, heads above all, is for the model to use or not: a
    head may be replaced, and its shape is not looked at. One that is tied to the embedding is left out.

    Args:
        state: The tensors of the checkpoint, all of them.
        config: Its configuration, see `from_hyenadna`.
        original: Of the original layout, not that of the Hub.

    Raises:
        ValueError: Tensors that are missing, of another shape or no finite numbers; each is named.
    """
    names = _names(config)
    found = _plain_names(state, original)
    for name in names:
        if name.endswith(_FIRST_SINE):
            _share(found, name, config)
    _check(found, names)
    others = {_HEADS.get(name, name): tensor for name, tensor in found.items() if name not in names}
    if config.tie_word_embeddings:
        _untie(others, found["backbone.embeddings.word_embeddings.weight"])
    weights = {f"model.{stored.ours}": found[name].reshape(stored.here) for name, stored in names.items()}
    for name, tensor in weights.items():
        if name.endswith(".decay_rates"):
            weights[name] = tensor.abs()
    if not original and config.hyena_order > 2:
        for name in _names_of_kernels(config):
            weights[name] = weights[name].unflatten(0, (config.hyena_order - 1, -1)).transpose(0, 1).flatten(0, 1)
    # Not the memory of a file that is mapped: it may be overwritten, and lies as no allocated memory does.
    return {name: tensor.clone() for name, tensor in (others | weights).items()}


def _plain_names(state: Mapping[str, Tensor], original: bool) -> dict[str, Tensor]:
    """Tensors by their names without what the layouts put before and between."""
    found: dict[str, Tensor] = {}
    twice = []
    for name, tensor in state.items():
        if original and _COUNTERS.fullmatch(name):
            continue
        if not isinstance(tensor, Tensor):
            raise ValueError(f"{name} must be a tensor, got {type(tensor).__name__}")
        plain = name
        if original:
            plain = _CHECKPOINTED.sub(r".\1.", name.removeprefix("model.")) if name.startswith("model.") else name
        elif name.startswith("hyena."):
            plain = name.removeprefix("hyena.")
        if plain in found:
            twice.append(plain)
        found[plain] = tensor
    if twice:
        raise ValueError(f"the HyenaDNA checkpoint holds {', '.join(sorted(twice))} twice, under two names")
    return found


def _share(found: dict[str, Tensor], first: str, config: HyenaConfig) -> None:
    """Leave the frequency of a filter under the name of its first sine alone."""
    sines = [first.replace(_FIRST_SINE, f"implicit_filter.{2 * i + 1}.freq") for i in range(config.num_inner_mlps + 1)]
    stored = {name: found.pop(name) for name in sines if name in found}
    for name, tensor in stored.items():
        if not _are_equal(tensor, found.setdefault(first, tensor)):
            raise ValueError(f"{name} differs from the frequency of another sine of its filter, but all share one")
    if not stored and not config.filter_train_frequency:
        # Then it is a constant, and no tensor of the checkpoint.
        found[first] = torch.full((1, config.filter_order), float(config.filter_activation_frequency))


def _are_equal(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype and torch.equal(one, other)


def _names(config: HyenaConfig) -> dict[str, _Stored]:
    """All tensors of the backbone by their names in a checkpoint."""
    size, vocabulary = config.hidden_size, config.vocab_size
    names = {
        "backbone.embeddings.word_embeddings.weight": _same("embed_tokens.weight", vocabulary, size),
        "backbone.ln_f.weight": _same("norm.weight", size),
        "backbone.ln_f.bias": _same("norm.bias", size),
    }
    block = _names_of_block(config)
    for layer in range(config.num_hidden_layers):
        for name, (ours, there, here) in block.items():
            names[f"backbone.layers.{layer}.{name}"] = _Stored(f"layers.{layer}.{ours}", there, here)
    return names


def _names_of_block(config: HyenaConfig) -> dict[str, _Stored]:
    size, inner = config.hidden_size, config.mlp_size or 0
    streams = (config.hyena_order + 1) * size
    linear = {
        "mixer.in_proj": (streams, size),
        "mixer.out_proj": (size, size),
        "mixer.short_filter": (streams, 1, config.conv_kernel),
        "mlp.fc1": (inner, size),
        "mlp.fc2": (size, inner),
        "norm1": (size,),
        "norm2": (size,),
    }
    names = {f"{name}.weight": _same(f"{name}.weight", *shape) for name, shape in linear.items()}
    names |= {f"{name}.bias": _same(f"{name}.bias", shape[0]) for name, shape in linear.items()}
    for name, (ours, there, here) in _names_of_filter(config).items():
        names[f"mixer.filter_fn.{name}"] = _Stored(f"mixer.long_conv.{ours}", there, here)
    return names


def _names_of_filter(config: HyenaConfig) -> dict[str, _Stored]:
    kernels = (config.hyena_order - 1) * config.hidden_size
    longest, width, embedding = config.max_position_embeddings, config.filter_order, config.filter_emb_dim
    names = {
        "bias": _same("D", kernels),
        "pos_emb.z": _Stored("filter.positions", (1, longest, embedding), (longest, embedding)),
        "pos_emb.t": _Stored("filter.time", (1, longest, 1), (longest,)),
        "modulation.deltas": _Stored("filter.decay_rates", (1, 1, kernels), (kernels,)),
        _FIRST_SINE: _Stored("filter.frequency", (1, width), (width,)),
    }
    last = config.num_inner_mlps + 1
    for layer in range(last):
        # Linear maps and sines take turns.
        names[f"implicit_filter.{2 * layer}.weight"] = _same(
            f"filter.weight_{layer}", width, width if layer else embedding
        )
        names[f"implicit_filter.{2 * layer}.bias"] = _same(f"filter.bias_{layer}", width)
    names[f"implicit_filter.{2 * last}.weight"] = _same(f"filter.weight_{last}", kernels, width)
    return names


def _names_of_kernels(config: HyenaConfig) -> list[str]:
    """Ours of the tensors that have a row for each kernel."""
    parts = ("D", "filter.decay_rates", f"filter.weight_{config.num_inner_mlps + 1}")
    return [f"model.layers.{i}.mixer.long_conv.{part}" for i in range(config.num_hidden_layers) for part in parts]


def _check(found: Mapping[str, Tensor], names: Mapping[str, _Stored]) -> None:
    """Raise `ValueError` unless the tensors of the names are there, of these shapes, and finite numbers."""
    wrong = {
        "missing": sorted(names.keys() - found.keys()),
        "of another shape": [
            f"{name} {tuple(found[name].shape)} in place of {stored.there}"
            for name, stored in names.items()
            if name in found and found[name].shape != stored.there
        ],
        "no finite numbers": [name for name in names if name in found and not _is_finite(found[name])],
    }
    if any(wrong.values()):
        wrong["not known"] = sorted(found.keys() - names.keys() - _HEADS.keys())
        raise ValueError(
            "the tensors are not those of a HyenaDNA model of this configuration: "
            + "; ".join(f"{what}: {', '.join(which)}" for what, which in wrong.items() if which)
        )


def _is_finite(tensor: Tensor) -> bool:
    dense = tensor.layout == torch.strided and tensor.is_floating_point() and not tensor.is_meta
    return dense and bool(torch.isfinite(tensor).all())


def _untie(others: dict[str, Tensor], embedding: Tensor) -> None:
    """Take out the head of the language model, which is the embedding."""
    head = others.pop("lm_head.weight", embedding)
    if not _are_equal(head, embedding):
        raise ValueError(
            "lm_head.weight differs from the embedding, but the configuration ties them: if the head was trained by "
            'itself, set "tie_word_embeddings" to false in config.json'
        )


__all__ = ["holds_hyenadna", "own_weights"]
