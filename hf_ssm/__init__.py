"""State space models on the Hugging Face stack, with the theory of SSMs as config flags.

Importing the package registers its models with transformers' Auto classes, and does nothing else. Classes that need
torch are imported when they are first used.
"""

import importlib
import os
from typing import Any

from transformers import AutoConfig

from hf_ssm.models.configuration_common import SSMConfig
from hf_ssm.models.configuration_hyena import HyenaConfig
from hf_ssm.models.configuration_s4 import S4Config
from hf_ssm.models.configuration_selective import SelectiveSSMConfig
from hf_ssm.models.registry import FAMILIES, HEADS, modeling_module

__version__ = "0.1.0"

_MODELS = {
    f"{family}{head}": modeling_module(config_class) for family, config_class in FAMILIES.items() for head in HEADS
}
_LAZY = {
    **_MODELS,
    "MaskingProbe": "hf_ssm.probes",
    "MaskingResult": "hf_ssm.probes",
    "MaskingResults": "hf_ssm.probes",
    "ParameterMovement": "hf_ssm.analysis.movement",
    "SSMCache": "hf_ssm.models.cache",
    "SSMTrainer": "hf_ssm.training",
    "attention_matrix": "hf_ssm.probes",
    "build_byte_tokenizer": "hf_ssm.tokenization",
    "build_dna_tokenizer": "hf_ssm.tokenization",
    "build_listops_tokenizer": "hf_ssm.tokenization",
    "build_word_tokenizer": "hf_ssm.tokenization",
    "rescale_init_": "hf_ssm.training",
    "tau_loss": "hf_ssm.training",
    "theory_report": "hf_ssm.analysis.report",
}
# Packages that people reach as attributes, `hf_ssm.hub.push` say, without having imported them.
_PACKAGES = ("data", "hub", "metrics", "probes", "theory")

__all__ = ["HyenaConfig", "S4Config", "SelectiveSSMConfig", *sorted(_LAZY)]


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return importlib.import_module(f"{__name__}.{name}")
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY, *_PACKAGES})


def _register_models() -> None:
    """Register the model classes, which import torch; run when the first configuration is made."""
    SSMConfig.on_first_use = None
    import transformers

    for family, config_class in FAMILIES.items():
        for head, auto_class in HEADS.items():
            model_class = getattr(importlib.import_module(_MODELS[f"{family}{head}"]), f"{family}{head}")
            getattr(transformers, auto_class).register(config_class, model_class, exist_ok=True)


def _add_code(config: SSMConfig, folder: str | os.PathLike[str]) -> None:
    """Put the code of a model beside its configuration; run whenever one is saved."""
    from hf_ssm.hub.exporting import add_code

    add_code(config, folder)


def _upload(*args: Any, **kwargs: Any) -> Any:
    """Push what `push_to_hub` of a model has saved."""
    from hf_ssm.hub.pushing import push_saved

    return push_saved(*args, **kwargs)


for _config_class in FAMILIES.values():
    AutoConfig.register(_config_class.model_type, _config_class, exist_ok=True)
SSMConfig.on_first_use = _register_models
SSMConfig.on_save = _add_code
SSMConfig.on_upload = _upload
