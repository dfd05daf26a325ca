"""Converter of Caduceus checkpoints (`kuleshov-group/caduceus-*`, PlantCaduceus) to two-sided selective models.

Legend: `V` padded vocabulary, `D` hidden size of one strand, `E` inner size, `N` states, `R` rank of the step
projection, `K` taps of the short convolution.

Caduceus-Ph is a two-sided Mamba model; Caduceus-PS (`rcps`) reads both strands with the same weights. Differences:

* With `fused_add_norm`, which every published PS model has, each block exchanges the strands (`rc_swap`).
* Both directions of a block have in- and out-projections of their own names; `bidirectional_weight_tie` makes them the
  same tensors, which files may store once or twice. Their sum counts the bias of the out-projection twice.
* `complement_map` is indexed by its keys: files that were saved again have them in lexicographic order.
* Caduceus reads [PAD] as an ordinary token, as the models here do without an `attention_mask`.

Source: Schiff et al. 2024 (Caduceus); Zhai et al. 2025 (PlantCaduceus).
"""

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast
from transformers.utils import logging

from hf_ssm.models.base.converter import CheckpointConverter, are_equal, find_file, rename
from hf_ssm.models.selective.configuration_selective import SelectiveSSMConfig
from hf_ssm.models.selective.modeling_selective import (
    SelectiveSSMForMaskedLM,
    SelectiveSSMForSequenceClassification,
    SelectiveSSMModel,
)
from hf_ssm.models.views.strands import complement_list
from hf_ssm.tokenization.dna import build_dna_tokenizer, build_plant_dna_tokenizer

__all__ = ["CONVERTERS", "CaduceusConverter"]

logger = logging.get_logger(__name__)

# Fields, the fields here, types and the values that absent fields stand for.
_FIELDS: dict[str, tuple[str, type, Any]] = {
    "d_model": ("hidden_size", int, 2560),
    "n_layer": ("num_hidden_layers", int, 64),
    "norm_epsilon": ("layer_norm_epsilon", float, 1e-5),
    "residual_in_fp32": ("residual_in_fp32", bool, True),
    "bidirectional": ("bidirectional", bool, True),
    "bidirectional_weight_tie": ("bidirectional_weight_tie", bool, True),
    "rcps": ("rc_equivariant", bool, False),
}
# The same for `ssm_cfg`.
_SSM_FIELDS: dict[str, tuple[str, type, Any]] = {
    "d_state": ("state_size", int, 16),
    "d_conv": ("conv_kernel", int, 4),
    "conv_bias": ("use_conv_bias", bool, True),
    "bias": ("use_bias", bool, False),
    "dt_min": ("time_step_min", float, 0.001),
    "dt_max": ("time_step_max", float, 0.1),
    "dt_init": ("time_step_init_scheme", str, "random"),
    "dt_scale": ("time_step_scale", float, 1.0),
    "dt_init_floor": ("time_step_floor", float, 1e-4),
}
# Further fields that are read below, or choose an implementation.
_READ = frozenset(
    {
        *("model_type", "architectures", "auto_map", "initializer_cfg", "ssm_cfg", "rms_norm", "fused_add_norm"),
        *("vocab_size", "pad_vocab_size_multiple", "complement_map", "tie_word_embeddings", "bidirectional_strategy"),
    }
)

# Shapes of the tensors of `mamba_fwd` and `mamba_rev`.
_MAMBA: dict[str, tuple[str | int, ...]] = {
    "in_proj.weight": ("2E", "D"),
    "in_proj.bias": ("2E",),
    "conv1d.weight": ("E", 1, "K"),
    "conv1d.bias": ("E",),
    "x_proj.weight": ("R+2N", "E"),
    "dt_proj.weight": ("E", "R"),
    "dt_proj.bias": ("E",),
    "A_log": ("E", "N"),
    "D": ("E",),
    "out_proj.weight": ("D", "E"),
    "out_proj.bias": ("D",),
}
_SHARED = ("in_proj.weight", "in_proj.bias", "out_proj.weight", "out_proj.bias")
# The fields that sizes follow from.
_SIZES = {
    "V": "vocab_size",
    "D": "d_model",
    "E": "ssm_cfg.expand",
    "2E": "ssm_cfg.expand",
    "K": "ssm_cfg.d_conv",
    "N": "ssm_cfg.d_state",
    "R": "ssm_cfg.dt_rank",
    "R+2N": "ssm_cfg.dt_rank or ssm_cfg.d_state",
}
# The fields that names of tensors depend on.
_NAMED_BY = {
    r"\.mamba_rev\.(in|out)_proj\.weight$": "bidirectional_weight_tie",
    r"\.mamba_rev\.": "bidirectional",
    r"\.(in|out)_proj\.bias$": "ssm_cfg.bias",
    r"\.conv1d\.bias$": "ssm_cfg.conv_bias",
    r"norm(_f)?\.(submodule\.)?bias$": "rms_norm",
}

_NAMES = {
    r"^backbone\.embeddings\.word_embeddings\.(embedding\.)?": "model.embed_tokens.",
    r"^backbone\.norm_f\.(submodule\.)?": "model.norm.",
    r"^backbone\.layers\.(\d+)\.norm\.(submodule\.)?": r"model.layers.\1.norm1.",
    r"^backbone\.layers\.(\d+)\.mixer\.(submodule\.)?mamba_fwd\.": r"model.layers.\1.mixer.",
    r"^backbone\.layers\.(\d+)\.mixer\.(submodule\.)?mamba_rev\.": r"model.layers.\1.mixer.reverse_",
    r"\.mixer\.(reverse_)?(A_log$|D$|x_proj\.|dt_proj\.weight$)": r".mixer.\1scan.\2",
    r"\.mixer\.(reverse_)?dt_proj\.bias$": r".mixer.\1scan.dt_bias",
    r"^lm_head\.lm_head\.": "lm_head.",
    r"^score\.": "classifier.",
}
_LAYER = re.compile(r"^backbone\.layers\.(\d+)\.")

# Pairs of complements, and sizes of the padded vocabulary, of the two known tokenizers.
_CADUCEUS = {7: 10, 8: 9, 9: 8, 10: 7}, 16
_PLANT = {3: 6, 4: 5, 5: 4, 6: 3}, 8


class CaduceusConverter(CheckpointConverter):
    """Converts Caduceus; `from_pretrained` of the selective models reads its folders."""

    name = "Caduceus"
    model_type = "caduceus"
    options = ("pooling",)
    heads = {
        "CaduceusForMaskedLM": SelectiveSSMForMaskedLM,
        "CaduceusForSequenceClassification": SelectiveSSMForSequenceClassification,
        "Caduceus": SelectiveSSMModel,
    }
    backbone_class = SelectiveSSMModel

    def convert(
        self, state_dict: Mapping[str, Tensor], config: Mapping[str, Any], *, pooling: str = "mean", **unused: Any
    ) -> PreTrainedModel:
        """As in the base class; the head is that of the tensors (published files say `Caduceus` for language models).

        Args:
            state_dict: The tensors.
            config: Content of the `config.json`.
            pooling: `"mean"` or `"max"`, the `pooling_strategy` of a classifier, which its files do not record.

        Raises:
            ValueError: Also if a tensor contradicts the configuration; the message names the tensor and the field.
        """
        if pooling not in ("mean", "max"):
            raise ValueError(f"`pooling` of a Caduceus classifier must be 'mean' or 'max', got {pooling!r}")
        architectures = config.get("architectures") or [next(iter(self.heads))]
        if any(name.startswith("score.") for name in state_dict):
            architectures = ["CaduceusForSequenceClassification"]
        elif any(name.startswith("lm_head.") for name in state_dict) or (
            architectures == ["Caduceus"] and any(name.startswith("caduceus.") for name in state_dict)
        ):
            architectures = ["CaduceusForMaskedLM"]
        model: Any = super().convert(state_dict, {**config, "architectures": architectures})
        model.config.pooling = pooling
        weights = self.convert_weights(state_dict, config, model.config)
        stored, count = (sum(t.numel() for t in part) for part in (weights.values(), model.parameters()))
        if stored != count:
            raise ValueError(f"the tensors hold {stored:,} parameters, but the configuration asks for {count:,}")
        logger.info(f"Caduceus checkpoint with {count:,} parameters")
        return model

    def convert_config(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments of the `SelectiveSSMConfig` that computes what Caduceus computes.

        Raises:
            ValueError: A value of another type; an unknown option of `ssm_cfg`; `rcps` without `complement_map`.
        """
        own = {new: _value(config, name, kind, default) for name, (new, kind, default) in _FIELDS.items()}
        own |= _convert_ssm(config, own["hidden_size"])
        size, multiple = _value(config, "vocab_size", int, 50277), _value(config, "pad_vocab_size_multiple", int, 8)
        own["vocab_size"] = size + -size % multiple
        is_fused, is_rms = (_value(config, name, bool, True) for name in ("fused_add_norm", "rms_norm"))
        own["rc_swap"] = own["rc_equivariant"] and is_fused
        own["norm_type"] = "rms" if is_rms else "layer"
        strategy = config.get("bidirectional_strategy") or "add"
        if strategy not in ("add", "ew_multiply"):
            raise ValueError(f"`bidirectional_strategy` must be 'add' or 'ew_multiply', got {strategy!r}")
        # Without a second direction, these two have no effect.
        own["bidirectional_strategy"] = strategy if own["bidirectional"] else "add"
        own["bidirectional_weight_tie"] = own["bidirectional_weight_tie"] or not own["bidirectional"]
        if config.get("complement_map") is not None:
            own["complement_map"] = complement_list(config["complement_map"], own["vocab_size"])
        elif own["rc_equivariant"]:
            raise ValueError("the configuration has `rcps`=true, but no `complement_map`: add it to config.json")
        own["tie_word_embeddings"] = own["rc_equivariant"] or _value(config, "tie_word_embeddings", bool, True)
        initial = config.get("initializer_cfg") or {}
        own["initializer_range"] = _value(initial, "initializer_range", float, 0.02, "initializer_cfg.")
        rest = {name: value for name, value in config.items() if name not in {*_FIELDS, *_READ}}
        return {**rest, **own, "pooling": "mean", "classifier_bias": False}

    def convert_weights(
        self, state_dict: Mapping[str, Tensor], found: Mapping[str, Any], config: SelectiveSSMConfig
    ) -> dict[str, Tensor]:
        stored = {name.removeprefix("caduceus."): tensor for name, tensor in state_dict.items()}
        expected = _expected(found, config)
        _drop_shared(stored, found, config)
        _check_names(stored, expected, found, config)
        _check_shapes(stored, expected, config)
        _check_complements(stored, config)
        weights = rename(stored, _NAMES)
        if config.use_bias and config.bidirectional and config.bidirectional_weight_tie:
            for name, tensor in weights.items() if config.bidirectional_strategy == "add" else ():
                if name.endswith(".mixer.out_proj.bias"):
                    weights[name] = 2 * tensor
        return weights

    def load_tokenizer(self, source: str | Path, config: Mapping[str, Any]) -> Any | None:
        """Build a tokenizer with the ids of Caduceus' or PlantCaduceus', which is Python code beside the checkpoint.

        Caduceus' pads on the left and ends each sequence with [SEP]; that of PlantCaduceus pads on the right. A
        `tokenizer.json` is read as it is. `None` for another vocabulary.
        """
        if find_file(source, "tokenizer.json"):
            return PreTrainedTokenizerFast.from_pretrained(source)
        path = find_file(source, "tokenizer_config.json")
        found = {} if path is None else json.loads(path.read_bytes())
        longest = found.get("model_max_length")
        limit = longest if type(longest) is int and 0 < longest < 10**12 else None
        own = self.convert_config(config)
        table = own.get("complement_map")
        pairs = None if table is None else {token: other for token, other in enumerate(table) if token != other}
        for (known, size), build, side in (
            (_CADUCEUS, _build_caduceus, "left"),
            (_PLANT, build_plant_dna_tokenizer, "right"),
        ):
            if pairs == known if pairs is not None else own["vocab_size"] == size:
                return build(model_max_length=limit, padding_side=found.get("padding_side", side))
        return None


CONVERTERS = (CaduceusConverter(),)


def _build_caduceus(model_max_length: int | None, padding_side: str) -> PreTrainedTokenizerFast:
    return build_dna_tokenizer(model_max_length, padding_side, add_eos=True, keep_whitespace=True, keep_ambiguity=True)


def _value(config: Mapping[str, Any], name: str, kind: type, default: Any, where: str = "") -> Any:
    """The value of a field, `default` if it is absent or null."""
    value = config.get(name)
    if value is None:
        return default
    fits = type(value) is kind or (kind is float and type(value) is int)
    if not fits or (kind is int and value < 1):
        wanted = {int: "a positive integer", float: "a number", bool: "true or false", str: "a text"}[kind]
        raise ValueError(f"`{where}{name}` must be {wanted}, got {value!r}")
    return value


def _convert_ssm(config: Mapping[str, Any], hidden_size: int) -> dict[str, Any]:
    options = config.get("ssm_cfg") or {}
    if not isinstance(options, Mapping):
        raise ValueError(f"`ssm_cfg` must be an object or null, got {options!r}")
    unknown = sorted(options.keys() - {*_SSM_FIELDS, "expand", "dt_rank", "use_fast_path"})
    if unknown:
        raise ValueError(f"`ssm_cfg` has options that Mamba does not have: {', '.join(map(repr, unknown))}")
    own = {new: _value(options, name, kind, default, "ssm_cfg.") for name, (new, kind, default) in _SSM_FIELDS.items()}
    own["intermediate_size"] = _value(options, "expand", int, 2, "ssm_cfg.") * hidden_size
    rank = options.get("dt_rank", "auto")
    own["time_step_rank"] = rank if rank == "auto" else _value(options, "dt_rank", int, "auto", "ssm_cfg.")
    return own


def _expected(found: Mapping[str, Any], config: SelectiveSSMConfig) -> dict[str, tuple[str | int, ...]]:
    """Names and shapes of the tensors of a backbone, without those that are shared, for the layer `{}`."""
    inner = ".submodule" if config.rc_equivariant else ""
    norm = inner if not config.rc_swap else ""
    table = "embedding." if config.rc_equivariant else ""
    kinds = ("weight",) if config.norm_type == "rms" else ("weight", "bias")
    shapes: dict[str, tuple[str | int, ...]] = {f"backbone.embeddings.word_embeddings.{table}weight": ("V", "D")}
    shapes |= {f"backbone.{place}{norm}.{kind}": ("D",) for place in ("norm_f", "layers.{}.norm") for kind in kinds}
    for direction in ("mamba_fwd", "mamba_rev") if config.bidirectional else ("mamba_fwd",):
        for name, shape in _MAMBA.items():
            is_shared = direction == "mamba_rev" and config.bidirectional_weight_tie and name in _SHARED
            has_bias = config.use_conv_bias if name == "conv1d.bias" else config.use_bias
            is_absent = name in ("conv1d.bias", "in_proj.bias", "out_proj.bias") and not has_bias
            if not is_shared and not is_absent:
                shapes[f"backbone.layers.{{}}.mixer{inner}.{direction}.{name}"] = shape
    return shapes


def _drop_shared(stored: dict[str, Tensor], found: Mapping[str, Any], config: SelectiveSSMConfig) -> None:
    """Remove second names of shared tensors, which must be equal to the first."""
    pairs: dict[str, tuple[str, str]] = {}
    if config.bidirectional and config.bidirectional_weight_tie:
        for name in stored:
            if ".mamba_rev." in name and name.endswith(_SHARED):
                pairs[name] = name.replace(".mamba_rev.", ".mamba_fwd."), "bidirectional_weight_tie"
    if config.tie_word_embeddings:
        field = "rcps" if config.rc_equivariant else "tie_word_embeddings"
        table = "embedding." if config.rc_equivariant else ""
        for name in ("lm_head.weight", "lm_head.lm_head.weight"):
            pairs[name] = f"backbone.embeddings.word_embeddings.{table}weight", field
    for name, (first, field) in pairs.items():
        tensor, other = stored.pop(name, None), stored.get(first)
        if tensor is not None and other is not None and not are_equal(tensor, other):
            raise ValueError(
                f"{name} differs from {first}, but `{field}`={json.dumps(found.get(field, True))} of the configuration "
                "shares them: correct config.json"
            )


def _check_complements(stored: dict[str, Tensor], config: SelectiveSSMConfig) -> None:
    """Remove the stored tables of complements, which must be that of the configuration."""
    for name in [name for name in stored if name.endswith("complement_map")]:
        table = stored.pop(name)
        if config.rc_equivariant and table.tolist() != config.complement_map:
            raise ValueError(
                f"{name} is {table.tolist()}, but `complement_map` of the configuration gives {config.complement_map}"
            )


def _check_names(
    stored: Mapping[str, Tensor],
    expected: Mapping[str, Any],
    found: Mapping[str, Any],
    config: SelectiveSSMConfig,
) -> None:
    """Raise `ValueError` for a tensor whose presence or absence contradicts a field."""
    layers = {int(match[1]) for name in stored if (match := _LAYER.match(name))}
    wanted = config.num_hidden_layers
    # Sizes first: the set of all layers might not fit into memory.
    if len(layers) != wanted or layers != set(range(wanted)):
        last = f"backbone.layers.{max(layers, default=0)}."
        name = next((name for name in stored if name.startswith(last)), last)
        raise ValueError(
            f"the tensors have {len(layers)} layers (the last one is that of {name}), but the configuration has "
            f"`n_layer`={wanted}"
        )
    generic = {_LAYER.sub("backbone.layers.{}.", name): name for name in stored}
    for name in expected:
        if name not in generic:
            field = _field_of_missing(name, generic)
            if field is not None:
                raise ValueError(_contradiction(f"{name.format(0)} is missing", field, found))
    for name, example in generic.items():
        if name.startswith("backbone.") and name not in expected:
            field = next((field for pattern, field in _NAMED_BY.items() if re.search(pattern, name)), None)
            if field is not None and not (field == "bidirectional" and config.bidirectional):
                raise ValueError(_contradiction(f"the file has {example}", field, found))


def _field_of_missing(name: str, there: Iterable[str]) -> str | None:
    """The field that a missing tensor contradicts; `None` if the file is merely incomplete."""
    there = set(there)
    is_norm = re.search(r"norm(_f)?\.(submodule\.)?weight$", name) is not None
    # The name of the same tensor in a model of the other kind.
    part = "embedding" if "word_embeddings" in name else "submodule"
    other = name.replace(f".{part}.", ".", 1) if f".{part}." in name else None
    if other is None:
        head, _, tail = name.rpartition("." if is_norm or part == "embedding" else ".mamba_")
        other = f"{head}.{part}.{tail}" if is_norm or part == "embedding" else f"{head}.{part}.mamba_{tail}"
    if other in there:
        return "fused_add_norm" if is_norm else "rcps"
    field = next((field for pattern, field in _NAMED_BY.items() if re.search(pattern, name)), None)
    is_incomplete = field == "bidirectional" and any(".mamba_rev." in known for known in there)
    return None if is_incomplete else field


def _contradiction(what: str, field: str, found: Mapping[str, Any]) -> str:
    outer, _, inner = field.rpartition(".")
    place = (found.get(outer) or {}) if outer else found
    value = json.dumps(place[inner]) if inner in place else "(absent)"
    return f"{what}, which contradicts `{field}`={value} of the configuration"


def _check_shapes(stored: Mapping[str, Tensor], expected: Mapping[str, Any], config: SelectiveSSMConfig) -> None:
    """Raise `ValueError` for a tensor of another shape than the configuration asks for."""
    E, N, R = config.intermediate_size, config.state_size, config.time_step_rank
    sizes = {"V": config.vocab_size, "D": config.hidden_size, "E": E, "2E": 2 * E, "N": N, "R": R, "R+2N": R + 2 * N}
    sizes["K"] = config.conv_kernel
    for name in [name for layer in range(config.num_hidden_layers) for name in (n.format(layer) for n in expected)]:
        letters = expected[_LAYER.sub("backbone.layers.{}.", name)]
        tensor = stored.get(name)
        wanted = tuple(sizes.get(letter, letter) for letter in letters)
        if tensor is None or tuple(tensor.shape) == wanted:
            continue
        shape = tuple(tensor.shape)
        pairs = zip(letters, wanted, shape, strict=True) if len(shape) == len(wanted) else ()
        fields = [_SIZES[letter] for letter, size, actual in pairs if size != actual and letter in _SIZES]
        which = " and ".join(f"`{field}`" for field in dict.fromkeys(fields)) or "the model"
        raise ValueError(f"{name} has the shape {shape}, but {which} of the configuration asks for {wanted}")
