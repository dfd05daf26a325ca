"""Base class of the converters of Caduceus checkpoints, whose blocks hold two directions of Mamba or of Mamba-2.

Legend: `V` padded vocabulary, `D` hidden size of one strand; a subclass adds the letters of its mixer.

Caduceus-Ph is a two-sided model; Caduceus-PS (`rcps`) reads both strands with the same weights. Differences:

* With `fused_add_norm`, which every published PS model has, each block exchanges the strands (`rc_swap`).
* Both directions of a block have in- and out-projections of their own names; `bidirectional_weight_tie` makes them the
  same tensors, which files may store once or twice. Their sum counts the bias of the out-projection twice.
* `complement_map` is indexed by its keys: files that were saved again have them in lexicographic order.
* Caduceus reads [PAD] as an ordinary token, as the models here do without an `attention_mask`.

Two layouts of the configuration are known: that of Caduceus, with `ssm_cfg`, `rms_norm`, `fused_add_norm` and
`norm_epsilon` at the top, and a nested one, with `layer_cfg.mamba_cfg` and `norm_cfg`, whose `version` says whether the
directions are those of Mamba ("v1") or of Mamba-2 ("v2", the default).

Source: Schiff et al. 2024 (Caduceus); Zhai et al. 2025 (PlantCaduceus).
"""

import json
import re
from abc import abstractmethod
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast
from transformers.utils import logging

from hf_ssm.models.base.converter import CheckpointConverter, are_equal, find_file, rename
from hf_ssm.models.views.strands import complement_list
from hf_ssm.tokenization.dna import build_dna_tokenizer, build_plant_dna_tokenizer

__all__ = ["CaduceusLayout", "field_value"]

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
# Further fields that are read below, or choose an implementation.
_READ = frozenset(
    {
        *("model_type", "architectures", "auto_map", "initializer_cfg", "ssm_cfg", "rms_norm", "fused_add_norm"),
        *("vocab_size", "pad_vocab_size_multiple", "complement_map", "tie_word_embeddings", "bidirectional_strategy"),
        "gradient_checkpointing_stride",
    }
)
# Fields of `norm_cfg` in the nested layout, which are at the top in the other.
_NORM_FIELDS = ("rms_norm", "fused_add_norm", "norm_epsilon")

_SHARED = ("in_proj.weight", "in_proj.bias", "out_proj.weight", "out_proj.bias")
# The fields that names of tensors depend on.
_NAMED_BY = {
    r"\.mamba_rev\.(in|out)_proj\.weight$": "bidirectional_weight_tie",
    r"\.mamba_rev\.": "bidirectional",
    r"\.(in|out)_proj\.bias$": "ssm_cfg.bias",
    r"\.conv1d\.bias$": "ssm_cfg.conv_bias",
    r"^backbone\.(layers\.[^.]+\.)?norm(_f)?\.(submodule\.)?bias$": "rms_norm",
}
_NORM = re.compile(r"^backbone\.(layers\.[^.]+\.)?norm(_f)?\.(submodule\.)?weight$")

_NAMES = {
    r"^backbone\.embeddings\.word_embeddings\.(embedding\.)?": "model.embed_tokens.",
    r"^backbone\.norm_f\.(submodule\.)?": "model.norm.",
    r"^backbone\.layers\.(\d+)\.norm\.(submodule\.)?": r"model.layers.\1.norm1.",
    r"^backbone\.layers\.(\d+)\.mixer\.(submodule\.)?mamba_fwd\.": r"model.layers.\1.mixer.",
    r"^backbone\.layers\.(\d+)\.mixer\.(submodule\.)?mamba_rev\.": r"model.layers.\1.mixer.reverse_",
    r"^lm_head\.lm_head\.": "lm_head.",
    r"^score\.": "classifier.",
}
_LAYER = re.compile(r"^backbone\.layers\.(\d+)\.")

# Pairs of complements, and sizes of the padded vocabulary, of the two known tokenizers.
_CADUCEUS = {7: 10, 8: 9, 9: 8, 10: 7}, 16
_PLANT = {3: 6, 4: 5, 5: 4, 6: 3}, 8


class CaduceusLayout(CheckpointConverter):
    """Converts checkpoints whose `model_type` is "caduceus" and whose directions are of one kind.

    A subclass sets the attributes, and defines `convert_ssm` and `mixer_sizes`.

    Attributes:
        version: The kind of the directions: `"v1"`, Mamba, or `"v2"`, Mamba-2.
        mixer_tensors: Shapes of the tensors of `mamba_fwd` and `mamba_rev`, with a letter for each size.
        mixer_names: Regular expressions of names with `.mixer.` and `.mixer.reverse_`, and their replacements.
        size_fields: The fields that the sizes of these letters follow from.
        named_by: The fields that further names of tensors depend on, by regular expressions of the names.
    """

    model_type = "caduceus"
    options = ("pooling",)
    version: ClassVar[str]
    mixer_tensors: ClassVar[Mapping[str, tuple[str | int, ...]]]
    mixer_names: ClassVar[Mapping[str, str]]
    size_fields: ClassVar[Mapping[str, str]]
    named_by: ClassVar[Mapping[str, str]] = {}

    @abstractmethod
    def convert_ssm(self, options: Mapping[str, Any], hidden_size: int) -> dict[str, Any]:
        """Arguments of the family's configuration for `ssm_cfg`.

        Args:
            options: The `ssm_cfg`.
            hidden_size: D.

        Raises:
            ValueError: An unknown option, or one that the models here do not have.
        """

    @abstractmethod
    def mixer_sizes(self, config: Any) -> dict[str, int]:
        """Sizes by their letters in `mixer_tensors`, of a converted configuration."""

    def lacks(self, name: str, config: Any) -> bool:
        """Whether a converted configuration has no tensor of this name in `mixer_tensors`."""
        if name == "conv1d.bias":
            return not config.use_conv_bias
        return name in ("in_proj.bias", "out_proj.bias") and not config.use_bias

    def recognises(self, config: Mapping[str, Any], names: Collection[str]) -> bool:
        return super().recognises(config, names) and _version(config) == self.version

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
        logger.info(f"{self.name} checkpoint with {count:,} parameters")
        return model

    def convert_config(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments of the configuration of the model that computes what the checkpoint computes.

        Raises:
            ValueError: A value of another type; an unknown option of `ssm_cfg`; `rcps` without `complement_map`; layers
                of the other kind, or with MLPs.
        """
        if _version(config) != self.version:
            raise ValueError(
                f"`version`={_version(config)!r} of `layer_cfg.mamba_cfg` must be {self.version!r} for {self.name}: "
                "load 'v1' by the classes of SelectiveSSM models, and 'v2' by the classes of SSD models"
            )
        config = _flat(config)
        own = {new: field_value(config, name, kind, default) for name, (new, kind, default) in _FIELDS.items()}
        size, multiple = (
            field_value(config, name, int, default)
            for name, default in (("vocab_size", 50277), ("pad_vocab_size_multiple", 8))
        )
        own["vocab_size"] = size + -size % multiple
        is_fused, is_rms = (field_value(config, name, bool, True) for name in ("fused_add_norm", "rms_norm"))
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
        own["tie_word_embeddings"] = own["rc_equivariant"] or field_value(config, "tie_word_embeddings", bool, True)
        initial = _object(config, "initializer_cfg")
        own["initializer_range"] = field_value(initial, "initializer_range", float, 0.02, "initializer_cfg.")
        own |= self.convert_ssm(_object(config, "ssm_cfg"), own["hidden_size"])
        rest = {name: value for name, value in config.items() if name not in {*_FIELDS, *_READ}}
        return {**rest, **own, "pooling": "mean", "classifier_bias": False}

    def convert_weights(
        self, state_dict: Mapping[str, Tensor], found: Mapping[str, Any], config: Any
    ) -> dict[str, Tensor]:
        found = _flat(found)
        stored = {name.removeprefix("caduceus."): tensor for name, tensor in state_dict.items()}
        expected = self._expected(config)
        _drop_shared(stored, found, config)
        self._check_names(stored, expected, found, config)
        self._check_shapes(stored, expected, config)
        _check_complements(stored, config)
        weights = rename(stored, {**_NAMES, **self.mixer_names})
        is_sum = config.bidirectional and getattr(config, "bidirectional_strategy", "add") == "add"
        if config.use_bias and is_sum and _shares_projections(config):
            for name, tensor in weights.items():
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

    def _expected(self, config: Any) -> dict[str, tuple[str | int, ...]]:
        """Names and shapes of the tensors of a backbone, without those that are shared, for the layer `{}`."""
        inner = ".submodule" if config.rc_equivariant else ""
        norm = inner if not config.rc_swap else ""
        table = "embedding." if config.rc_equivariant else ""
        kinds = ("weight",) if config.norm_type == "rms" else ("weight", "bias")
        shapes: dict[str, tuple[str | int, ...]] = {f"backbone.embeddings.word_embeddings.{table}weight": ("V", "D")}
        shapes |= {f"backbone.{place}{norm}.{kind}": ("D",) for place in ("norm_f", "layers.{}.norm") for kind in kinds}
        for direction in ("mamba_fwd", "mamba_rev") if config.bidirectional else ("mamba_fwd",):
            for name, shape in self.mixer_tensors.items():
                is_shared = direction == "mamba_rev" and _shares_projections(config) and name in _SHARED
                if not is_shared and not self.lacks(name, config):
                    shapes[f"backbone.layers.{{}}.mixer{inner}.{direction}.{name}"] = shape
        return shapes

    def _check_names(
        self,
        stored: Mapping[str, Tensor],
        expected: Mapping[str, Any],
        found: Mapping[str, Any],
        config: Any,
    ) -> None:
        """Raise `ValueError` for a tensor whose presence or absence contradicts a field."""
        layers = {int(match[1]) for name in stored if (match := _LAYER.match(name))}
        wanted = config.num_hidden_layers
        # Sizes first: the set of all layers might not fit into memory.
        if len(layers) != wanted or layers != set(range(wanted)):
            last = f"backbone.layers.{max(layers, default=0)}."
            name = next((name for name in stored if name.startswith(last)), last)
            raise ValueError(
                f"the tensors have {len(layers)} layers (the last layer has {name}), but the configuration has "
                f"`n_layer`={wanted}"
            )
        generic = {_LAYER.sub("backbone.layers.{}.", name): name for name in stored}
        for name in expected:
            if name not in generic:
                field = self._field_of_missing(name, generic)
                if field is not None:
                    raise ValueError(_contradiction(f"{name.format(0)} is missing", field, found))
        for name, example in generic.items():
            if name.startswith("backbone.") and name not in expected:
                field = self._field_of(name)
                if field is not None and not (field == "bidirectional" and config.bidirectional):
                    raise ValueError(_contradiction(f"the file has {example}", field, found))

    def _field_of(self, name: str) -> str | None:
        """The field that a name depends on."""
        patterns = {**_NAMED_BY, **self.named_by}
        return next((field for pattern, field in patterns.items() if re.search(pattern, name)), None)

    def _field_of_missing(self, name: str, there: Iterable[str]) -> str | None:
        """The field that a missing tensor contradicts; `None` if the file is merely incomplete."""
        there = set(there)
        is_norm = _NORM.search(name) is not None
        # The name of the same tensor in a model of the other kind.
        part = "embedding" if "word_embeddings" in name else "submodule"
        other = name.replace(f".{part}.", ".", 1) if f".{part}." in name else None
        if other is None:
            head, _, tail = name.rpartition("." if is_norm or part == "embedding" else ".mamba_")
            other = f"{head}.{part}.{tail}" if is_norm or part == "embedding" else f"{head}.{part}.mamba_{tail}"
        if other in there:
            return "fused_add_norm" if is_norm else "rcps"
        field = self._field_of(name)
        is_incomplete = field == "bidirectional" and any(".mamba_rev." in known for known in there)
        return None if is_incomplete else field

    def _check_shapes(self, stored: Mapping[str, Tensor], expected: Mapping[str, Any], config: Any) -> None:
        """Raise `ValueError` for a tensor of another shape than the configuration asks for."""
        sizes = {"V": config.vocab_size, "D": config.hidden_size, **self.mixer_sizes(config)}
        size_fields = {"V": "vocab_size", "D": "d_model", **self.size_fields}
        for name in [name for layer in range(config.num_hidden_layers) for name in (n.format(layer) for n in expected)]:
            letters = expected[_LAYER.sub("backbone.layers.{}.", name)]
            tensor = stored.get(name)
            wanted = tuple(sizes.get(letter, letter) for letter in letters)
            if tensor is None or tuple(tensor.shape) == wanted:
                continue
            shape = tuple(tensor.shape)
            pairs = zip(letters, wanted, shape, strict=True) if len(shape) == len(wanted) else ()
            fields = [size_fields[a] for a, size, actual in pairs if size != actual and a in size_fields]
            which = " and ".join(f"`{field}`" for field in dict.fromkeys(fields)) or "the model"
            raise ValueError(f"{name} has the shape {shape}, but {which} of the configuration asks for {wanted}")


def field_value(config: Mapping[str, Any], name: str, kind: type, default: Any, where: str = "") -> Any:
    """The value of a field, `default` if it is absent or null."""
    value = config.get(name)
    if value is None:
        return default
    fits = type(value) is kind or (kind is float and type(value) is int)
    if not fits or (kind is int and value < 1):
        wanted = {int: "a positive integer", float: "a number", bool: "true or false", str: "a text"}[kind]
        raise ValueError(f"`{where}{name}` must be {wanted}, got {value!r}")
    return value


def _version(config: Mapping[str, Any]) -> Any:
    """`"v1"` of the layout of Caduceus; of the nested one, the `version`."""
    if config.get("layer_cfg") is None and config.get("norm_cfg") is None:
        return "v1"
    mamba = _object(_object(config, "layer_cfg"), "mamba_cfg", "layer_cfg.")
    version = mamba.get("version", "v2")
    if version not in ("v1", "v2"):
        raise ValueError(f"`layer_cfg.mamba_cfg.version` must be 'v1' or 'v2', got {version!r}")
    return version


def _flat(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """A configuration in the layout of Caduceus, from either."""
    layer, norm = _object(config, "layer_cfg"), _object(config, "norm_cfg")
    mamba = _object(layer, "mamba_cfg", "layer_cfg.")
    if layer.get("mode") not in (None, "mamba-only"):
        raise ValueError(f"`layer_cfg.mode` must be 'mamba-only', got {layer['mode']!r}")
    if mamba.get("mlp_cfg") is not None:
        raise ValueError(
            f"`layer_cfg.mamba_cfg.mlp_cfg`={mamba['mlp_cfg']!r} cannot be converted: blocks with two directions have "
            "no MLPs here"
        )
    rest = {name: value for name, value in config.items() if name not in ("layer_cfg", "norm_cfg")}
    own = {name: norm[name] for name in _NORM_FIELDS if name in norm}
    return rest | own | ({"ssm_cfg": mamba["ssm_cfg"]} if "ssm_cfg" in mamba else {})


def _object(config: Mapping[str, Any], name: str, where: str = "") -> Mapping[str, Any]:
    """The object of a field, empty if it is absent or null."""
    value = config.get(name)
    if value is not None and not isinstance(value, Mapping):
        raise ValueError(f"`{where}{name}` must be an object or null, got {value!r}")
    return value or {}


def _shares_projections(config: Any) -> bool:
    """Whether both directions have the same projections, as in all models but selective ones that say otherwise."""
    return bool(getattr(config, "bidirectional_weight_tie", True))


def _build_caduceus(model_max_length: int | None, padding_side: str) -> PreTrainedTokenizerFast:
    return build_dna_tokenizer(model_max_length, padding_side, add_eos=True, keep_whitespace=True, keep_ambiguity=True)


def _drop_shared(stored: dict[str, Tensor], found: Mapping[str, Any], config: Any) -> None:
    """Remove second names of shared tensors, which must be equal to the first."""
    pairs: dict[str, tuple[str, str]] = {}
    if config.bidirectional and _shares_projections(config):
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
                f"{name} differs from {first}, but `{field}`={json.dumps(found.get(field, True))} in the configuration "
                "means that the two are shared: correct config.json"
            )


def _check_complements(stored: dict[str, Tensor], config: Any) -> None:
    """Remove the stored tables of complements, which must be that of the configuration."""
    for name in [name for name in stored if name.endswith("complement_map")]:
        table = stored.pop(name)
        if config.rc_equivariant and table.tolist() != config.complement_map:
            raise ValueError(
                f"{name} is {table.tolist()}, but `complement_map` of the configuration gives {config.complement_map}"
            )


def _contradiction(what: str, field: str, found: Mapping[str, Any]) -> str:
    outer, _, inner = field.rpartition(".")
    place = (found.get(outer) or {}) if outer else found
    value = json.dumps(place[inner]) if inner in place else "(absent)"
    return f"{what}, which contradicts `{field}`={value} of the configuration"
