"""Configuration of StripedHyena 2, the architecture of Evo 2."""

from collections.abc import Mapping
from typing import Any, ClassVar

from hf_ssm.models.base.configuration import NORMS
from hf_ssm.models.base.fields import DerivedInt, DerivedStr, one_of, positive, require, require_divisor, strict_config
from hf_ssm.models.base.shared_settings import LayerTypesConfig

LAYER_TYPES = ("short_conv", "medium_conv", "long_conv", "full_attention")
"""Types of layers by their mixer of positions."""


@strict_config
class Hyena2Config(LayerTypesConfig):
    r"""
    StripedHyena 2: gated convolutions of three lengths and rotary attention, each followed by a gated MLP. See
    `SSMConfig` and `LayerTypesConfig` for further arguments. `hf-ssm convert` reads checkpoints of Evo 2.

    Args:
        vocab_size (`int`, defaults to 512): Number of tokens; the tokens of Evo 2 are bytes, and 256 ids are unused.
        num_hidden_layers (`int`, defaults to 4): Number of blocks.
        layer_types (list of `str`, *optional*): What mixes positions in each layer: `"short_conv"` (explicit taps),
            `"medium_conv"` (more explicit taps, regularised by a decay), `"long_conv"` (a sum of exponentials, of any
            length) or `"full_attention"`. `None`: as in Evo 2 of 7 billion parameters, short, medium and long in turn,
            with attention in the layers 3, 10, 17, ...
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
        intermediate_size (`int`, *optional*): Width of the gated MLP; `None`: 8/3 of `hidden_size`, rounded up to a
            multiple of 16.
        hidden_act (`str`, defaults to `"gelu"`): Activation of the MLP's gate.
        evo2_style_activations (`bool`, defaults to `True`): Only the first block has the activation `hidden_act`; the
            gates of the other blocks are linear.
        use_bias (`bool`, defaults to `True`): Biases of the output projections.
        norm_type (`str`, defaults to `"rms_plus"`): As in `SSMConfig`; `"rms_plus"` is x / (rms(x) + ε); `"rms"` adds ε
            under the root.
        layer_norm_epsilon (`float`, defaults to 1e-6): ε of the norms.
        tie_word_embeddings (`bool`, defaults to `True`): Share the embedding with the language-model head.

    Examples:
        >>> from hf_ssm import Hyena2Config, Hyena2ForCausalLM
        >>> model = Hyena2ForCausalLM(Hyena2Config(hidden_size=32, num_hidden_layers=4))
    """

    model_type = "hf_ssm_hyena2"
    attribute_map: ClassVar[dict[str, str]] = {**LayerTypesConfig.attribute_map, "d_conv": "conv_kernel"}
    known_layer_types = LAYER_TYPES

    vocab_size: int = positive(512)
    num_hidden_layers: int = positive(4)
    short_filter_length: int = positive(7)
    short_filter_groups: DerivedInt = positive(None)
    medium_filter_length: int = positive(128)
    medium_filter_groups: DerivedInt = positive(None)
    medium_filter_decay: bool = True
    long_filter_groups: DerivedInt = positive(None)
    state_size: int = positive(16)
    complex_state: bool = False
    conv_kernel: int = positive(3)
    use_conv_bias: bool = False
    hidden_act: str = "gelu"
    evo2_style_activations: bool = True
    use_bias: bool = True
    init: DerivedStr = one_of("real", "lin", default=None)
    norm_type: str = one_of("rms_plus", *NORMS)
    layer_norm_epsilon: float | int = positive(1e-6, 1e-20, 1e6)
    tie_word_embeddings: bool = True
    hyena_order = 2
    use_output_projection = True
    stores_pairs = False

    def _derive(self) -> None:
        super()._derive()
        if self.init is None:
            self.init = "lin" if self.complex_state else "real"
        if self.mixer_types is None:
            types: list[str] = []
            for layer in range(self.num_hidden_layers):
                convolutions = layer - types.count("full_attention")
                types.append("full_attention" if layer % 7 == 3 else LAYER_TYPES[convolutions % 3])
            self.mixer_types = types
        if self.intermediate_size is None:
            self.intermediate_size = -(-(8 * self.hidden_size) // 48) * 16
        for name in ("short_filter_groups", "medium_filter_groups", "long_filter_groups"):
            if getattr(self, name) is None:
                setattr(self, name, self.hidden_size)

    def check(self) -> None:
        super().check()
        for kind in ("short", "medium", "long"):
            require_divisor(self, f"{kind}_filter_groups", "hidden_size")
        require(
            self.complex_state == (self.init == "lin"),
            f"`init`={self.init!r} does not fit `complex_state={self.complex_state}`: real exponentials need "
            "init='real', and complex exponentials need init='lin'. Leave `init` out.",
        )

    @classmethod
    def can_be_two_sided(cls, given: Mapping[str, Any]) -> bool:
        """False: attention is causal."""
        return False

    @property
    def has_frequencies(self) -> bool:
        return self.complex_state

    @property
    def block_size(self) -> int:
        return 2 * self.state_size if self.complex_state else self.state_size

    @property
    def no_alpha_rule(self) -> str | None:
        if self.complex_state:
            return None
        return "the filters of StripedHyena 2 are taps and real exponentials: they have no frequencies to scale."


__all__ = ["LAYER_TYPES", "Hyena2Config"]
