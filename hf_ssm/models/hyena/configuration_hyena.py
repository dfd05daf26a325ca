"""Configuration of the gated long convolutions (Hyena, H3, Nishikawa & Suzuki's network)."""

from collections.abc import Collection
from typing import Any, ClassVar

from hf_ssm.models.base.configuration import SSMConfig, strict_config
from hf_ssm.models.base.field_checks import check_discrete_poles


@strict_config
class HyenaConfig(SSMConfig):
    r"""
    Gated long convolutions: in-projection to `hyena_order + 1` streams, a short convolution, then `hyena_order - 1`
    gated long convolutions and an MLP, pre-norm. See `SSMConfig` for the arguments all families share. Checkpoints of
    HyenaDNA (`LongSafari/hyenadna-*-hf`, of `model_type` "hyenadna") load through `from_pretrained`.

    The class of networks of Nishikawa & Suzuki, Section 3, is `hyena_order=1`, `filter_type="sinusoid"`,
    `conv_kernel=0`, `use_bias=False`, `use_skip=False`, `use_output_projection=False`, `hidden_act="relu"`, `mlp_depth`
    (L), `intermediate_size` (W), `norm_type="none"`, `use_residual=False` and `output_clip` (R); see
    `examples/gated_convolution.py`.

    Args:
        hyena_order (`int`, defaults to 2): Number of gates; the number of long filters is one less. 1: one gate after
            one filter, (W_Q h) ⊙ (k ∗ W_V h), as in Nishikawa & Suzuki.
        filter_type (`str`, defaults to `"implicit"`): `"implicit"` (Hyena: sine MLP with exponential window),
            `"sinusoid"` (Nishikawa & Suzuki 2025, Section 3), `"s4d"` or `"s4"` (H3-style).
        conv_kernel (`int`, defaults to 3): Taps of the short convolution; 0: no short convolution.
        intermediate_size (`int`, *optional*): Width of the MLP; `None`: 4 · hidden_size.
        mlp_depth (`int`, defaults to 2): Number of linear maps of the MLP, with activations between them.
        use_skip (`bool`, defaults to `True`): Feed-through of the long convolutions.
        use_output_projection (`bool`, defaults to `True`): Linear map after the last gate.
        max_position_embeddings (`int`, defaults to 1024): Longest input of the implicit filter, which normalises the
            time axis of this filter. Other filter types have no limit.
        filter_order (`int`, defaults to 64): Width of the implicit filter's MLP.
        filter_emb_dim (`int`, defaults to 5): Width of the positional embedding of the implicit filter: odd, three or
            more (time, and pairs of cosine and sine).
        num_inner_mlps (`int`, defaults to 2): Hidden layers of the implicit filter's MLP after the first.
        filter_activation_frequency (`float`, defaults to 10.0): Frequency ω of the activation sin(ω x) of the implicit
            filter.
        filter_train_frequency (`bool`, defaults to `True`): Learn ω per unit.
        filter_window_shift (`float`, defaults to 0.05): Floor added to the exponential window of the implicit filter.
        filter_positions (`str`, defaults to `"computed"`): `"computed"`: positional embedding and window of the
            implicit filter come from their formulas. `"stored"`: they are tensors of the checkpoint, initialised by
            the formulas. `"learned"`: the embedding is also trained, as in HyenaDNA.
        sinusoid_window (`int`, *optional*): U of Nishikawa & Suzuki, in tokens; `None`: max_position_embeddings.
        sinusoid_inclusive (`bool`, defaults to `False`): The lags of the sinusoid filter are 0 to U - 1, as in the
            paper's proof of Theorem F.1 (Appendix H). `True`: 0 to U, as in its Appendices E and F.
        init (`str`, defaults to `"legs"`): As in `S4Config`; `"dfout"` for the filter "s4d" only.
        n_ssm (`int`, *optional*): Number of copies of A and B of the filters "s4d" and "s4", a divisor of
            (hyena_order - 1) · hidden_size; filter c uses copy c mod n_ssm. `None`: each filter has its own copy.
        use_bias (`bool`, defaults to `True`): Biases of the projections.
        hidden_act (`str`, defaults to `"gelu_pytorch_tanh"`): Activation of the MLP.

    Examples:
        >>> from hf_ssm import HyenaConfig, HyenaForCausalLM
        >>> model = HyenaForCausalLM(HyenaConfig(hidden_size=32, filter_type="s4d", sobolev_order=0.5))
    """

    model_type = "hf_ssm_hyena"
    attribute_map: ClassVar[dict[str, str]] = {
        **SSMConfig.attribute_map,
        "d_inner": "intermediate_size",
        "d_conv": "conv_kernel",
        "max_seq_len": "max_position_embeddings",
        "emb_dim": "filter_emb_dim",
        "short_filter_order": "conv_kernel",
        "activation_freq": "filter_activation_frequency",
        "train_freq": "filter_train_frequency",
        "embed_dropout": "embedding_dropout",
        "hyena_dropout": "hidden_dropout",
    }

    field_choices: ClassVar[dict[str, tuple[str | None, ...]]] = {
        **SSMConfig.field_choices,
        "init": (*SSMConfig.field_choices["init"], "dfout"),
        "filter_positions": ("computed", "stored", "learned"),
        "filter_type": ("implicit", "sinusoid", "s4d", "s4"),
    }
    positive_fields: ClassVar[tuple[str, ...]] = (
        *SSMConfig.positive_fields,
        *("filter_activation_frequency", "filter_order", "hyena_order", "intermediate_size"),
        *("max_position_embeddings", "mlp_depth", "n_ssm", "sinusoid_window"),
    )
    non_negative_fields: ClassVar[tuple[str, ...]] = (*SSMConfig.non_negative_fields, "conv_kernel", "num_inner_mlps")
    field_ranges: ClassVar[dict[str, tuple[float, float]]] = {
        **SSMConfig.field_ranges,
        "filter_activation_frequency": (0.0, 1e6),
        "filter_window_shift": (-1e6, 1e6),
    }
    filter_fields: ClassVar[frozenset[str]] = frozenset(
        {
            *("filter_type", "max_position_embeddings", "filter_order", "filter_emb_dim", "num_inner_mlps"),
            *("filter_activation_frequency", "filter_train_frequency", "filter_window_shift", "filter_positions"),
            *("sinusoid_window", "sinusoid_inclusive"),
        }
    )

    hyena_order: int = 2
    filter_type: str = "implicit"
    conv_kernel: int = 3
    intermediate_size: int | None = None
    mlp_depth: int = 2
    use_skip: bool = True
    use_output_projection: bool = True
    max_position_embeddings: int = 1024
    filter_order: int = 64
    filter_emb_dim: int = 5
    num_inner_mlps: int = 2
    filter_activation_frequency: float | int = 10.0
    filter_train_frequency: bool = True
    filter_window_shift: float | int = 0.05
    filter_positions: str = "computed"
    sinusoid_window: int | None = None
    sinusoid_inclusive: bool = False
    n_ssm: int | None = None
    use_bias: bool = True
    hidden_act: str = "gelu_pytorch_tanh"

    def _derive(self) -> None:
        if self.intermediate_size is None:
            self.intermediate_size = 4 * self.hidden_size
        if self.sinusoid_window is None:
            self.sinusoid_window = self.max_position_embeddings

    def check(self) -> None:
        super().check()
        check_discrete_poles(self, self.filter_type)
        self.check_products()
        if self.filter_emb_dim < 3 or self.filter_emb_dim % 2 == 0:
            raise ValueError(
                "`filter_emb_dim` must be odd and at least 3 (time, and pairs of cosine and sine), "
                f"got {self.filter_emb_dim}: use {max(3, self.filter_emb_dim + 1)}."
            )

        if self.n_ssm is not None:
            self._check_copies(self.n_ssm)

    def _check_copies(self, copies: int) -> None:
        filters = self.num_filters * self.hidden_size
        if self.filter_type not in ("s4d", "s4"):
            raise ValueError(
                f"`n_ssm`={copies} needs `filter_type='s4d'` or 's4', but {self.filter_type!r} has no state matrix: "
                "leave out `n_ssm`."
            )
        if filters % copies:
            raise ValueError(
                f"`n_ssm`={copies} must divide the {filters} filters of a layer: give 1 to share A and B among all "
                "filters."
            )

    @property
    def sobolev_step(self) -> float:
        """Smallest step size that the frequencies of a Sobolev filter are measured in; 1 for filters without steps."""
        return super().sobolev_step if self.filter_type in ("s4d", "s4") else 1.0

    @property
    def has_frequencies(self) -> bool:
        """Whether there are frequencies that `frequency_scale` and `frequency_shift` act on at initialisation."""
        return self.filter_type in ("implicit", "sinusoid") or self.init != "real"

    @property
    def no_alpha_rule(self) -> str | None:
        """Why there is no rule for the largest useful `frequency_scale`; `None` if there is one."""
        if self.filter_type in ("implicit", "sinusoid"):
            return (
                f"`filter_type`={self.filter_type!r} has no state matrix, and the rule for α needs one: use 's4d' or "
                "'s4'."
            )
        return super().no_alpha_rule

    @property
    def mlp_size(self) -> int | None:
        """Width of each block's MLP."""
        return self.intermediate_size

    @property
    def num_mlp_layers(self) -> int:
        """Linear maps of each block's MLP."""
        return self.mlp_depth

    @property
    def num_filters(self) -> int:
        """Long filters of a layer for each channel."""
        return max(1, self.hyena_order - 1)

    @property
    def longest_input(self) -> int | None:
        """Longest input in tokens; `None` where there is no limit."""
        return self.max_position_embeddings if self.filter_type == "implicit" else None

    @classmethod
    def fields_for_any_length(cls, given: Collection[str]) -> dict[str, Any]:
        """The filter "s4d", unless a field of the other filters, or `filter_type`, is given."""
        return {} if not cls.filter_fields.isdisjoint(given) else {"filter_type": "s4d"}


__all__ = ["HyenaConfig"]
