"""Data sets of sequences: a generator, and a loader of Hub data sets, tables, FASTA files and images."""

from hf_ssm.data.augment import with_random_reverse_complement, with_random_unknown_bases
from hf_ssm.data.features import SignalFeatureExtractor
from hf_ssm.data.loading import GENERATORS, label_names, load_sequences
from hf_ssm.data.motifs import planted_motifs
from hf_ssm.data.streaming import stream_sequences
from hf_ssm.data.tokenized import PairCollator, align_labels, tokenize

__all__ = [
    "GENERATORS",
    "PairCollator",
    "SignalFeatureExtractor",
    "align_labels",
    "label_names",
    "load_sequences",
    "planted_motifs",
    "stream_sequences",
    "tokenize",
    "with_random_reverse_complement",
    "with_random_unknown_bases",
]
