"""Configuration of hybrids, whose layers are those of other families, and attention."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, ClassVar

from hf_ssm.models.base.configuration import SSMConfig, strict_config
from hf_ssm.models.base.field_checks import DerivedInt
from hf_ssm.models.hyena.configuration_hyena import HyenaConfig
from hf_ssm.models.linoss.configuration_linoss import LinOSSConfig
from hf_ssm.models.mamba3.configuration_mamba3 import Mamba3Config
from hf_ssm.models.s4.configuration_s4 import S4Config
from hf_ssm.models.s5.configuration_s5 import S5Config
from hf_ssm.models.selective.configuration_selective import SelectiveSSMConfig
from hf_ssm.models.ssd.configuration_ssd import SSDConfig

MIXER_CONFIGS: dict[str, Any] = {
    "hyena": HyenaConfig,
    "s4": S4Config,
    "s5": S5Config,
    "linoss": LinOSSConfig,
    "selective": SelectiveSSMConfig,
    "ssd": SSDConfig,
    "mamba3": Mamba3Config,
}
"""The configurations of layers other than attention, by layer type."""

# Fields of the whole model that the layers read, too.
_SHARED = (
    *("hidden_size", "num_hidden_layers", "bidirectional", "rescale_init", "rescaled"),
    *("sobolev_order", "sobolev_mode", "sobolev_frequency", "sobolev_trainable"),
    *("tau_statistics", "tau_detach_statistics", "initializer_range", "layer_norm_epsilon"),
)
# Fields of `SSMConfig` that differ from one type of layer to another.
_OF_LAYERS = ("state_size", "init", "discretization", "frequency_scale", "frequency_shift")
_STEPS = ("time_step_min", "time_step_max")
# Fields of families that their mixers do not read: those of Hyena's MLP, and of the norm behind the last block.
_NOT_OF_MIXERS = {
    "hyena": ("intermediate_size", "mlp_depth", "hidden_act"),
    **dict.fromkeys(("s4", "s5", "linoss"), ("use_final_norm",)),
}
_ATTENTION = "full_attention"


@strict_config
class HybridConfig(SSMConfig):
    r"""
    Hybrid: each layer mixes positions by the mixer of another family, or by rotary attention, followed by a gated MLP
    if `intermediate_size` is given. See `SSMConfig` for the arguments all families share.

    Args:
        num_hidden_layers (`int`, *optional*): Number of blocks. `None`: the length of `layer_types`, or 8.
        layer_types (list of `str`, *optional*): What mixes positions in each layer: `"hyena"`, `"s4"`, `"s5"`,
            `"linoss"`, `"selective"`, `"ssd"`, `"mamba3"` or `"full_attention"`. `None`: as in Jamba, the fifth of
            every eight layers is attention; the others are `"ssd"`. In a `config.json` the name is `mixer_types`:
            transformers reads `layer_types` of any file, and refuses names that it does not know.
        mixers (`dict`, *optional*): Fields of the configurations of layers, by layer type, such as `{"ssd":
            {"state_size": 32, "head_dim": 16}}`. A field that is not given has the default of its family.
        num_attention_heads (`int`, defaults to 4): Heads of the attention layers, a divisor of `hidden_size`.
        num_key_value_heads (`int`, *optional*): Heads of the keys and values of these layers, a divisor of
            `num_attention_heads`. `None`: `num_attention_heads`.
        rope_theta (`float`, defaults to 10000.0): Base of the rotary position embedding.
        rope_scaling_factor (`float`, defaults to 1.0): Number by which positions are divided.
        use_bias (`bool`, defaults to `False`): Bias of attention's output projection.
        use_qkv_bias (`bool`, defaults to `False`): Bias of attention's input projection.
        intermediate_size (`int`, *optional*): Width of the gated MLP of each block; `None`: blocks have no MLP.
        hidden_act (`str`, defaults to `"silu"`): Activation of the MLP's gate.
        norm_type (`str`, defaults to `"rms"`): Norm of the residual stream.

    States and frequencies are fields of the layer types, in `mixers`. Values of `time_step_min` and `time_step_max`
    other than 1e-3 and 1e-1 apply to all layers whose type has no values of its own. The Sobolev filter, τ and
    rescaling apply to all layers except attention.

    Raises:
        ValueError: As for `SSMConfig` and the configurations of the layers, with the layer type; an unknown layer type;
            settings of a layer type that no layer has; a field of layers outside of `mixers`, or a field of the whole
            model in `mixers`; two-sided models with attention, which is causal.

    Examples:
        >>> from hf_ssm import HybridConfig, HybridForCausalLM
        >>> config = HybridConfig(
        ...     layer_types=["ssd", "full_attention", "s5"], mixers={"s5": {"num_blocks": 4}}
        ... )
        >>> model = HybridForCausalLM(config)
    """

    model_type = "hf_ssm_hybrid"
    attribute_map: ClassVar[dict[str, str]] = {
        name: field for name, field in SSMConfig.attribute_map.items() if field not in _OF_LAYERS
    } | {"layer_types": "mixer_types"}
    positive_fields: ClassVar[tuple[str, ...]] = (
        *SSMConfig.positive_fields,
        *("num_attention_heads", "num_key_value_heads", "intermediate_size", "rope_theta", "rope_scaling_factor"),
    )

    num_hidden_layers: DerivedInt = None
    mixer_types: list[str] | None = None
    mixers: dict[str, Any] | None = None
    num_attention_heads: int = 4
    num_key_value_heads: int | None = None
    rope_theta: float | int = 10000.0
    rope_scaling_factor: float | int = 1.0
    use_bias: bool = False
    use_qkv_bias: bool = False
    intermediate_size: int | None = None
    hidden_act: str = "silu"
    norm_type: str = "rms"

    def _derive(self) -> None:
        if self.num_hidden_layers is None:
            self.num_hidden_layers = 8 if self.mixer_types is None else len(self.mixer_types)
        if self.mixer_types is None:
            self.mixer_types = [_ATTENTION if layer % 8 == 4 else "ssd" for layer in range(self.num_hidden_layers)]
        if self.num_key_value_heads is None:
            self.num_key_value_heads = self.num_attention_heads
        if self.mixers is None:
            self.mixers = {}
        if "linoss" in self.mixer_types and isinstance(self.mixers.get("linoss", {}), Mapping):
            # In files, too: those of before have LinOSS's former default, see `from_dict`.
            settings = {"hidden_act": LinOSSConfig.hidden_act, **self.mixers.get("linoss", {})}
            self.mixers = {**self.mixers, "linoss": settings}

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """Build the configuration of a file; LinOSS layers without an activation in saved files have the exact GELU."""
        mixers = config_dict.get("mixers") or {}
        if "transformers_version" in config_dict and "linoss" in (config_dict.get("mixer_types") or ()):
            settings = {"hidden_act": "gelu", **(mixers.get("linoss") or {})}
            config_dict = {**config_dict, "mixers": {**mixers, "linoss": settings}}
        return super().from_dict(config_dict, **kwargs)

    def validate_layer_type(self) -> None:
        """Accept the names of families, which transformers does not know."""

    def check(self) -> None:
        for name in _OF_LAYERS:
            if getattr(self, name) != getattr(SSMConfig, name):
                raise ValueError(
                    f"`{name}`={getattr(self, name)!r} is a field of a layer type: give it in `mixers`, such as "
                    f"`mixers={{'ssd': {{{name!r}: {getattr(self, name)!r}}}}}`."
                )
        types, known = self.mixer_types or [], (*MIXER_CONFIGS, _ATTENTION)
        if set(types) - set(known) or len(types) != self.num_hidden_layers:
            raise ValueError(
                f"`layer_types` must be {self.num_hidden_layers} names (`num_hidden_layers`) among "
                f"{', '.join(map(repr, known))}, got {self.mixer_types!r}."
            )
        for kind in self.mixers or {}:
            if kind not in types or kind == _ATTENTION:
                raise ValueError(
                    f"`mixers` has settings of {kind!r}, but the layers with settings are "
                    f"{', '.join(map(repr, sorted({*types} - {_ATTENTION}))) or 'none'}: correct `mixers` or "
                    "`layer_types`."
                )
        if _ATTENTION in types:
            self._check_attention()
        super().check()
        for kind in sorted({*types} - {_ATTENTION}):
            self.mixer_config(kind)

    def _check_attention(self) -> None:
        heads = self.num_attention_heads
        for whole, name in (("hidden_size", "num_attention_heads"), ("num_attention_heads", "num_key_value_heads")):
            if getattr(self, whole) % getattr(self, name):
                raise ValueError(
                    f"`{name}`={getattr(self, name)} must divide `{whole}`={getattr(self, whole)}: change one of them."
                )
        if (self.hidden_size // heads) % 2:
            raise ValueError(
                f"`hidden_size` / `num_attention_heads` = {self.hidden_size // heads} must be even: the rotary "
                "embedding rotates pairs of channels."
            )
        if self.bidirectional:
            raise ValueError(
                "`bidirectional=True` is not possible with layers of attention, which is causal: leave out "
                "`bidirectional`, or (for a masked language model) leave out these layers."
            )

    @classmethod
    def can_be_two_sided(cls, given: Mapping[str, Any]) -> bool:
        """Whether none of the layers is attention."""
        types = given.get("layer_types", given.get("mixer_types"))
        return types is not None and not {*types} & {"attention", _ATTENTION}

    def mixer_config(self, kind: str) -> Any:
        """The configuration of the layers of a type; of the whole model for attention.

        Raises:
            ValueError: A setting of `mixers` that is not one of the family, or does not fit the model.
        """
        if kind == _ATTENTION:
            return self
        settings = {**self._given_steps(), **self._settings_of(kind)}
        try:
            return MIXER_CONFIGS[kind](**{name: getattr(self, name) for name in _SHARED}, **settings)
        except ValueError as error:
            raise ValueError(f"`mixers[{kind!r}]`: {error}") from error

    def _settings_of(self, kind: str) -> dict[str, Any]:
        """The fields that `mixers` has for a layer type, by their names in the configuration of its family."""
        settings, family = (self.mixers or {}).get(kind) or {}, MIXER_CONFIGS[kind]
        if not isinstance(settings, Mapping):
            raise ValueError(f"`mixers[{kind!r}]` must be a dictionary of fields, got {settings!r}.")
        shared = {field.name for field in fields(SSMConfig)} - {*_OF_LAYERS, *_STEPS}
        read = {field.name for field in fields(family)} - shared - {*_NOT_OF_MIXERS.get(kind, ())}
        read |= set(family.removed_fields)
        names = {given: family.attribute_map.get(given, given) for given in settings}
        for given, name in names.items():
            if name in family.known_arguments() - read:
                is_shared = name in type(self).known_arguments()
                reason = (
                    "a field of the whole model: give the field outside of `mixers`."
                    if is_shared
                    else "which no mixer reads: leave it out."
                )
                raise ValueError(f"`mixers[{kind!r}]` has `{given}`, {reason}")
        return {name: settings[given] for given, name in names.items()}

    def _given_steps(self) -> dict[str, Any]:
        """The range of step sizes of the whole model, if it is not the default."""
        steps = {name: getattr(self, name) for name in _STEPS}
        return {} if all(getattr(SSMConfig, name) == value for name, value in steps.items()) else steps

    def _mixer_configs(self) -> list[Any]:
        return [self.mixer_config(kind) for kind in sorted({*(self.mixer_types or ())} - {_ATTENTION})]

    @property
    def sobolev_step(self) -> float:
        """The smallest of the layers."""
        return min((config.sobolev_step for config in self._mixer_configs()), default=1.0)

    @property
    def stores_pairs(self) -> bool:
        """False: states are those of layers."""
        return False

    @property
    def has_frequencies(self) -> bool:
        """False: α is a field of layers."""
        return False

    @property
    def no_alpha_rule(self) -> str | None:
        """Why there is no rule for the largest useful `frequency_scale`."""
        return "α is a field of the layer types in `mixers`: each type has its own frequencies."

    @property
    def longest_input(self) -> int | None:
        """The shortest limit of a layer."""
        limits = [config.longest_input for config in self._mixer_configs()]
        return min((limit for limit in limits if limit is not None), default=None)

    @property
    def mlp_size(self) -> int | None:
        """Width of each block's MLP."""
        return self.intermediate_size

    @property
    def evo2_style_activations(self) -> bool:
        """False: the gates of all MLPs have an activation."""
        return False

    @property
    def num_tau_layers(self) -> int:
        """Layers that have a kernel, and so τ: all but attention."""
        return sum(kind != _ATTENTION for kind in self.mixer_types or ())


__all__ = ["MIXER_CONFIGS", "HybridConfig"]
