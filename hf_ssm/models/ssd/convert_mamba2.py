"""Converter of Mamba-2 checkpoints, in three layouts of the same tensors.

transformers' layout (`Mamba2ForCausalLM`) has the `model_type` "mamba2".

The original layout (`state-spaces/mamba2-*`, the package mamba_ssm) has a configuration without `model_type`. It is
often accompanied by a configuration of transformers with default sizes, or by none. All sizes are therefore those of
the tensors. It is recognised by the name `backbone.embedding.weight`, where transformers writes
`backbone.embeddings.weight`, too.

The layout of Mistral (Codestral Mamba) has a `params.json` and a `consolidated.safetensors`.

Source: Dao & Gu 2024 (Mamba-2).
"""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import Mamba2Config
from transformers.utils import logging

from hf_ssm.models.base.converter import EMPTY, Converter, Fields, Tensors, load_state_dict, rename
from hf_ssm.models.base.mamba_ssm import (
    INITIAL,
    NAMES,
    convert_options,
    convert_outer,
    layer_of,
    object_of,
    step_limit,
)
from hf_ssm.models.base.weights import find_file
from hf_ssm.models.ssd.modeling_ssd import SSDForCausalLM, SSDModel

__all__ = ["CONVERTERS", "MIXER_NAMES", "Mamba2Converter", "convert_mixer"]

logger = logging.get_logger(__name__)

MIXER_NAMES = {r"\.mixer\.(reverse_)?(A_log|D|dt_bias)$": r".mixer.\1scan.\2"}
"""Names in a mixer, and in a second direction, as regular expressions, and the names here."""

# Fields that transformers' layout may leave out.
_FIELDS = (
    *("num_heads", "head_dim", "vocab_size", "hidden_size", "state_size", "num_hidden_layers", "layer_norm_epsilon"),
    *("pad_token_id", "bos_token_id", "eos_token_id", "expand", "conv_kernel", "n_groups", "use_bias"),
    *("use_conv_bias", "hidden_act", "initializer_range", "residual_in_fp32", "rescale_prenorm_residual"),
    "tie_word_embeddings",
)
# Fields about code, or without effect on a loaded model: norms are always applied, after the gate. The size of chunks
# is that of other kernels.
_UNUSED_FIELDS = frozenset(
    {"model_type", "architectures", "time_step_rank", "rms_norm", "norm_before_gate", "chunk_size", "layer_types"}
)
# Options of `ssm_cfg` of mamba_ssm, the fields here, and the values that absent options stand for.
_SSM_FIELDS: dict[str, tuple[str, Any]] = {
    "d_state": ("state_size", 128),
    "d_conv": ("conv_kernel", 4),
    "expand": ("expand", 2),
    "headdim": ("head_dim", 64),
    "ngroups": ("n_groups", 1),
    "D_has_hdim": ("D_has_hdim", False),
    "rmsnorm": ("rms_norm", True),
    "norm_before_gate": ("norm_before_gate", False),
    "bias": ("use_bias", False),
    "conv_bias": ("use_conv_bias", True),
    **INITIAL,
}
_OUTER = {"d_model": "hidden_size", "n_layer": "num_hidden_layers", "vocab_size": "vocab_size"}


def convert_mixer(options: Fields, hidden_size: int, read: Collection[str] = ()) -> dict[str, Any]:
    """Return the fields here of an `ssm_cfg`; `read` as in `convert_options`."""
    own = convert_options(options, _SSM_FIELDS, "Mamba-2", ("d_ssm", "dt_limit", *read))
    if options.get("d_ssm") not in (None, own["expand"] * hidden_size):
        raise ValueError(
            f"`ssm_cfg.d_ssm`={options['d_ssm']!r} cannot be converted: all {own['expand'] * hidden_size} channels of "
            "Mamba-2 models here are channels of the scan"
        )
    return own | {"time_step_limit": step_limit(options.get("dt_limit"))}


class Mamba2Converter(Converter):
    """Converts Mamba-2; `from_pretrained` reads the layouts of transformers and mamba_ssm."""

    name = "Mamba-2"
    model_type = "mamba2"
    reads_untyped = needs_shapes = True
    heads = {"Mamba2ForCausalLM": SSDForCausalLM, "Mamba2Model": SSDModel, "MambaLMHeadModel": SSDForCausalLM}
    backbone_class = SSDModel
    names = {**NAMES, **MIXER_NAMES}

    def recognises(self, config: Fields, names: Collection[str]) -> bool:
        is_bare = not config and {"A_log", "dt_bias", "D"} <= {name.rpartition(".mixer.")[2] for name in names}
        is_original = layer_of(config) == "Mamba2" or _is_mistral(config)
        # Mamba-3 has no convolution.
        is_bare = is_bare and any(name.endswith(".mixer.conv1d.weight") for name in names)
        return super().recognises(config, names) or is_original or is_bare

    def read(self, source: str | Path, config: Fields) -> dict[str, Tensor]:
        weights = find_file(source, "consolidated.safetensors") if _is_mistral(config) else None
        return super().read(source, config) if weights is None else load_state_dict(weights)

    def convert_config(self, config: Fields, tensors: Tensors = EMPTY) -> dict[str, Any]:
        """Return the arguments of the `SSDConfig`, with the sizes of the tensors in the original layouts.

        Raises:
            ValueError: Options that Mamba-2 models here do not have; sizes that the tensors do not determine.
        """
        is_typed = config.get("model_type") is not None
        if is_typed:
            given = {name: value for name, value in config.items() if name not in _UNUSED_FIELDS}
            defaults = Mamba2Config()
            own = {name: getattr(defaults, name) for name in _FIELDS} | given
            own["time_step_limit"] = step_limit(config.get("time_step_limit"))
            if not any(name.endswith("embedding.weight") for name in tensors):
                return own
        else:
            config = _from_mistral(config) if _is_mistral(config) else config
            options = object_of(config, "ssm_cfg")
            if config.get("d_intermediate"):
                raise ValueError(
                    f"`d_intermediate`={config['d_intermediate']!r} cannot be converted: Mamba-2 models here have "
                    "neither MLPs nor attention layers"
                )
            own = convert_outer(config)
            own |= convert_mixer(options, own["hidden_size"], ("layer",))
            given = {new: own[new] for old, new in _OUTER.items() if config.get(old) is not None}
            given |= {new: own[new] for old, (new, _) in _SSM_FIELDS.items() if options.get(old) is not None}
        if not tensors:
            return own
        renamed = rename(tensors, self.names, check=False)
        sizes = _sizes({name: tuple(tensor.shape) for name, tensor in renamed.items()}, given, is_typed)
        if is_typed:
            own["tie_word_embeddings"] = not any(name.endswith("lm_head.weight") for name in tensors)
        wrong = {name: value for name, value in given.items() if sizes.get(name, value) != value}
        if wrong:
            parts = (f"`{name}`={sizes[name]} (not {value!r})" for name, value in wrong.items())
            logger.warning_once(f"The configuration contradicts the tensors, whose sizes are used: {', '.join(parts)}.")
        return own | sizes


CONVERTERS = (Mamba2Converter(),)


def _is_mistral(config: Fields) -> bool:
    return "model_type" not in config and {"dim", "n_layers"} <= config.keys()


def _from_mistral(config: Fields) -> dict[str, Any]:
    """Return the configuration in the schema of mamba_ssm; the tensors have the other sizes."""
    options = {"ngroups": config["n_groups"]} if "n_groups" in config else {}
    ties = {"tie_embeddings": config["tie_embeddings"]} if "tie_embeddings" in config else {}
    ids = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
    return {"d_model": config["dim"], "n_layer": config["n_layers"], "ssm_cfg": options, **ties, **ids}


def _sizes(shapes: Mapping[str, tuple[int, ...]], given: Fields, is_typed: bool) -> dict[str, Any]:
    """Return the fields that the shapes of the tensors determine, by their names here.

    Args:
        shapes: By the names here.
        given: Fields that the configuration has.
        is_typed: Whether it is one of transformers, which may have default sizes.

    Raises:
        ValueError: Tensors that are missing; numbers of groups and states whose product is not that of the tensors.
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
    product = (channels - inner) // 2
    groups, states = given.get("n_groups"), given.get("state_size")
    if is_typed and (groups or 1) * (states or 1) != product:
        groups = states = None
    if groups is None:
        groups = product // states if states and product % states == 0 else 1
    if product % groups or states not in (None, product // groups):
        raise ValueError(
            f"mixer.conv1d.weight has 2 x {product} channels for B and C, but `ngroups`={groups!r} times "
            f"`d_state`={states!r} is not {product}: correct `ssm_cfg`"
        )
    return {
        "vocab_size": vocabulary,
        "hidden_size": size,
        "num_hidden_layers": len({name.split(".")[2] for name in shapes if name.startswith("model.layers.")}),
        "expand": inner // max(size, 1),
        "num_heads": heads,
        "head_dim": inner // max(heads, 1),
        "n_groups": groups,
        "state_size": product // groups,
        "conv_kernel": taps,
        "use_conv_bias": f"{mixer}conv1d.bias" in shapes,
        "use_bias": f"{mixer}in_proj.bias" in shapes,
        "rms_norm": f"{mixer}norm.weight" in shapes,
        "D_has_hdim": skips != heads,
        "norm_type": "layer" if "model.layers.0.norm1.bias" in shapes else "rms",
    }
