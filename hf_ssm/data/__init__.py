"""Sequences to train on: generators, and a loader of Hub data sets, tables, FASTA and images.

The names are imported on first use: `datasets` (with pandas and pyarrow) costs half a second, and nobody who
only wants a model should pay it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hf_ssm.data.augment import with_random_reverse_complement as with_random_reverse_complement
    from hf_ssm.data.features import SignalFeatureExtractor as SignalFeatureExtractor
    from hf_ssm.data.loading import GENERATORS as GENERATORS
    from hf_ssm.data.loading import label_names as label_names
    from hf_ssm.data.loading import load_sequences as load_sequences
    from hf_ssm.data.majority import sparse_majority as sparse_majority
    from hf_ssm.data.motifs import planted_motifs as planted_motifs
    from hf_ssm.data.tokenized import tokenize as tokenize

_MODULES = {
    "GENERATORS": "loading",
    "SignalFeatureExtractor": "features",
    "label_names": "loading",
    "load_sequences": "loading",
    "planted_motifs": "motifs",
    "sparse_majority": "majority",
    "tokenize": "tokenized",
    "with_random_reverse_complement": "augment",
}
__all__ = [
    "GENERATORS",
    "SignalFeatureExtractor",
    "label_names",
    "load_sequences",
    "planted_motifs",
    "sparse_majority",
    "tokenize",
    "with_random_reverse_complement",
]


def __getattr__(name: str) -> Any:
    """Import the module of a public name when it is first asked for."""
    if name in _MODULES:
        return getattr(import_module(f"hf_ssm.data.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
