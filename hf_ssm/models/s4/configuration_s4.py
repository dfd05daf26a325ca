"""Configuration of the linear time-invariant state space models S4 and S4D."""

from typing import ClassVar

from hf_ssm.models.base.configuration import SSMConfig, strict_config
from hf_ssm.models.base.field_checks import check_discrete_poles


@strict_config
class S4Config(SSMConfig):
    r"""
    S4 and S4D: each block is a norm, a state space convolution, an activation and a (gated) linear map. See
    `SSMConfig` for the arguments all families share.

    Args:
        num_hidden_layers (`int`, defaults to 4): Number of blocks.
        kernel_type (`str`, defaults to `"s4d"`): `"s4d"` (diagonal state matrix) or `"s4"` (diagonal plus rank one;
            exactly HiPPO-LegS with `init="legs"`, and with a random rank-one term otherwise).
        init (`str`, defaults to `"legs"`): As in `SSMConfig`; or `"dfout"` (S4D-DFouT, for S4D only): the poles of all
            channels of a layer are a uniform grid of angles on circles of radius exp(-ξ/2), with ξ of each channel from
            [time_step_min, time_step_max]. ξ is the step size Δ. Training Δ also moves the angles; the paper trains ξ
            and the angles separately.
        n_ssm (`int`, *optional*): Number of copies of A and B, a divisor of `hidden_size`; channel c uses copy c mod
            n_ssm. 1: all channels of a layer share A and B, as in the papers' models of the Long Range Arena (Liu & Li,
            Appendix A; state-spaces/s4). `None`: each channel has its own copy. Each channel always has its own Δ and
            C.
        use_skip (`bool`, defaults to `True`): Feed-through D u.
        hidden_act (`str`, defaults to `"gelu"`): Activation after the convolution; `"linear"` for none.
        output_glu (`bool`, defaults to `True`): Linear map to twice the width and gated linear unit; `False`: a linear
            map.
        use_final_norm (`bool`, defaults to `True`): With `norm_first`, a norm after the last block.

    Examples:
        >>> from hf_ssm import S4Config, S4ForSequenceClassification
        >>> model = S4ForSequenceClassification(S4Config(init="lin", frequency_scale=2.0, bidirectional=True))
    """

    model_type = "hf_ssm_s4"

    field_choices: ClassVar[dict[str, tuple[str | None, ...]]] = {
        **SSMConfig.field_choices,
        "init": (*SSMConfig.field_choices["init"], "dfout"),
        "kernel_type": ("s4d", "s4"),
    }

    positive_fields: ClassVar[tuple[str, ...]] = (*SSMConfig.positive_fields, "n_ssm")

    num_hidden_layers: int = 4
    kernel_type: str = "s4d"
    n_ssm: int | None = None
    use_skip: bool = True
    hidden_act: str = "gelu"
    output_glu: bool = True
    use_final_norm: bool = True

    def check(self) -> None:
        super().check()
        check_discrete_poles(self, self.kernel_type)
        if self.n_ssm is not None and self.hidden_size % self.n_ssm:
            raise ValueError(
                f"`n_ssm`={self.n_ssm} must divide the {self.hidden_size} channels (`hidden_size`): give 1 to share A "
                "and B among all of them."
            )

    @property
    def has_final_norm(self) -> bool:
        return self.norm_first and self.use_final_norm


__all__ = ["S4Config"]
