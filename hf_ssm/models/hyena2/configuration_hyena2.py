"""Configuration of StripedHyena 2, the architecture of Evo 2."""

from collections.abc import Mapping
from typing import Any, ClassVar

from hf_ssm.models.base.configuration import SSMConfig, strict_config
from hf_ssm.models.base.field_checks import DerivedStr

LAYER_TYPES = ("short_conv", "medium_conv", "long_conv", "full_attention")
"""Types of layers by their mixer of positions."""


@strict_config
class Hyena2Config(SSMConfig):
    r"""
    StripedHyena 2: gated convolutions of three lengths and rotary attention, each followed by a gated MLP. See
    `SSMConfig` for the arguments all families share. `hf-ssm convert` reads checkpoints of Evo 2.

    Args:
        vocab_size (`int`, defaults to 512): Number of tokens; the tokens of Evo 2 are bytes, and 256 ids are unused.
        num_hidden_layers (`int`, defaults to 4): Number of blocks.
        layer_types (list of `str`, *optional*): What mixes positions in each layer: `"short_conv"` (explicit taps),
            `"medium_conv"` (more explicit taps, regularised by a decay), `"long_conv"` (a sum of exponentials, of any
            length) or `"full_attention"`. `None`: as in Evo 2 of 7 billion parameters, short, medium and long in turn,
            with attention in the layers 3, 10, 17, ... In a `config.json` the name is `mixer_types`: transformers reads
            `layer_types` of any file, and refuses names that it does not know.
        short_filter_length (`int`, defaults to 7): Taps of the short convolutions.
        short_filter_groups (`int`, *optional*): Number of different filters of a layer, a divisor of `hidden_size`;
            consecutive channels share a filter. `None`: one filter for each channel.
        medium_filter_length (`int`, defaults to 128): Taps of the medium convolutions.
        medium_filter_groups (`int`, *optional*): As `short_filter_groups`.
        medium_filter_decay (`bool`, defaults to `True`): Multiply the medium filters by exp(-r t / (K - 1)), with rates
            r from 1 to 100, one for each group. `False`: the taps contain this factor already, as in the published
            checkpoints.
        long_filter_groups (`int`, *optional*): As `short_filter_groups`.
        state_size (`int`, defaults to 16): Exponentials of each long filter.
        complex_state (`bool`, defaults to `False`): The exponentials of the long filters are complex, as in the first
            StripedHyena (Evo 1): decaying oscillations, whose initial frequencies `frequency_scale` multiplies.
        init (`str`, *optional*): `"lin"` with `complex_state`, and `"real"` without it; `None` selects the value that
            fits `complex_state`.
        conv_kernel (`int`, defaults to 3): Taps of the depth-wise convolution behind the input projection.
        use_conv_bias (`bool`, defaults to `False`): Bias of this convolution.
        num_attention_heads (`int`, defaults to 4): Heads of the attention layers, a divisor of `hidden_size`.
        num_key_value_heads (`int`, *optional*): Heads of the keys and values of these layers, a divisor of
            `num_attention_heads`. `None`: `num_attention_heads`.
        rope_theta (`float`, defaults to 10000.0): Base of the rotary position embedding.
        rope_scaling_factor (`float`, defaults to 1.0): Number by which positions are divided (linear interpolation), as
            in checkpoints whose context was extended.
        intermediate_size (`int`, *optional*): Width of the gated MLP; `None`: 8/3 of `hidden_size`, rounded up to a
            multiple of 16.
        hidden_act (`str`, defaults to `"gelu"`): Activation of the MLP's gate.
        evo2_style_activations (`bool`, defaults to `True`): Only the first block has the activation `hidden_act`; the
            gates of the other blocks are linear.
        use_bias (`bool`, defaults to `True`): Biases of the output projections.
        use_qkv_bias (`bool`, defaults to `False`): Biases of the input projections.
        norm_type (`str`, defaults to `"rms_plus"`): As in `SSMConfig`; `"rms_plus"` is x / (rms(x) + ε); `"rms"` adds ε
            under the root.
        layer_norm_epsilon (`float`, defaults to 1e-6): ε of the norms.
        tie_word_embeddings (`bool`, defaults to `True`): Share the embedding with the language-model head.

    Examples:
        >>> from hf_ssm import Hyena2Config, Hyena2ForCausalLM
        >>> model = Hyena2ForCausalLM(Hyena2Config(hidden_size=32, num_hidden_layers=4))
    """

    model_type = "hf_ssm_hyena2"
    attribute_map: ClassVar[dict[str, str]] = {
        **SSMConfig.attribute_map,
        "d_conv": "conv_kernel",
        "layer_types": "mixer_types",
    }
    field_choices: ClassVar[dict[str, tuple[str | None, ...]]] = {
        **SSMConfig.field_choices,
        "init": ("real", "lin"),
        "norm_type": (*SSMConfig.field_choices["norm_type"], "rms_plus"),
    }
    positive_fields: ClassVar[tuple[str, ...]] = (
        *SSMConfig.positive_fields,
        *("conv_kernel", "short_filter_length", "short_filter_groups", "medium_filter_length", "medium_filter_groups"),
        *("long_filter_groups", "num_attention_heads", "num_key_value_heads", "intermediate_size"),
        *("rope_theta", "rope_scaling_factor"),
    )

    vocab_size: int = 512
    num_hidden_layers: int = 4
    mixer_types: list[str] | None = None
    short_filter_length: int = 7
    short_filter_groups: int | None = None
    medium_filter_length: int = 128
    medium_filter_groups: int | None = None
    medium_filter_decay: bool = True
    long_filter_groups: int | None = None
    state_size: int = 16
    complex_state: bool = False
    conv_kernel: int = 3
    use_conv_bias: bool = False
    num_attention_heads: int = 4
    num_key_value_heads: int | None = None
    rope_theta: float | int = 10000.0
    rope_scaling_factor: float | int = 1.0
    intermediate_size: int | None = None
    hidden_act: str = "gelu"
    evo2_style_activations: bool = True
    use_bias: bool = True
    use_qkv_bias: bool = False
    init: DerivedStr = None
    norm_type: str = "rms_plus"
    layer_norm_epsilon: float | int = 1e-6
    tie_word_embeddings: bool = True

    def _derive(self) -> None:
        if self.init is None:
            self.init = "lin" if self.complex_state else "real"
        if self.mixer_types is None:
            types: list[str] = []
            for layer in range(self.num_hidden_layers):
                convolutions = layer - types.count("full_attention")
                types.append("full_attention" if layer % 7 == 3 else LAYER_TYPES[convolutions % 3])
            self.mixer_types = types
        if self.num_key_value_heads is None:
            self.num_key_value_heads = self.num_attention_heads
        if self.intermediate_size is None:
            self.intermediate_size = -(-(8 * self.hidden_size) // 48) * 16
        for name in ("short_filter_groups", "medium_filter_groups", "long_filter_groups"):
            if getattr(self, name) is None:
                setattr(self, name, self.hidden_size)

    def validate_layer_type(self) -> None:
        """Accept the names of `LAYER_TYPES`: transformers knows none for convolutions of different lengths."""

    def check(self) -> None:
        super().check()
        unknown = sorted(set(self.mixer_types or ()) - set(LAYER_TYPES))
        if unknown or len(self.mixer_types or ()) != self.num_hidden_layers:
            raise ValueError(
                f"`layer_types` must be {self.num_hidden_layers} names (`num_hidden_layers`) among "
                f"{', '.join(map(repr, LAYER_TYPES))}, got {self.mixer_types!r}."
            )
        groups = [f"{kind}_filter_groups" for kind in ("short", "medium", "long")]
        divisors = [("hidden_size", name) for name in (*groups, "num_attention_heads")]
        for whole, name in (*divisors, ("num_attention_heads", "num_key_value_heads")):
            if getattr(self, whole) % getattr(self, name):
                raise ValueError(
                    f"`{name}`={getattr(self, name)} must divide `{whole}`={getattr(self, whole)}: change one of them."
                )
        if (self.hidden_size // self.num_attention_heads) % 2:
            raise ValueError(
                f"`hidden_size` / `num_attention_heads` = {self.hidden_size // self.num_attention_heads} must be even: "
                "the rotary embedding rotates pairs of channels."
            )
        if self.complex_state != (self.init == "lin"):
            raise ValueError(
                f"`init`={self.init!r} does not fit `complex_state={self.complex_state}`: real exponentials need "
                "init='real', and complex exponentials need init='lin'. Leave `init` out."
            )
        if self.bidirectional:
            raise ValueError("`bidirectional=True` is not possible, as attention is causal: leave it out.")

    @classmethod
    def can_be_two_sided(cls, given: Mapping[str, Any]) -> bool:
        """False: attention is causal."""
        return False

    @property
    def sobolev_step(self) -> float:
        """1: the filters have no step size."""
        return 1.0

    @property
    def stores_pairs(self) -> bool:
        """False: the states are real."""
        return False

    @property
    def has_frequencies(self) -> bool:
        """Whether the exponentials oscillate."""
        return self.complex_state

    @property
    def block_size(self) -> int:
        """States of a long filter; those of complex exponentials and of their conjugates."""
        return 2 * self.state_size if self.complex_state else self.state_size

    @property
    def no_alpha_rule(self) -> str | None:
        """Why there is no rule for the largest useful `frequency_scale`."""
        if self.complex_state:
            return None
        return "the filters of StripedHyena 2 are taps and real exponentials: they have no frequencies to scale."

    @property
    def mlp_size(self) -> int | None:
        """Width of each block's MLP."""
        return self.intermediate_size

    @property
    def num_tau_layers(self) -> int:
        """Layers that have a kernel, and so τ: all but attention."""
        return sum(kind != "full_attention" for kind in self.mixer_types or ())


__all__ = ["LAYER_TYPES", "Hyena2Config"]
