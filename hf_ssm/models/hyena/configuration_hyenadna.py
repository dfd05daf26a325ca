"""The configurations of HyenaDNA, of both layouts its checkpoints come in, in the words of `HyenaConfig`.

The layout of the Hub (`LongSafari/hyenadna-*-hf`) says `model_type` "hyenadna" and has flat names. The original one
(`LongSafari/hyenadna-*`, with a `weights.ckpt`) has no `model_type`, and keeps the operator's options in `layer`.

Source: Nguyen et al. 2023 (HyenaDNA); Poli et al. 2023 (Hyena).
"""

from collections.abc import Mapping
from typing import Any

from transformers.utils import logging

logger = logging.get_logger(__name__)

HYENADNA_TYPE = "hyenadna"
"""The `model_type` of the layout of the Hub."""

# Names in the layout of the Hub, what they are called here, and what is meant where they are absent.
_HUB_NAMES: dict[str, tuple[str, Any]] = {
    "d_model": ("hidden_size", 256),
    "n_layer": ("num_hidden_layers", 12),
    "d_inner": ("intermediate_size", None),
    "max_seq_len": ("max_position_embeddings", 1024),
    "emb_dim": ("filter_emb_dim", 3),
    "num_inner_mlps": ("num_inner_mlps", 2),
    "hyena_order": ("hyena_order", 2),
    "short_filter_order": ("conv_kernel", 3),
    "filter_order": ("filter_order", 64),
    "activation_freq": ("filter_activation_frequency", 1),
    "train_freq": ("filter_train_frequency", True),
    "embed_dropout": ("embedding_dropout", 0.1),
    "layer_norm_epsilon": ("layer_norm_epsilon", 1e-5),
    "initializer_range": ("initializer_range", 0.02),
    "tie_word_embeddings": ("tie_word_embeddings", True),
}
# What is said there of code, a second time, or of what has no effect: the projections have biases whatever `use_bias`
# is, and the dropout of the filter is never applied.
_HUB_NOT_OURS = frozenset(
    {"model_type", "architectures", "auto_map", "use_bias", "pad_vocab_size_multiple", "hyena_filter_dropout"}
)

# The same for the original layout: of the model, and of its `layer`.
_ORIGINAL_NAMES: dict[str, tuple[str, Any]] = {
    "d_model": ("hidden_size", None),
    "n_layer": ("num_hidden_layers", None),
    "d_inner": ("intermediate_size", None),
    "resid_dropout": ("hidden_dropout", 0.0),
    "embed_dropout": ("embedding_dropout", 0.1),
    "layer_norm_epsilon": ("layer_norm_epsilon", 1e-5),
}
_LAYER_NAMES: dict[str, tuple[str, Any]] = {
    "l_max": ("max_position_embeddings", None),
    "emb_dim": ("filter_emb_dim", 3),
    "num_inner_mlps": ("num_inner_mlps", 2),
    "order": ("hyena_order", 2),
    "short_filter_order": ("conv_kernel", 3),
    "filter_order": ("filter_order", 64),
    "w": ("filter_activation_frequency", 1),
    "shift": ("filter_window_shift", 0.05),
}
# Options of `layer` that make another operator, with the values that make this one.
_LAYER_FIXED: dict[str, Any] = {
    "_name_": "hyena",
    "activation": "id",
    "bias": True,
    "bidirectional": False,
    "filter_cls": "hyena-filter",
    "inner_factor": 1,
    "linear_mixer": False,
    "modulate": True,
    "normalized": False,
    "num_blocks": 1,
    "num_heads": 1,
    "outer_mixing": False,
    "post_order_ffn": False,
}
# Options of `layer` that change no number: of speed, of training, or of how the stored tensors were begun.
_LAYER_NOT_OURS = frozenset(
    {
        *("channels", "dropout", "fast_decay_pct", "filter_dropout", "fused_bias_fc", "fused_fft_conv", "jit_filter"),
        *("local_order", "lr", "lr_pos_emb", "modulation_lr", "return_state", "slow_decay_pct", "target", "wd"),
    }
)


def is_hub_layout(config: Mapping[str, Any]) -> bool:
    """Whether it is a configuration of the layout of the Hub."""
    return config.get("model_type") == HYENADNA_TYPE


def is_original_layout(config: Mapping[str, Any]) -> bool:
    """Whether it is a configuration of the original layout."""
    layer = config.get("layer")
    return "model_type" not in config and "d_model" in config and isinstance(layer, Mapping) and "l_max" in layer


def from_hyenadna(config: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of the `HyenaConfig` that computes what HyenaDNA's model with this configuration does.

    The vocabulary is as large as the embedding, which HyenaDNA pads. The positional embedding of the filters is learned
    where it is a parameter there, and the window is that of the checkpoint.

    Args:
        config: The content of a `config.json`, of either layout.

    Raises:
        ValueError: A value that is missing, is no number, or asks for another operator.
    """
    return _from_original(config) if is_original_layout(config) else _from_hub(config)


def _from_hub(config: Mapping[str, Any]) -> dict[str, Any]:
    found = _renamed(config, _HUB_NAMES, "")
    if found["conv_kernel"] != 3:
        raise ValueError(
            f"`short_filter_order`={found['conv_kernel']!r}: HyenaDNA's code on the Hub pads for 3, and would shift "
            "the sequence with any other; only 3 can be read."
        )
    if found["layer_norm_epsilon"] != 1e-5:
        raise ValueError(
            f"`layer_norm_epsilon`={found['layer_norm_epsilon']!r}: HyenaDNA's code on the Hub uses it for the last "
            "norm alone, and 1e-05 for the others; only 1e-05 can be read."
        )
    if found["filter_train_frequency"] not in (True, False):
        raise ValueError(f"`train_freq` must be true or false, got {found['filter_train_frequency']!r}")
    rest = {
        name: value
        for name, value in config.items()
        if name not in _HUB_NAMES and name not in _HUB_NOT_OURS and name not in ("vocab_size", "hyena_dropout")
    }
    _warn_of_dropout(config.get("hyena_dropout"))
    # Its classifier reads the last position.
    return {**rest, **found, **_always(config), "filter_positions": "learned", "pooling": "last"}


def _from_original(config: Mapping[str, Any]) -> dict[str, Any]:
    layer = config["layer"]
    foreign = sorted(layer.keys() - _LAYER_NAMES.keys() - _LAYER_FIXED.keys() - _LAYER_NOT_OURS)
    if foreign:
        raise ValueError(f"`layer` has {', '.join(map(repr, foreign))}, whose meaning is not known")
    for name, value in _LAYER_FIXED.items():
        if layer.get(name, value) != value:
            raise ValueError(
                f"`layer` has {name!r}={layer[name]!r}: only the operator of HyenaDNA, {value!r}, can be read"
            )
    if config.get("attn_layer_idx") or config.get("max_position_embeddings"):
        raise ValueError("a model with attention layers or position embeddings (`attn_layer_idx`): it is no HyenaDNA")
    _warn_of_dropout(layer.get("dropout"))
    rate = layer.get("lr_pos_emb", 1e-5)
    return {
        **_renamed(config, _ORIGINAL_NAMES, ""),
        **_renamed(layer, _LAYER_NAMES, "layer."),
        **_always(config),
        "filter_positions": "learned" if rate else "stored",
        "tie_word_embeddings": True,
    }


def _warn_of_dropout(share: Any) -> None:
    if share:
        logger.warning_once(
            f"HyenaDNA's dropout of {share!r} between its gates and its long convolutions is left out: it has no "
            "counterpart here, and no effect outside training."
        )


def _renamed(config: Mapping[str, Any], names: Mapping[str, tuple[str, Any]], where: str) -> dict[str, Any]:
    found = {}
    for name, (ours, default) in names.items():
        found[ours] = config.get(name, default)
        if found[ours] is None and ours != "intermediate_size":
            raise ValueError(f"the configuration of a HyenaDNA model has no `{where}{name}`")
        if not isinstance(found[ours], (int, float, type(None))):
            raise ValueError(f"`{where}{name}` must be a number, got {found[ours]!r}")
    return found


def _always(config: Mapping[str, Any]) -> dict[str, Any]:
    """What holds for all HyenaDNA models, and the size of the vocabulary with its padding."""
    size, multiple = (
        config.get(name, default) for name, default in (("vocab_size", 12), ("pad_vocab_size_multiple", 8))
    )
    # An original configuration without a multiple pads to none.
    multiple = multiple if is_hub_layout(config) else config.get("pad_vocab_size_multiple", 1)
    for name, value in (("vocab_size", size), ("pad_vocab_size_multiple", multiple)):
        if type(value) is not int or value < 1:
            raise ValueError(f"`{name}` must be a positive number, got {value!r}")
    return {
        "vocab_size": size + -size % multiple,
        "filter_type": "implicit",
        "bidirectional": False,
        "residual_in_fp32": True,
        "classifier_bias": False,
    }


__all__ = ["HYENADNA_TYPE", "from_hyenadna", "is_hub_layout", "is_original_layout"]
