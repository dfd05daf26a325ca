"""Fields and names that all checkpoints of the package mamba_ssm share, around the mixers.

A `config.json` has the fields of `MambaConfig` (`d_model`, `n_layer`, `vocab_size`, ...), the options of the layers
under `ssm_cfg`, and no `model_type`; the tensors have the vocabulary rounded up to `pad_vocab_size_multiple`. A folder
holds a `pytorch_model.bin`, with the embedding under the name of the head, too, if they are tied.
"""

import math
from collections.abc import Collection, Mapping
from typing import Any

from hf_ssm.models.base.converter import Fields, FieldTable, field_value, kept_fields, read_fields

__all__ = ["INITIAL", "NAMES", "convert_options", "convert_outer", "layer_of", "object_of", "step_limit"]

NAMES: dict[str, Any] = {
    r"^(model\.)?(backbone\.)?(?=embeddings?\.|layers\.|norm_f\.)": "model.",
    r"^model\.(?=lm_head\.)": "",
    r"^model\.embeddings?\.weight": "model.embed_tokens.weight",
    r"^model\.norm_f\.": "model.norm.",
    r"^(model\.layers\.\d+)\.norm\.": r"\1.norm1.",
}
"""Names around the mixers, also in transformers, as regular expressions, and the names here."""

INITIAL: FieldTable = {
    "dt_min": ("time_step_min", 0.001),
    "dt_max": ("time_step_max", 0.1),
    "dt_init_floor": ("time_step_floor", 1e-4),
}
"""Options about initial step sizes."""

# Options about speed, devices or the initial weights.
_UNUSED = frozenset(
    {
        *("chunk_size", "use_fast_path", "use_mem_eff_path", "conv_init", "A_init_range", "process_group"),
        *("sequence_parallel", "device", "dtype", "layer_idx"),
    }
)
_OUTER: FieldTable = {
    "d_model": ("hidden_size", 2560),
    "n_layer": ("num_hidden_layers", 64),
    "norm_epsilon": ("layer_norm_epsilon", 1e-5),
    "residual_in_fp32": ("residual_in_fp32", True),
    "tie_embeddings": ("tie_word_embeddings", True),
}


def layer_of(config: Fields) -> str | None:
    """Return the kind of the layers, `"Mamba1"`, `"Mamba2"` or `"Mamba3"`; `None` for other configurations."""
    if config.get("model_type") is not None or not {"d_model", "n_layer"} <= config.keys() or "layer" in config:
        return None
    options = config.get("ssm_cfg", {})
    return options.get("layer", "Mamba1") if isinstance(options, Mapping) else None


def object_of(config: Fields, name: str, where: str = "") -> Fields:
    """Return the object of a field, empty if it is absent or null."""
    value = config.get(name)
    if value is not None and not isinstance(value, Mapping):
        raise ValueError(f"`{where}{name}` must be an object or null, got {value!r}")
    return value or {}


def convert_outer(config: Fields, *, has_mlps: bool = False) -> dict[str, Any]:
    """Return the fields here of everything but the options of layers.

    Raises:
        ValueError: Attention layers; MLPs, unless `has_mlps`; or a value of another type.
    """
    for name, reason in (
        ("attn_layer_idx", "attention layers of mamba_ssm have a convolution, which those here do not have"),
        ("d_intermediate", "Mamba models here have no MLPs"),
    ):
        if config.get(name) and not (has_mlps and name == "d_intermediate"):
            raise ValueError(f"`{name}`={config[name]!r} cannot be converted: {reason}")
    size, multiple = field_value(config, "vocab_size", 50277), field_value(config, "pad_vocab_size_multiple", 8)
    return {
        **read_fields(config, _OUTER),
        "vocab_size": size + -size % multiple,
        "norm_type": "rms" if field_value(config, "rms_norm", True) else "layer",
        **kept_fields(config),
    }


def convert_options(options: Fields, table: FieldTable, read: Collection[str] = ()) -> dict[str, Any]:
    """Return the fields here of an `ssm_cfg`; the caller reads the options `read`."""
    return read_fields(options, table, "ssm_cfg.", unused={*read, *_UNUSED})


def step_limit(limit: Any) -> Any:
    """Return a pair of numbers, where JSON may have stored infinity as an object; `None` is no limit."""
    if limit is None:
        return 0.0, math.inf
    stored = (part.get("__float__") if isinstance(part, Mapping) else part for part in limit)
    return tuple(float(part) if isinstance(part, str) else part for part in stored)
