"""Converter of Caduceus checkpoints (`kuleshov-group/caduceus-*`, PlantCaduceus) to two-sided selective models.

Source: Schiff et al. 2024 (Caduceus); Zhai et al. 2025 (PlantCaduceus).
"""

from typing import Any

from hf_ssm.models.base.caduceus import CaduceusLayout
from hf_ssm.models.base.converter import Fields
from hf_ssm.models.base.mamba_ssm import convert_options
from hf_ssm.models.selective.convert_mamba import MIXER_NAMES, SSM_FIELDS
from hf_ssm.models.selective.modeling_selective import (
    SelectiveSSMForMaskedLM,
    SelectiveSSMForSequenceClassification,
    SelectiveSSMModel,
)

__all__ = ["CONVERTERS", "CaduceusConverter"]


class CaduceusConverter(CaduceusLayout):
    """Converts Caduceus; `from_pretrained` of the selective models reads its folders."""

    name = "Caduceus"
    version = "v1"
    heads = {
        "CaduceusForMaskedLM": SelectiveSSMForMaskedLM,
        "CaduceusForSequenceClassification": SelectiveSSMForSequenceClassification,
        "Caduceus": SelectiveSSMModel,
    }
    backbone_class = SelectiveSSMModel
    names = MIXER_NAMES

    def convert_ssm(self, options: Fields, hidden_size: int) -> dict[str, Any]:
        own = convert_options(options, SSM_FIELDS, "Mamba")
        return own | {"time_step_rank": own["time_step_rank"] or "auto"}


CONVERTERS = (CaduceusConverter(),)
