"""Log-probabilities of tokens under causal and masked language models.

Sequences with a common beginning continue from one state after it. All log-probabilities are natural logarithms in
float64.

Legend: `L` tokens of a sequence, `P` tokens of a beginning, `B` beginnings, `R` sequences, `S` tokens of the longest
continuation, `V` vocabulary.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from hf_ssm.data.records import as_records
from hf_ssm.inference.model import Encoded, SequenceModel
from hf_ssm.inference.prefixes import branched, can_branch
from hf_ssm.models.base.pretrained import SSMPreTrainedModel
from hf_ssm.utils.evaluation import evaluating

__all__ = ["CausalLikelihood", "log_likelihoods", "log_probs_of", "shared_length", "without_end"]


def log_likelihoods(model: Any, tokenizer: Any, inputs: Iterable[Any], *, max_tokens_per_batch: int = 16384) -> Dataset:
    """Log-likelihood of each sequence under a causal language model.

    Args:
        model: A causal language model of hf_ssm or transformers.
        tokenizer: Its tokenizer, a fast one.
        inputs: Texts, or mappings with a column "sequence", or a `datasets.Dataset`.
        max_tokens_per_batch: Largest number of tokens in a batch, default 16384.

    Returns:
        The columns of the inputs without the sequence, `log_likelihood`, the sum of the log-probabilities of all tokens
        that have one before them, in nats, and `tokens`, their number. A special token at the end is not counted.

    Raises:
        ValueError: The model is no causal language model, or a sequence is empty or too long.
    """
    reader = CausalLikelihood(SequenceModel(model, tokenizer, max_tokens_per_batch))
    records = list(as_records(inputs))
    with evaluating(reader.model.model):
        encoded = [without_end(text) for text in reader.model.encode(records)]
        found = reader.full(encoded)
    rows = zip(records, found, strict=True)
    return Dataset.from_list(
        [{**record.columns, "log_likelihood": own.sum().item(), "tokens": len(own)} for record, own in rows]
    )


def log_probs_of(logits: Tensor, ids: Tensor) -> Tensor:
    """Log-probabilities of tokens, in the shape of `ids`, from the logits `(..., V)` that predict them."""
    if ids.dim() > 1:
        # Row by row: all logits of a large vocabulary in float64 need twice their memory.
        return torch.stack([log_probs_of(*row) for row in zip(logits, ids, strict=True)])
    logits = logits.double()
    return logits.gather(-1, ids.unsqueeze(-1)).squeeze(-1) - logits.logsumexp(-1)


def without_end(encoded: Encoded) -> Tensor:
    """The ids of a text without the special tokens at its end, which causal models would have to predict."""
    last = int((~encoded.special).nonzero()[-1])
    return encoded.ids[: last + 1]


def shared_length(sequences: Sequence[Tensor]) -> int:
    """Number of tokens with which all sequences begin, less than the length of each."""
    shortest = min(len(ids) for ids in sequences)
    same = torch.stack([ids[:shortest] == sequences[0][:shortest] for ids in sequences]).all(0)
    differing = (~same).nonzero()
    first = int(differing[0]) if len(differing) else shortest
    return min(first, shortest - 1)


class CausalLikelihood:
    """Log-probabilities of tokens under a causal language model; to be used within `evaluating`.

    Args:
        model: The model and its tokenizer.
        share: Whether sequences that begin with the same tokens continue from one state (default), where the model
            allows it. If not, each is read as a whole.

    Raises:
        ValueError: The model is no causal language model.
    """

    def __init__(self, model: SequenceModel, share: bool = True):
        if model.head != "causal":
            raise ValueError(
                f"{type(model.model).__name__} is no causal language model, which a likelihood of sequences needs."
            )
        self.model = model
        self._own = isinstance(model.model, SSMPreTrainedModel)
        self.shares = share and (self._own or self._can_branch())

    def _can_branch(self) -> bool:
        # Token 0 exists in every vocabulary.
        output = self.model.forward(torch.zeros(1, 1, dtype=torch.long, device=self.model.device), use_cache=True)
        return can_branch(getattr(output, "past_key_values", None))

    def read(
        self, ids: Tensor, cache: Any = None, *, keep: bool = False, only_last: bool = False
    ) -> tuple[Tensor, Any]:
        """Logits `(B, L, V)` of tokens `(B, L)` that follow what `cache` has read, and with `keep` the new cache.

        With `only_last`, the logits of other positions than the last are left out, if the model can.
        """
        options: dict[str, Any] = {} if cache is None else {"past_key_values": cache}
        if only_last and self.model.takes("logits_to_keep"):
            options["logits_to_keep"] = 1
        output = self.model.forward(ids.to(self.model.device), use_cache=keep or cache is not None, **options)
        return output.logits, output.past_key_values if keep else None

    def full(self, sequences: Sequence[Tensor]) -> list[Tensor]:
        """Log-probabilities of the tokens of each sequence `(L,)` but the first, `(L - 1,)` each, on the CPU."""
        texts = [Encoded(ids, torch.zeros_like(ids, dtype=torch.bool), ids.new_zeros(len(ids), 2)) for ids in sequences]
        found: dict[int, Tensor] = {}
        for batch in self.model.run(texts):
            ids = _padded([sequences[row] for row in batch.rows]).to(self.model.device)
            values = log_probs_of(batch.outputs.logits[:, :-1], ids[:, 1:]).cpu()
            found |= {row: own[: len(sequences[row]) - 1] for row, own in zip(batch.rows, values, strict=True)}
        return [found[row] for row in range(len(sequences))]

    def continued(
        self, cache: Any, last_logits: Tensor, owners: Sequence[int], continuations: Sequence[Tensor], length: int
    ) -> list[Tensor]:
        """Log-probabilities of the tokens of continuations of beginnings that a cache has read.

        Args:
            cache: States after B beginnings of `length` tokens, unchanged.
            last_logits: `(B, V)`, the logits after each beginning.
            owners: The beginning of each continuation, R numbers.
            continuations: R tensors of ids.
            length: P.

        Returns:
            R tensors in the shapes of the continuations, on the CPU.
        """
        found: list[Tensor] = []
        for first, stop in self._batches([len(ids) for ids in continuations], length):
            rows = torch.tensor(owners[first:stop], device=self.model.device)
            own = continuations[first:stop]
            ids = _padded(own).to(self.model.device)
            logits = last_logits[rows].unsqueeze(1)
            if ids.shape[1] > 1:
                # The logits after a last token predict nothing.
                following, _ = self.read(ids[:, :-1], branched(cache, rows))
                logits = torch.cat([logits, following], dim=1)
            values = log_probs_of(logits, ids).cpu()
            found += [part[: len(row)] for part, row in zip(values, own, strict=True)]
        return found

    def _batches(self, lengths: Sequence[int], before: int) -> Iterable[tuple[int, int]]:
        """First and last row of each batch of consecutive continuations."""
        # The keys and values of attention take memory for each token of the beginning, too.
        before = 0 if self._own else before
        first, longest = 0, 0
        for row, length in enumerate(lengths):
            longest = max(longest, length)
            if row > first and (row + 1 - first) * (longest + before) > self.model.max_tokens_per_batch:
                yield first, row
                first, longest = row, length
        if lengths:
            yield first, len(lengths)

    def groups(self, groups: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
        """Log-probabilities of the tokens of groups of sequences, from the first one at which a group differs.

        Args:
            groups: In each group, ids of sequences `(L,)` that begin with the same tokens.

        Returns:
            For each sequence, the log-probabilities of its tokens from number `shared_length` on; 0 for a token that
            has none before it.
        """
        lengths = [shared_length(group) for group in groups]
        found: list[list[Tensor]] = [[] for _ in groups]
        if not self.shares:
            flat = self.full([ids for group in groups for ids in group])
            values = iter([torch.cat([own.new_zeros(1), own]) for own in flat])
            return [[next(values)[length:] for _ in group] for group, length in zip(groups, lengths, strict=True)]
        by_length: dict[int, list[int]] = {}
        for number, length in enumerate(lengths):
            by_length.setdefault(length, []).append(number)
        for length, numbers in by_length.items():
            size = max(1, self.model.max_tokens_per_batch // max(1, length))
            for first in range(0, len(numbers), size):
                part = numbers[first : first + size]
                for number, own in zip(part, self._group_batch([groups[n] for n in part], length), strict=True):
                    found[number] = own
        return found

    def _group_batch(self, groups: Sequence[Sequence[Tensor]], length: int) -> list[list[Tensor]]:
        """As `groups`, for groups that all share as many tokens."""
        if length == 0:
            whole = iter(self.full([ids for group in groups for ids in group]))
            return [[torch.cat([torch.zeros(1, dtype=torch.double), next(whole)]) for _ in group] for group in groups]
        beginnings = torch.stack([group[0][:length] for group in groups])
        logits, cache = self.read(beginnings, keep=True, only_last=True)
        owners = [number for number, group in enumerate(groups) for _ in group]
        rest = [ids[length:] for group in groups for ids in group]
        values = iter(self.continued(cache, logits[:, -1], owners, rest, length))
        return [[next(values) for _ in group] for group in groups]


def _padded(sequences: Sequence[Tensor]) -> Tensor:
    # Behind the tokens, where a causal model does not look.
    return pad_sequence(list(sequences), batch_first=True)
