"""How likely a language model finds each base of a sequence, and how sure it is: per-base likelihood and entropy.

Legend: `L` tokens of a text, `N` measured bases of a text, `V` vocabulary.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import torch
from datasets import Dataset
from torch import Tensor

from hf_ssm.data.genome import Genome
from hf_ssm.data.records import reverse_complement
from hf_ssm.data.regions import Regions
from hf_ssm.data.tracks import Entries
from hf_ssm.inference.base_tokens import base_ids, base_tokens
from hf_ssm.inference.likelihoods import log_probs_of, without_end
from hf_ssm.inference.model import Encoded, SequenceModel, check_finite
from hf_ssm.inference.pseudo_likelihood import mask_token_of
from hf_ssm.inference.score import WindowLetters, mean_of_strands
from hf_ssm.utils.evaluation import evaluating

__all__ = ["BASE_TRACKS", "BaseTracks", "Chunk", "base_likelihoods", "entries_of_chunks"]

BASE_TRACKS = ("likelihood", "entropy")
"""Names of the per-base measures of language models."""

_BASES_PER_CALL = 2**17
_NEEDS = "a measure of each base", "`hf-ssm score` takes variants with any tokenizer"


def base_likelihoods(
    model: object,
    tokenizer: object,
    sequence: str,
    *,
    window: int = 1024,
    both_strands: bool = True,
    keep_case: bool = False,
    max_tokens_per_batch: int = 16384,
) -> Dataset:
    """Log-likelihood of each base of a sequence, and the entropy of the prediction in its place.

    A causal model predicts each base from those before it: the sequence is cut into chunks of `window // 2` bases, and
    each is read behind the bases before it, `window` in all. A base has thus from `window - window // 2` to
    `window - 1` bases of context, fewer only near the beginning of the sequence. A masked model predicts each base,
    masked alone, from the `window` bases of which it is the middle.

    Args:
        model: A causal or masked language model of hf_ssm or transformers.
        tokenizer: Its tokenizer, a fast one with one token for each base.
        sequence: The bases.
        window: See above, default 1024.
        both_strands: Average over both strands, default True. A strand without a value is left out of the mean.
        keep_case: Whether lower-case letters stay so. By default they are read as capitals.
        max_tokens_per_batch: Largest number of tokens in a batch, default 16384.

    Returns:
        A Dataset with a row for each base: `position` (counted from 0), `base`, `likelihood`, the log-probability of
        the base among all tokens, and `entropy`, that of the probabilities of A, C, G and T, scaled to a sum of 1, in
        nats. `None` for other letters than these four, where more than half of a window is unknown, and for a base
        that no strand predicts.

    Raises:
        ValueError: The model is no language model, the sequence is empty, the window is not at least 2 or is longer
            than the model takes, the tokenizer joins bases, or the model gives NaN.
    """
    if not sequence:
        raise ValueError("`sequence` is empty: give at least one base.")
    tracks = BaseTracks(
        SequenceModel(model, tokenizer, max_tokens_per_batch),
        window=window,
        both_strands=both_strands,
        keep_case=keep_case,
    )
    spans = [(start, min(start + tracks.step, len(sequence))) for start in range(0, len(sequence), tracks.step)]
    with evaluating(tracks.model.model):
        # A chunk of a masked model has as many windows as bases.
        values = np.concatenate([tracks.values([(sequence, *span)])[0] for span in spans], axis=1)
    columns = {name: pa.array(of_name, from_pandas=True) for name, of_name in zip(BASE_TRACKS, values, strict=True)}
    return Dataset(pa.table({"position": np.arange(len(sequence)), "base": list(sequence), **columns}))


@dataclass(frozen=True)
class Chunk:
    """Bases of a contig that are measured together: from `start`, counted from 0, to before `stop`."""

    chrom: str
    start: int
    stop: int


class BaseTracks:
    """Computes `base_likelihoods`, whose arguments it takes; to be used within `evaluating`.

    Chunks begin at multiples of `step` in their contig, so that the value of a base does not depend on the regions that
    are asked for.

    Attributes:
        step: Bases of a chunk.
        chunks_per_call: Number of chunks with which `table` fills batches.
    """

    def __init__(self, model: SequenceModel, *, window: int = 1024, both_strands: bool = True, keep_case: bool = False):
        if window < 2:
            raise ValueError(f"`window`={window}: give at least two bases.")
        if model.head not in ("causal", "masked"):
            raise ValueError(
                f"{type(model.model).__name__} is not a language model, but the likelihood of bases needs a "
                "language model: for tracks of a classifier, use hf-ssm predict --track."
            )
        self.model, self._is_causal, self._both_strands = model, model.head == "causal", both_strands
        self._mask = -1 if self._is_causal else mask_token_of(model)
        self._window, self.step = window, window // 2
        # Bases before and after the measured ones, in the direction of the strand.
        self._before = window - self.step if self._is_causal else window // 2
        self._after = 0 if self._is_causal else window - window // 2 - 1
        # Not of the size of a batch, with which a command may continue that ran out of memory.
        self.chunks_per_call = max(1, _BASES_PER_CALL // window) if self._is_causal else 1
        self._letters = WindowLetters(model, keep_case)
        self._bases = base_ids(model, self._letters.keeps_case, *_NEEDS)

    def chunks(self, genome: Genome, regions: Regions | None = None) -> Iterator[Chunk]:
        """The chunks of a genome that overlap regions, or all, in the order of the genome."""
        for chrom, length in genome.contigs.items():
            intervals = [(0, length)] if regions is None else regions.merged(chrom)
            numbers = (range(start // self.step, -(-stop // self.step)) for start, stop in intervals)
            for number in dict.fromkeys(number for of_interval in numbers for number in of_interval):
                yield Chunk(chrom, number * self.step, min((number + 1) * self.step, length))

    def table(self, chunks: Sequence[Chunk], genome: Genome) -> pa.Table:
        """A row for each chunk: `chrom`, `start`, and the lists `likelihood` and `entropy`, NaN without a value."""
        reach = max(self._before, self._after)
        texts = []
        for chunk in chunks:
            begin, end = max(0, chunk.start - reach), min(genome.length(chunk.chrom), chunk.stop + reach)
            texts.append((genome.fetch(chunk.chrom, begin, end), chunk.start - begin, chunk.stop - begin))
        values = self.values(texts)
        columns = {
            name: pa.array([of_chunk[row] for of_chunk in values], pa.list_(pa.float64()))
            for row, name in enumerate(BASE_TRACKS)
        }
        places = {
            "chrom": pa.array([chunk.chrom for chunk in chunks], pa.string()),
            "start": pa.array([chunk.start for chunk in chunks], pa.int64()),
        }
        return pa.table(places | columns)

    def values(self, texts: Sequence[tuple[str, int, int]]) -> list[np.ndarray]:
        """Likelihood and entropy of parts of sequences.

        Args:
            texts: Sequences, and in each the first base to measure and the one after the last.

        Returns:
            For each text, `(2, N)`, float64, with NaN where there is no value.
        """
        strand = self._causal if self._is_causal else self._masked
        before, after = self._before, self._after
        forward = [
            (text[max(0, start - before) : stop + after], min(start, before), stop - start)
            for text, start, stop in texts
        ]
        strands = [strand(forward)]
        if self._both_strands:
            turned = [
                (
                    reverse_complement(text[max(0, start - after) : stop + before]),
                    min(len(text) - stop, before),
                    stop - start,
                )
                for text, start, stop in texts
            ]
            strands.append([values[:, ::-1] for values in strand(turned)])
        return [mean_of_strands(of_text) for of_text in zip(*strands, strict=True)]

    def _causal(self, texts: Sequence[tuple[str, int, int]]) -> list[np.ndarray]:
        """The values of bases of a strand: texts, the first base of each, and their number; `(2, N)` each."""
        contexts = [self._letters.read(text) for text, _, _ in texts]
        tokens = [base_tokens(self.model, context, *_NEEDS) for context in contexts]
        encoded = []
        for of_text in tokens:
            ids = without_end(of_text.encoded)
            encoded.append(Encoded(ids, of_text.encoded.special[: len(ids)], of_text.encoded.letters[: len(ids)]))
        values = [np.full((2, count), np.nan) for _, _, count in texts]
        for batch in self.model.run(encoded):
            for row, logits in zip(batch.rows, batch.outputs.logits, strict=True):
                _, first, count = texts[row]
                # Before the first token there is nothing that predicts it.
                missing = int(tokens[row].before + first == 0)
                place = tokens[row].before + first + missing
                if count == missing or self._letters.fault(tokens[row].is_unknown):
                    continue
                ids = encoded[row].ids[place : place + count - missing]
                measured = self._measured(
                    logits[place - 1 : place - 1 + len(ids)], ids, contexts[row][first + missing :]
                )
                values[row][:, missing:] = measured
                values[row][:, tokens[row].is_unknown[first : first + count]] = np.nan
        return values

    def _masked(self, texts: Sequence[tuple[str, int, int]]) -> list[np.ndarray]:
        """Compute the same as `_causal`, with each base masked in its own window."""
        return [self._masked_text(self._letters.read(text), first, count) for text, first, count in texts]

    def _masked_text(self, text: str, first: int, count: int) -> np.ndarray:
        left = self._window // 2
        spans = [(max(0, place - left), place) for place in range(first, first + count)]
        tokens = [base_tokens(self.model, text[begin : place + self._window - left], *_NEEDS) for begin, place in spans]
        places = [of_base.before + place - begin for of_base, (begin, place) in zip(tokens, spans, strict=True)]
        masked = []
        for of_base, place in zip(tokens, places, strict=True):
            ids = of_base.encoded.ids.clone()
            ids[place] = self._mask
            masked.append(replace(of_base.encoded, ids=ids))
        values = np.full((2, count), np.nan)
        for batch in self.model.run(masked):
            for row, logits in zip(batch.rows, batch.outputs.logits, strict=True):
                begin, place = spans[row]
                if tokens[row].is_unknown[place - begin] or self._letters.fault(tokens[row].is_unknown):
                    continue
                at = places[row]
                ids = tokens[row].encoded.ids[at : at + 1]
                values[:, row : row + 1] = self._measured(logits[at : at + 1], ids, text[place])
        return values

    def _measured(self, logits: Tensor, ids: Tensor, letters: str) -> np.ndarray:
        """Log-probabilities of tokens `(N,)` by the logits `(N, V)` in their places, and the entropies; `(2, N)`."""
        is_lower = torch.tensor([letter.islower() for letter in letters[: len(ids)]])
        bases = self._bases[is_lower.long()].to(logits.device)
        likelihood = log_probs_of(logits, ids.to(logits.device))
        log_probs = logits.gather(-1, bases).double().log_softmax(-1)
        values = torch.stack([likelihood, torch.special.entr(log_probs.exp()).sum(-1)]).cpu()
        check_finite(values)
        return values.numpy()


def entries_of_chunks(table: pa.Table, name: str, regions: Regions | None = None) -> Iterator[Entries]:
    """A track of `BaseTracks.table`, within regions if there are some."""
    for chrom, start, column in zip(*(table[key] for key in ("chrom", "start", name)), strict=True):
        contig, first = chrom.as_py(), start.as_py()
        values = column.values.to_numpy(zero_copy_only=False)
        places = np.arange(first, first + len(values))
        if regions is not None:
            kept = regions.inside(contig, first, first + len(values))
            places, values = places[kept], values[kept]
        yield Entries(contig, places, places + 1, values)
