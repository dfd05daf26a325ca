"""Mean effects of motifs in background sequences, by tangermeme's substitutions through models of hf_ssm.

Legend: `B` backgrounds, `L` bases of a background, `W` of a motif, `K` outputs of the model.
"""

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import torch
from datasets import Dataset
from torch import Tensor

from hf_ssm.data.motif_files import check_tangermeme, motif_of_letters
from hf_ssm.data.records import as_records
from hf_ssm.inference.model import check_finite, log_odds
from hf_ssm.inference.one_hot import OneHotModel, one_hot_of, sequences_of
from hf_ssm.inference.parts import table_of
from hf_ssm.utils.evaluation import evaluating

__all__ = ["Insertion", "Marginalizer", "marginalize", "shuffled"]

_LOG_LIKELIHOOD = {"causal": "log_likelihood", "masked": "pseudo_log_likelihood"}


class Insertion(NamedTuple):
    """A motif at a position.

    Attributes:
        name: Name of the motif.
        matrix: Its probabilities on the strand, `(4, W)`.
        strand: "+", or "-" for the reverse complement of the motif.
        position: Bases before it.
    """

    name: str
    matrix: np.ndarray
    strand: str
    position: int

    @property
    def best(self) -> np.ndarray:
        """One-hot most probable bases `(4, W)`; 0 where all four are equal.

        Of equally probable bases it is the first one of A, C, G and T, on strand "-" its complement, so that the bases
        of the strands are reverse complements.
        """
        turn = -1 if self.strand == "-" else 1
        matrix = self.matrix[::turn, ::turn]
        one_hot = np.eye(4)[matrix.argmax(0)].T * (matrix.max(0) > matrix.min(0))
        return np.asarray(one_hot[::turn, ::turn])


def marginalize(
    model: Any,
    tokenizer: Any,
    motifs: Mapping[str, Any] | Sequence[str],
    backgrounds: Iterable[Any],
    *,
    target: str | int | None = None,
    position: int | None = None,
    scan: int | None = None,
    samples: int | None = None,
    reverse_complement: bool = False,
    both_strands: bool = False,
    seed: int = 0,
    max_tokens_per_batch: int = 16384,
) -> Dataset:
    """Mean effect of inserting a motif into backgrounds, compared with the same backgrounds without the motif.

    The motif replaces the same number of bases. An effect is the change of the log-odds of a class (in nats), of the
    value of a regressor, or of the log-likelihood of the whole sequence under a language model (in nats; for a masked
    model, the pseudo-log-likelihood). Needs tangermeme, the extra `genomics`.

    Args:
        model: A classifier or regressor of sequences, or a language model, of hf_ssm or transformers.
        tokenizer: Its tokenizer, a fast one.
        motifs: Name to motif: IUPAC letters, or probabilities `(4, W)`, as from
            `hf_ssm.data.motif_files.read_motifs`; or a list of letters.
        backgrounds: DNA sequences of one length: texts, mappings with a column "sequence", or a Dataset. They are read
            as capitals.
        target: Name or number of the class or value; default: class 1 of two, otherwise all.
        position: Bases before the motif; default: the middle, L // 2 - W // 2.
        scan: Insert the motif at every `scan`-th position instead, from 0 on.
        samples: Draw this number of sequences from the probabilities of the motif for each background, and take their
            mean; by default, insert the most probable base of each position. Positions of equal probabilities keep the
            background.
        reverse_complement: Also insert the reverse complements of the motifs, on strand "-".
        both_strands: Average the outputs over the whole sequence and its reverse complement.
        seed: Seed of the samples.
        max_tokens_per_batch: Largest number of tokens in a batch, default 16384.

    Returns:
        A Dataset with a row for each motif, strand, position and output: `motif`, `strand`, `position`, `inserted` (the
        most probable bases; N keeps the background), `output` (name of the class or value, or the kind of likelihood),
        `backgrounds` (their number), `before` (mean without the motif), `effect` (mean change) and `standard_error` of
        the effect over the backgrounds; NaN for one background.

    Raises:
        ImportError: tangermeme is missing.
        ValueError: The model does not give a number for a sequence, a target is unknown, a motif is longer than the
            backgrounds or beyond their ends, the backgrounds have different lengths, or the model gives NaN.
    """
    marginalizer = Marginalizer(
        OneHotModel(model, tokenizer, both_strands=both_strands, max_tokens_per_batch=max_tokens_per_batch),
        [record.sequence for record in as_records(backgrounds)],
        target=target,
        samples=samples,
        seed=seed,
    )
    named = motifs if isinstance(motifs, Mapping) else {letters: letters for letters in motifs}
    matrices = {name: motif_of_letters(m) if isinstance(m, str) else np.asarray(m) for name, m in named.items()}
    items = list(marginalizer.insertions(matrices, position, scan, reverse_complement))
    return table_of(items, marginalizer.table, part_size=1)


def shuffled(sequences: Iterable[str], copies: int, seed: int = 0) -> list[str]:
    """Shuffled copies of sequences of one length, each with the dinucleotides of its sequence (by tangermeme).

    Args:
        sequences: DNA.
        copies: Number of copies of each.
        seed: Seed of the shuffles.
    """
    check_tangermeme("a dinucleotide shuffle")
    from tangermeme.ersatz import dinucleotide_shuffle

    copied = dinucleotide_shuffle(one_hot_of(sequences), n=copies, random_state=seed, allow_N=True)
    return sequences_of(copied.flatten(0, 1))


class Marginalizer:
    """Computes the table of `marginalize`.

    Args:
        model: The model.
        backgrounds: DNA sequences of one length.
        target, samples, seed: As for `marginalize`.

    Raises:
        ImportError, ValueError: As for `marginalize`.
    """

    def __init__(
        self,
        model: OneHotModel,
        backgrounds: Sequence[str],
        *,
        target: str | int | None = None,
        samples: int | None = None,
        seed: int = 0,
    ):
        check_tangermeme("marginalisation")
        if samples is not None and samples < 1:
            raise ValueError(f"`samples`={samples}: give a positive number.")
        self.model, self.samples, self.seed = model, samples, seed
        self.one_hot = one_hot_of(backgrounds)
        self._outputs = self._chosen_outputs(target)
        self._before: Tensor | None = None

    @property
    def length(self) -> int:
        """Bases of a background."""
        return int(self.one_hot.shape[-1])

    def _chosen_outputs(self, target: str | int | None) -> dict[str, int]:
        """Name and number of the outputs in the table."""
        if self.model.reader.head != "class":
            if target is not None:
                raise ValueError(f"`target`={target!r}: a language model has no target: leave `target` out.")
            return {_LOG_LIKELIHOOD[str(self.model.reader.head)]: 0}
        config = self.model.model.config
        names = [str(config.id2label.get(number, number)) for number in range(config.num_labels)]
        if target is None:
            chosen = [1] if self.model.is_exclusive and len(names) == 2 else list(range(len(names)))
            return {names[number]: number for number in chosen}
        number = names.index(str(target)) if str(target) in names else str(target)
        if not str(number).isdecimal() or int(number) >= len(names):
            raise ValueError(
                f"`target`={target!r}: the model has the outputs {', '.join(names[:20])}; give the name or the "
                "number (from 0) of an output."
            )
        return {names[int(number)]: int(number)}

    def insertions(
        self,
        motifs: Mapping[str, np.ndarray],
        position: int | None = None,
        scan: int | None = None,
        reverse_complement: bool = False,
    ) -> Iterator[Insertion]:
        """Each motif on each strand at each position; the arguments are those of `marginalize`."""
        if position is not None and scan is not None:
            raise ValueError(f"`position`={position}, `scan`={scan}: give either a position or a scan.")
        if scan is not None and scan < 1:
            raise ValueError(f"`scan`={scan}: give a positive number of bases.")
        for name, matrix in motifs.items():
            width = matrix.shape[1]
            if width > self.length:
                raise ValueError(
                    f"motif {name!r} has {width} bases, but the backgrounds have only {self.length}: give "
                    "longer backgrounds."
                )
            middle = self.length // 2 - width // 2
            starts = (
                [middle if position is None else position] if scan is None else range(0, self.length - width + 1, scan)
            )
            if not 0 <= starts[0] <= self.length - width:
                raise ValueError(
                    f"`position`={position}: motif {name!r} has {width} bases; give 0 to {self.length - width}."
                )
            strands = {"+": matrix} | ({"-": matrix[::-1, ::-1]} if reverse_complement else {})
            for strand, oriented in strands.items():
                for start in starts:
                    yield Insertion(name, oriented, strand, start)

    def table(self, insertions: Sequence[Insertion]) -> pa.Table:
        """The rows of insertions."""
        from tangermeme.ersatz import substitute

        rows = []
        for insertion in insertions:
            drawn = [substitute(self.one_hot, motif, start=insertion.position) for motif in self._motifs(insertion)]
            before = self._values_before()
            effects = torch.stack([self._values(one_hot) for one_hot in drawn]).mean(0) - before
            count, inserted = len(effects), _text(insertion.best)
            # Of one background, there is no standard error.
            spread = effects.std(0) / count**0.5 if count > 1 else torch.full_like(effects[0], torch.nan)
            for column, name in enumerate(self._outputs):
                numbers = before[:, column].mean(), effects[:, column].mean(), spread[column]
                rows.append(
                    (insertion.name, insertion.strand, insertion.position, inserted, name, count, *map(float, numbers))
                )
        names = ("motif", "strand", "position", "inserted", "output", "backgrounds", "before", "effect")
        return pa.table(dict(zip((*names, "standard_error"), map(list, zip(*rows, strict=True)), strict=True)))

    def _values_before(self) -> Tensor:
        if self._before is None:
            self._before = self._values(self.one_hot)
        return self._before

    def _motifs(self, insertion: Insertion) -> Iterator[Tensor]:
        """One-hot motifs `(1 or B, 4, W)`, 0 where the background stays."""
        best = insertion.best
        if self.samples is None:
            yield torch.from_numpy(np.ascontiguousarray(best)).to(torch.int8)[None]
            return
        # The same letters for an insertion, whichever others a command computes.
        key = zlib.crc32(f"{insertion.name} {insertion.strand} {insertion.position}".encode())
        rng = np.random.default_rng([self.seed, key])
        limits = insertion.matrix.cumsum(0)
        for _ in range(self.samples):
            draws = rng.random((len(self.one_hot), 1, best.shape[1])) * limits[-1]
            codes = (draws >= limits[:-1]).sum(1)
            letters = np.eye(4, dtype=np.int8)[codes].swapaxes(1, 2)
            yield torch.from_numpy(np.ascontiguousarray(letters * best.any(0)))

    def _values(self, one_hot: Tensor) -> Tensor:
        """The outputs of the table for one-hot sequences, `(B, outputs)`, float64."""
        from tangermeme.predict import predict

        with evaluating(self.model.model):
            size = max(1, self.model.reader.max_tokens_per_batch // self.length)
            logits = predict(self.model, one_hot, batch_size=size, device=self.model.reader.device).double()
        check_finite(logits)
        values = log_odds(logits) if self.model.is_exclusive else logits
        return values[:, list(self._outputs.values())]


def _text(one_hot: np.ndarray) -> str:
    return "".join("ACGT"[column.argmax()] if column.any() else "N" for column in one_hot.T)
