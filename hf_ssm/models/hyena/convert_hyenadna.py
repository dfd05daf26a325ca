"""Converter of HyenaDNA checkpoints, in both layouts.

The Hub layout (`LongSafari/hyenadna-*-hf`) has the `model_type` "hyenadna" and flat names in its `config.json`. The
original layout (`LongSafari/hyenadna-*`) is a `weights.ckpt` of PyTorch Lightning, whose `config.json` has no
`model_type` and the options of the operator under `layer`.

The tensors differ from those here in four points:

* All sines of a filter share one frequency, which is stored once or once per sine (`implicit_filter.{1, 3, 5}.freq`).
* The Hub layout stores all kernels of the first convolution, then those of the second. The original layout, and the
  models here, store the kernels of one channel side by side. With `hyena_order` 2 there is one convolution.
* The decay rates (`modulation.deltas`) are stored with a sign that has no effect.
* Tensors of the filter have leading or trailing dimensions of size 1.

Source: Nguyen et al. 2023 (HyenaDNA); Poli et al. 2023 (Hyena).
"""

import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers.utils import logging

from hf_ssm.models.base.converter import CheckpointConverter, are_equal, find_file, load_state_dict, rename
from hf_ssm.models.hyena.configuration_hyena import HyenaConfig
from hf_ssm.models.hyena.modeling_hyena import HyenaForCausalLM, HyenaForSequenceClassification, HyenaModel
from hf_ssm.tokenization import build_dna_tokenizer

__all__ = ["CONVERTERS", "HyenaDNAConverter"]

logger = logging.get_logger(__name__)

# Names of tensors as regular expressions, and the names here. Linear maps and sines alternate in `implicit_filter`.
_NAMES: dict[str, str | Callable[[re.Match[str]], str]] = {
    r"^(hyena\.|model\.)?(?=backbone\.|lm_head\.|score\.)": "",
    r"^backbone\.": "model.",
    # An additional level of checkpoints that were trained with gradient checkpointing.
    r"\.(mixer|mlp)\.layer\.": r".\1.",
    r"^model\.embeddings\.word_embeddings\.": "model.embed_tokens.",
    r"^model\.ln_f\.": "model.norm.",
    r"^score\.": "classifier.",
    r"\.filter_fn\.bias$": ".long_conv.D",
    r"\.filter_fn\.": ".long_conv.filter.",
    r"\.pos_emb\.z$": ".positions",
    r"\.pos_emb\.t$": ".time",
    r"\.modulation\.deltas$": ".decay_rates",
    r"\.implicit_filter\.\d*[13579]\.freq$": ".frequency",
    r"\.implicit_filter\.(\d*[02468])\.(weight|bias)$": lambda match: f".{match[2]}_{int(match[1]) // 2}",
}

# Fields of the Hub layout, the fields here, and the values that absent fields stand for.
_HUB_FIELDS: dict[str, tuple[str, Any]] = {
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
# Fields about code, or without effect: the projections have biases whatever `use_bias` is, and the dropout of the
# filter is never applied.
_HUB_UNUSED = frozenset(
    {
        *("model_type", "architectures", "auto_map", "use_bias", "hyena_filter_dropout"),
        *("vocab_size", "pad_vocab_size_multiple", "hyena_dropout"),
    }
)

# The same for the original layout, outside and inside `layer`.
_ORIGINAL_FIELDS: dict[str, tuple[str, Any]] = {
    "d_model": ("hidden_size", None),
    "n_layer": ("num_hidden_layers", None),
    "d_inner": ("intermediate_size", None),
    "resid_dropout": ("hidden_dropout", 0.0),
    "embed_dropout": ("embedding_dropout", 0.1),
    "layer_norm_epsilon": ("layer_norm_epsilon", 1e-5),
}
_LAYER_FIELDS: dict[str, tuple[str, Any]] = {
    "l_max": ("max_position_embeddings", None),
    "emb_dim": ("filter_emb_dim", 3),
    "num_inner_mlps": ("num_inner_mlps", 2),
    "order": ("hyena_order", 2),
    "short_filter_order": ("conv_kernel", 3),
    "filter_order": ("filter_order", 64),
    "w": ("filter_activation_frequency", 1),
    "shift": ("filter_window_shift", 0.05),
}
# Options of `layer` that change the operator, with their values for HyenaDNA.
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
# Options of `layer` about speed, training or the initial weights.
_LAYER_UNUSED = frozenset(
    {
        *("channels", "dropout", "fast_decay_pct", "filter_dropout", "fused_bias_fc", "fused_fft_conv", "jit_filter"),
        *("local_order", "lr", "lr_pos_emb", "modulation_lr", "return_state", "slow_decay_pct", "target", "wd"),
    }
)


class HyenaDNAConverter(CheckpointConverter):
    """Converts HyenaDNA; `from_pretrained` of the Hyena models reads the Hub layout."""

    name = "HyenaDNA"
    model_type = "hyenadna"
    heads = {
        "HyenaDNAForCausalLM": HyenaForCausalLM,
        "HyenaDNAForSequenceClassification": HyenaForSequenceClassification,
        "HyenaDNAModel": HyenaModel,
    }
    backbone_class = HyenaModel

    def recognises(self, config: Mapping[str, Any], names: Collection[str]) -> bool:
        return super().recognises(config, names) or _is_original(config)

    def read(self, source: str | Path, config: Mapping[str, Any]) -> dict[str, Tensor]:
        weights = find_file(source, "weights.ckpt") if _is_original(config) else None
        return super().read(source, config) if weights is None else load_state_dict(weights)

    def load_tokenizer(self, source: str | Path, config: Mapping[str, Any]) -> Any | None:
        """Build a tokenizer with the ids of HyenaDNA's, which is Python code beside the checkpoint.

        HyenaDNA's pads on the left, and ends each sequence with [SEP].
        """
        if config.get("vocab_size", 12) != 12:
            return None
        longest = self.convert_config(config)["max_position_embeddings"]
        return build_dna_tokenizer(longest, "left", add_eos=True, keep_ambiguity=True)

    def convert_config(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments of the `HyenaConfig` that computes what HyenaDNA's model computes.

        The vocabulary has the size of the embedding, which HyenaDNA pads. The positional embedding of the filters is
        learned where it is a parameter of HyenaDNA, and the window is that of the checkpoint.

        Args:
            config: Content of a `config.json`, of either layout.

        Raises:
            ValueError: A value that is missing or not a number, or that changes the operator.
        """
        return _from_original(config) if _is_original(config) else _from_hub(config)

    def convert_weights(
        self, state_dict: Mapping[str, Tensor], found: Mapping[str, Any], config: HyenaConfig
    ) -> dict[str, Tensor]:
        # Token counters of Lightning.
        stored = {name: tensor for name, tensor in state_dict.items() if "_torchmetrics." not in name}
        weights = rename(stored, _NAMES)
        if config.tie_word_embeddings:
            _tie(weights)
        if not config.filter_train_frequency:
            # Then the frequency is a constant, which checkpoints need not hold.
            constant = torch.full((1, config.filter_order), float(config.filter_activation_frequency))
            for layer in range(config.num_hidden_layers):
                weights.setdefault(f"model.layers.{layer}.mixer.long_conv.filter.frequency", constant)
        per_kernel = ("D", "decay_rates", f"weight_{config.num_inner_mlps + 1}")
        for name, tensor in weights.items():
            module, _, parameter = name.rpartition(".")
            if ".mixer.long_conv" not in module:
                continue
            if parameter == "positions":
                tensor = tensor.squeeze(0)
            elif parameter in ("time", "decay_rates", "frequency"):
                tensor = tensor.flatten()
            if parameter == "decay_rates":
                tensor = tensor.abs()
            if parameter in per_kernel and not _is_original(found):
                tensor = _channel_by_channel(tensor, config.hyena_order - 1)
            weights[name] = tensor
        return weights


CONVERTERS = (HyenaDNAConverter(),)


def _is_original(config: Mapping[str, Any]) -> bool:
    layer = config.get("layer")
    return "model_type" not in config and "d_model" in config and isinstance(layer, Mapping) and "l_max" in layer


def _channel_by_channel(tensor: Tensor, convolutions: int) -> Tensor:
    """Reorder rows from convolution after convolution to channel after channel."""
    if len(tensor) % convolutions:
        return tensor  # The size is wrong, and is reported later.
    return tensor.unflatten(0, (convolutions, -1)).transpose(0, 1).flatten(0, 1)


def _tie(weights: dict[str, Tensor]) -> None:
    """Remove the head of the language model, which is the embedding."""
    embedding = weights.get("model.embed_tokens.weight")
    head = weights.pop("lm_head.weight", embedding)
    if head is not None and embedding is not None and not are_equal(head, embedding):
        raise ValueError(
            "lm_head.weight differs from the embedding, but the configuration ties them: if the head was trained "
            'separately, set "tie_word_embeddings" to false in config.json'
        )


def _from_hub(config: Mapping[str, Any]) -> dict[str, Any]:
    found = _rename_fields(config, _HUB_FIELDS)
    if found["conv_kernel"] != 3:
        raise ValueError(
            f"`short_filter_order`={found['conv_kernel']!r} cannot be converted, because HyenaDNA's code on the Hub "
            "always pads for 3, and shifts the sequence with other orders"
        )
    if found["layer_norm_epsilon"] != 1e-5:
        raise ValueError(
            f"`layer_norm_epsilon`={found['layer_norm_epsilon']!r} cannot be converted, because HyenaDNA's code on the "
            "Hub uses the value for the last norm only, and 1e-05 for the other norms"
        )
    if found["filter_train_frequency"] not in (True, False):
        raise ValueError(f"`train_freq` must be true or false, got {found['filter_train_frequency']!r}")
    _warn_of_dropout(config.get("hyena_dropout"))
    rest = {name: value for name, value in config.items() if name not in _HUB_FIELDS and name not in _HUB_UNUSED}
    # HyenaDNA's classifier reads the last position.
    return {**rest, **found, **_common_fields(config, 8), "filter_positions": "learned", "pooling": "last"}


def _from_original(config: Mapping[str, Any]) -> dict[str, Any]:
    layer = config["layer"]
    unknown = sorted(layer.keys() - _LAYER_FIELDS.keys() - _LAYER_FIXED.keys() - _LAYER_UNUSED)
    if unknown:
        raise ValueError(f"`layer` has unknown options: {', '.join(map(repr, unknown))}")
    for name, value in _LAYER_FIXED.items():
        if layer.get(name, value) != value:
            raise ValueError(f"`layer` has {name!r}={layer[name]!r}, but HyenaDNA has {value!r}")
    if config.get("attn_layer_idx") or config.get("max_position_embeddings"):
        raise ValueError("HyenaDNA has no attention layers or position embeddings (`attn_layer_idx`)")
    _warn_of_dropout(layer.get("dropout"))
    return {
        **_rename_fields(config, _ORIGINAL_FIELDS),
        **_rename_fields(layer, _LAYER_FIELDS, "layer."),
        **_common_fields(config, 1),
        "filter_positions": "learned" if layer.get("lr_pos_emb", 1e-5) else "stored",
        "tie_word_embeddings": True,
    }


def _warn_of_dropout(probability: Any) -> None:
    if probability:
        logger.warning_once(
            f"HyenaDNA's dropout of {probability!r} between gates and long convolutions is left out: the Hyena models "
            "have no dropout there. Dropout has no effect outside training."
        )


def _rename_fields(config: Mapping[str, Any], fields: Mapping[str, tuple[str, Any]], where: str = "") -> dict[str, Any]:
    found = {}
    for name, (own, default) in fields.items():
        found[own] = config.get(name, default)
        if found[own] is None and own != "intermediate_size":
            raise ValueError(f"the configuration of a HyenaDNA model lacks `{where}{name}`")
        if not isinstance(found[own], (int, float, type(None))):
            raise ValueError(f"`{where}{name}` must be a number, got {found[own]!r}")
    return found


def _common_fields(config: Mapping[str, Any], default_multiple: int) -> dict[str, Any]:
    """Fields that are the same in both layouts, with the size of the padded vocabulary."""
    size, multiple = config.get("vocab_size", 12), config.get("pad_vocab_size_multiple", default_multiple)
    for name, value in (("vocab_size", size), ("pad_vocab_size_multiple", multiple)):
        if type(value) is not int or value < 1:
            raise ValueError(f"`{name}` must be a positive integer, got {value!r}")
    return {
        "vocab_size": size + -size % multiple,
        "filter_type": "implicit",
        "bidirectional": False,
        "residual_in_fp32": True,
        "classifier_bias": False,
    }
