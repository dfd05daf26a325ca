"""Converter of Mamba-2 checkpoints, in three layouts of the same tensors.

transformers' layout (`Mamba2ForCausalLM`) has the `model_type` "mamba2". Its configuration is checked against the
tensors.

The original layout (`state-spaces/mamba2-*`, the package mamba_ssm) has a configuration with `d_model` and `ssm_cfg`
and without `model_type`. It does not record all sizes (the vocabulary is padded), and is often accompanied by a
configuration of transformers with default sizes. All sizes are therefore those of the tensors. The original layout is
recognised by the name `backbone.embedding.weight`, where transformers writes `backbone.embeddings.weight`, too.

The layout of Mistral (Codestral Mamba) has a `params.json` and a `consolidated.safetensors`.

Source: Dao & Gu 2024 (Mamba-2).
"""

import math
import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers.utils import logging

from hf_ssm.models.base.converter import CheckpointConverter, are_equal, load_state_dict, rename
from hf_ssm.models.base.weights import find_file, read_shapes, weight_files, weight_names
from hf_ssm.models.ssd.configuration_ssd import SSDConfig
from hf_ssm.models.ssd.modeling_ssd import SSDForCausalLM, SSDModel

__all__ = ["CONVERTERS", "MAMBA2_NAMES", "Mamba2Converter"]

logger = logging.get_logger(__name__)

MAMBA2_NAMES: dict[str, str | Callable[[re.Match[str]], str]] = {
    r"^(model\.)?(backbone\.)?(?=embeddings?\.|layers\.|norm_f\.)": "model.",
    r"^model\.(?=lm_head\.)": "",
    r"^model\.embeddings?\.weight": "model.embed_tokens.weight",
    r"^model\.norm_f\.": "model.norm.",
    r"^(model\.layers\.\d+)\.norm\.": r"\1.norm1.",
    r"\.mixer\.(A_log|D|dt_bias)$": r".mixer.scan.\1",
}
"""Weight names of `Mamba2ForCausalLM`, `Mamba2Model` and mamba_ssm as regular expressions, and the names here."""

# Fields of transformers' layout, with the values that absent fields stand for.
_FIELDS: dict[str, Any] = {
    "num_heads": 128,
    "head_dim": 64,
    "vocab_size": 32768,
    "hidden_size": 4096,
    "state_size": 128,
    "num_hidden_layers": 64,
    "layer_norm_epsilon": 1e-5,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "expand": 2,
    "conv_kernel": 4,
    "n_groups": 8,
    "use_bias": False,
    "use_conv_bias": True,
    "hidden_act": "silu",
    "initializer_range": 0.1,
    "residual_in_fp32": True,
    "time_step_limit": (0.0, math.inf),
    "rescale_prenorm_residual": False,
    "tie_word_embeddings": False,
}
# Fields about code, or without effect on a loaded model: norms are always applied, after the gate. The size of chunks
# is that of other kernels.
_UNUSED_FIELDS = frozenset(
    {"model_type", "architectures", "time_step_rank", "rms_norm", "norm_before_gate", "chunk_size", "layer_types"}
)
# Options of `ssm_cfg`, the fields here, and the values that absent options stand for.
_SSM_FIELDS: dict[str, tuple[str, Any]] = {
    "dt_limit": ("time_step_limit", (0.0, math.inf)),
    "norm_before_gate": ("norm_before_gate", False),
    "dt_min": ("time_step_min", 0.001),
    "dt_max": ("time_step_max", 0.1),
    "dt_init_floor": ("time_step_floor", 1e-4),
}
# Sizes in `ssm_cfg` and outside of it that the tensors have too, and the fields here.
_SSM_SIZES = {
    "d_conv": "conv_kernel",
    "expand": "expand",
    "headdim": "head_dim",
    "D_has_hdim": "D_has_hdim",
    "bias": "use_bias",
    "conv_bias": "use_conv_bias",
    "rmsnorm": "rms_norm",
}
_OUTER_SIZES = {"d_model": "hidden_size", "n_layer": "num_hidden_layers", "vocab_size": "vocab_size"}
# Options of `ssm_cfg` about speed, several devices or the initial weights.
_SSM_UNUSED = frozenset(
    {
        *("layer", "d_state", "ngroups", "d_ssm", "chunk_size", "use_mem_eff_path", "conv_init", "A_init_range"),
        *("process_group", "sequence_parallel", "device", "dtype", "layer_idx"),
    }
)


class Mamba2Converter(CheckpointConverter):
    """Converts Mamba-2; `from_pretrained` reads the layouts of transformers and mamba_ssm."""

    name = "Mamba-2"
    model_type = "mamba2"
    reads_untyped = True
    heads = {"Mamba2ForCausalLM": SSDForCausalLM, "Mamba2Model": SSDModel, "MambaLMHeadModel": SSDForCausalLM}
    backbone_class = SSDModel

    def recognises(self, config: Mapping[str, Any], names: Collection[str]) -> bool:
        if config.get("model_type") is not None:
            return super().recognises(config, names)
        layer = config["ssm_cfg"].get("layer") if isinstance(config.get("ssm_cfg"), Mapping) else None
        is_bare = not config and {"A_log", "dt_bias", "D"} <= {name.rpartition(".mixer.")[2] for name in names}
        return ("d_model" in config and layer == "Mamba2") or _is_mistral(config) or is_bare

    def read(self, source: str | Path, config: Mapping[str, Any]) -> dict[str, Tensor]:
        weights = find_file(source, "consolidated.safetensors") if _is_mistral(config) else None
        return super().read(source, config) if weights is None else load_state_dict(weights)

    def convert_config(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments of the `SSDConfig` of a checkpoint in transformers' layout, from its `config.json`."""
        rest = {name: value for name, value in config.items() if name not in _UNUSED_FIELDS}
        return {**_FIELDS, **rest, "time_step_limit": _numbers(rest.get("time_step_limit", (0.0, math.inf)))}

    def read_config(self, source: Any, config: Mapping[str, Any], **fetching: Any) -> dict[str, Any]:
        files = weight_files(source, weight_names(), **fetching)
        shapes = {name: tensor for file in files for name, tensor in read_shapes(file).items()}
        if not _is_original(config, shapes):
            # Contradictions are reported with the weights.
            return self.convert_config(config)
        return self.sized_config(config, shapes)

    def sized_config(self, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> dict[str, Any]:
        """Arguments of the `SSDConfig`, with the sizes of the tensors where the layout is not that of transformers.

        Raises:
            ValueError: Options that Mamba-2 models here do not have; sizes that the tensors do not determine; a
                configuration of transformers that the tensors contradict.
        """
        shapes = {name: tuple(tensor.shape) for name, tensor in rename(tensors, MAMBA2_NAMES, check=False).items()}
        if not _is_original(config, tensors):
            found = self.convert_config(config)
            _check_sizes(found, shapes)
            return found
        return _from_tensors(_as_original(config), shapes)

    def convert_weights(
        self, state_dict: Mapping[str, Tensor], found: Mapping[str, Any], config: SSDConfig
    ) -> dict[str, Tensor]:
        weights = rename(state_dict, MAMBA2_NAMES)
        if config.tie_word_embeddings:
            embedding = weights.get("model.embed_tokens.weight")
            head = weights.pop("lm_head.weight", embedding)
            if head is not None and embedding is not None and not are_equal(head, embedding):
                raise ValueError(
                    "lm_head.weight differs from the embedding, but the configuration ties them (`tie_embeddings`, "
                    "`tie_word_embeddings`): set the field to false if the head was trained separately"
                )
        return weights


CONVERTERS = (Mamba2Converter(),)


def _is_mistral(config: Mapping[str, Any]) -> bool:
    return "model_type" not in config and {"dim", "n_layers"} <= config.keys()


def _is_original(config: Mapping[str, Any], names: Collection[str]) -> bool:
    """Whether sizes are those of the tensors."""
    return config.get("model_type") is None or any(name.endswith("embedding.weight") for name in names)


def _numbers(limit: Any) -> Any:
    """A pair of numbers, where JSON may have stored infinity as an object."""
    if not isinstance(limit, (list, tuple)):
        return limit
    stored = (part.get("__float__") if isinstance(part, Mapping) else part for part in limit)
    return tuple(float(part) if isinstance(part, str) else part for part in stored)


def _as_original(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The configuration in the schema of mamba_ssm."""
    if _is_mistral(config):
        options = {"ngroups": config["n_groups"]} if "n_groups" in config else {}
        outer = {"d_model": config["dim"], "n_layer": config["n_layers"], "ssm_cfg": options}
        ties = {"tie_embeddings": config["tie_embeddings"]} if "tie_embeddings" in config else {}
        return {**outer, **ties, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
    if config.get("model_type") is None:
        return config
    # A configuration of transformers beside original tensors: its sizes are compared, and mostly wrong.
    names = {own: theirs for theirs, own in _SSM_SIZES.items() if own not in ("rms_norm", "D_has_hdim")}
    options = {names[name]: value for name, value in config.items() if name in names}
    if "time_step_limit" in config:
        options["dt_limit"] = config["time_step_limit"]
    known = {theirs: config[own] for theirs, own in _OUTER_SIZES.items() if own in config}
    ids = {name: config[name] for name in ("pad_token_id", "bos_token_id", "eos_token_id") if name in config}
    groups = {"n_groups": config["n_groups"], "state_size": config["state_size"]} if "n_groups" in config else {}
    return {**known, **ids, "ssm_cfg": options, "transformers": groups, "tie_embeddings": None}


def _from_tensors(config: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    """Arguments of the `SSDConfig`, from a configuration in the schema of mamba_ssm and the shapes of the tensors."""
    options = config.get("ssm_cfg") or {}
    if config.get("d_intermediate") or config.get("attn_layer_idx"):
        raise ValueError(
            f"`d_intermediate`={config.get('d_intermediate')!r} and `attn_layer_idx`={config.get('attn_layer_idx')!r} "
            "cannot be converted: Mamba-2 models here have neither MLPs nor attention layers"
        )
    unknown = sorted(options.keys() - _SSM_FIELDS.keys() - _SSM_SIZES.keys() - _SSM_UNUSED)
    if unknown:
        raise ValueError(f"`ssm_cfg` has unknown options: {', '.join(map(repr, unknown))}")
    sizes = _sizes(shapes)
    product = sizes.pop("matrix_size")
    if options.get("d_ssm") not in (None, sizes["expand"] * sizes["hidden_size"]):
        raise ValueError(
            f"`d_ssm`={options['d_ssm']!r} cannot be converted: all {sizes['expand'] * sizes['hidden_size']} channels "
            "of Mamba-2 models here are channels of the scan"
        )
    groups, states = _groups(product, options.get("ngroups"), options.get("d_state"), config.get("transformers") or {})
    given = {own: options.get(theirs) for theirs, own in _SSM_SIZES.items()}
    given |= {own: config.get(theirs) for theirs, own in _OUTER_SIZES.items()}
    _warn_of_sizes(given, sizes, config.get("pad_vocab_size_multiple", 8))
    ties = config.get("tie_embeddings", True)
    has_head = "lm_head.weight" in shapes
    rest = {own: options.get(theirs, default) for theirs, (own, default) in _SSM_FIELDS.items()}
    ids = {name: config[name] for name in ("pad_token_id", "bos_token_id", "eos_token_id") if name in config}
    return {
        **rest,
        **sizes,
        **ids,
        "time_step_limit": _numbers(rest["time_step_limit"]),
        "n_groups": groups,
        "state_size": states,
        "layer_norm_epsilon": 1e-5,
        "residual_in_fp32": config.get("residual_in_fp32", True),
        "tie_word_embeddings": not has_head if ties is None else ties,
    }


def _groups(product: int, groups: Any, states: Any, typed: Mapping[str, Any]) -> tuple[int, int]:
    """Numbers of groups and states, of which the tensors have the product."""
    if typed.get("n_groups", 0) * typed.get("state_size", 0) == product:
        return typed["n_groups"], typed["state_size"]
    if groups is None:
        groups = 1 if states is None or product % states else product // states
    fits = type(groups) is int and groups > 0 and product % groups == 0
    if not fits or states not in (None, product // groups):
        raise ValueError(
            f"mixer.conv1d.weight has 2 x {product} channels for B and C, but `ngroups`={groups!r} times "
            f"`d_state`={states!r} is not {product}: correct `ssm_cfg`"
        )
    return groups, product // groups


def _warn_of_sizes(given: Mapping[str, Any], sizes: Mapping[str, Any], multiple: Any) -> None:
    """Warn of sizes that differ from those of the tensors; that the vocabulary is padded is expected."""
    wrong = {name: value for name, value in given.items() if value is not None and value != sizes[name]}
    vocabulary = wrong.get("vocab_size")
    if isinstance(vocabulary, int) and isinstance(multiple, int) and multiple > 0:
        wrong["vocab_size"] = vocabulary + -vocabulary % multiple
        wrong = {name: value for name, value in wrong.items() if value != sizes[name]}
    if wrong:
        parts = (f"`{name}`={sizes[name]} (not {value!r})" for name, value in wrong.items())
        logger.warning_once(f"The configuration contradicts the tensors, whose sizes are used: {', '.join(parts)}.")


def _sizes(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    """Fields that the shapes of the tensors determine, and `matrix_size`, groups times states.

    Raises:
        ValueError: Tensors that are missing or do not fit together, by their names.
    """
    mixer = "model.layers.0.mixer."

    def shape(name: str, dimensions: int) -> tuple[int, ...]:
        if len(shapes.get(name, ())) != dimensions:
            raise ValueError(
                f"the tensors are not a whole checkpoint of Mamba-2: {name} of {dimensions} dimensions is missing"
            )
        return shapes[name]

    vocabulary, size = shape("model.embed_tokens.weight", 2)
    (heads,), (skips,) = shape(f"{mixer}scan.A_log", 1), shape(f"{mixer}scan.D", 1)
    channels, _, taps = shape(f"{mixer}conv1d.weight", 3)
    _, inner = shape(f"{mixer}out_proj.weight", 2)
    rows, _ = shape(f"{mixer}in_proj.weight", 2)
    normed = shapes.get(f"{mixer}norm.weight")
    if rows != inner + channels + heads or normed not in (None, (inner,)):
        raise ValueError(
            f"mixer.in_proj.weight has {rows} rows, which do not match the {inner} channels of mixer.out_proj.weight, "
            f"the {channels} channels of mixer.conv1d.weight and the {heads} heads of mixer.A_log: checkpoints with "
            "`d_ssm` (an MLP beside the scan) cannot be converted"
        )
    if inner % size or inner % heads or (channels - inner) % 2 or channels <= inner:
        raise ValueError(
            f"mixer.out_proj.weight has {inner} channels, which must be a multiple of the {size} channels of the "
            f"embedding and of the {heads} heads of mixer.A_log, and mixer.conv1d.weight has {channels}, which must be "
            f"{inner} and an even number for B and C"
        )
    numbers = [int(match[1]) for name in shapes if (match := re.match(r"model\.layers\.(\d+)\.", name))]
    return {
        "vocab_size": vocabulary,
        "hidden_size": size,
        "num_hidden_layers": max(numbers) + 1,
        "expand": inner // size,
        "num_heads": heads,
        "head_dim": inner // heads,
        "conv_kernel": taps,
        "use_conv_bias": f"{mixer}conv1d.bias" in shapes,
        "use_bias": f"{mixer}in_proj.bias" in shapes,
        "rms_norm": normed is not None,
        "D_has_hdim": skips != heads,
        "norm_type": "layer" if "model.layers.0.norm1.bias" in shapes else "rms",
        "matrix_size": (channels - inner) // 2,
    }


def _check_sizes(fields: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raise `ValueError` for the first field of a configuration that a tensor contradicts; both are named."""
    inner = fields["expand"] * fields["hidden_size"]
    matrix = fields["n_groups"] * fields["state_size"]
    mixer = "model.layers.0.mixer."
    expected: list[tuple[str, int, int, str]] = [
        ("model.embed_tokens.weight", 1, fields["hidden_size"], "`hidden_size`={hidden_size}"),
        ("model.embed_tokens.weight", 0, fields["vocab_size"], "`vocab_size`={vocab_size}"),
        (f"{mixer}A_log", 0, fields["num_heads"], "`num_heads`={num_heads}"),
        (f"{mixer}out_proj.weight", 1, inner, "`expand`={expand} times `hidden_size`={hidden_size}"),
        (f"{mixer}conv1d.weight", 2, fields["conv_kernel"], "`conv_kernel`={conv_kernel}"),
        (
            f"{mixer}conv1d.weight",
            0,
            inner + 2 * matrix,
            "`expand`={expand}, `hidden_size`={hidden_size}, `n_groups`={n_groups} and `state_size`={state_size}",
        ),
    ]
    for name, axis, size, text in expected:
        found = shapes.get(name.replace("mixer.A_log", "mixer.scan.A_log"))
        if found is not None and len(found) > axis and found[axis] != size:
            own = name.replace("model.embed_tokens", "backbone.embeddings").replace("model.", "backbone.")
            raise ValueError(
                f"{own} has the shape {found}, but the config.json asks for {size} because of {text.format(**fields)}: "
                "correct the configuration"
            )
    layers = {int(match[1]) for name in shapes if (match := re.match(r"model\.layers\.(\d+)\.", name))}
    if layers and max(layers) + 1 != fields["num_hidden_layers"]:
        raise ValueError(
            f"the tensors belong to {max(layers) + 1} layers (backbone.layers.{max(layers)}), but the config.json "
            f"has `num_hidden_layers`={fields['num_hidden_layers']}: correct the configuration"
        )
