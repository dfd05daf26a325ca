"""State space models on the Hugging Face stack, with the theory of SSMs as config flags.

Importing the package registers its models with transformers' Auto classes. The Trainer, the probes, data and Hub
functions are imported when they are first used.
"""

import importlib
from typing import Any

from hf_ssm.utils.versions import note_newer_transformers

__version__ = "0.1.0"

_LAZY = {
    "MaskingProbe": "hf_ssm.probes",
    "MaskingResult": "hf_ssm.probes",
    "MaskingResults": "hf_ssm.probes",
    "ParameterMovement": "hf_ssm.training.movement",
    "OneHotModel": "hf_ssm.inference",
    "SSMCache": "hf_ssm.models.base.cache",
    "SSMTrainer": "hf_ssm.training",
    "TauLogger": "hf_ssm.training",
    "attention_matrix": "hf_ssm.probes",
    "build_byte_tokenizer": "hf_ssm.tokenization",
    "build_dna_tokenizer": "hf_ssm.tokenization",
    "build_evo2_tokenizer": "hf_ssm.tokenization",
    "build_listops_tokenizer": "hf_ssm.tokenization",
    "build_word_tokenizer": "hf_ssm.tokenization",
    "compress": "hf_ssm.analysis.compression",
    "deep_lift": "hf_ssm.probes",
    "deep_lift_rules": "hf_ssm.probes",
    "dependency_map": "hf_ssm.inference",
    "embed": "hf_ssm.inference",
    "embed_variants": "hf_ssm.inference",
    "forecast": "hf_ssm.inference",
    "log_likelihoods": "hf_ssm.inference",
    "predict": "hf_ssm.inference",
    "rescale_init_": "hf_ssm.training",
    "saturate": "hf_ssm.inference",
    "score_variants": "hf_ssm.inference",
    "tau_loss": "hf_ssm.training",
    "theory_report": "hf_ssm.analysis.report",
}
# Packages that are attributes without an import of their own, as in `hf_ssm.hub.push`.
_PACKAGES = ("data", "hub", "inference", "metrics", "parallel", "probes", "theory", "training", "tuning")


def _register_families() -> dict[str, type]:
    """Register the families with the Auto classes, and return their classes by name."""
    try:
        from hf_ssm.models.registry import FAMILIES
    except (AttributeError, ImportError, KeyError, TypeError) as error:
        note_newer_transformers(error)
        raise
    classes = [cls for family in FAMILIES.values() for cls in (family.config_class, *family.model_classes.values())]
    return {cls.__name__: cls for cls in classes}


# False only for help of the command, see hf_ssm_command.py.
_CLASSES = _register_families() if globals().get("registers_families", True) else {}
globals().update(_CLASSES)

__all__ = sorted([*_CLASSES, *_LAZY])


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return importlib.import_module(f"{__name__}.{name}")
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    special = (name for name in globals() if name.startswith("__"))
    return sorted({*__all__, *_PACKAGES, *special})
