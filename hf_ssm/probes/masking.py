"""The probe: which tokens does the model need?

Legend: `L` tokens of a sequence, `M` of them that can be masked.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers.utils import logging

from hf_ssm.probes.evaluation import Evaluator, probing
from hf_ssm.probes.prefixes import evaluator_for
from hf_ssm.probes.reading import (
    check_choice,
    find_mask,
    is_single,
    longest_input,
    read_sequences,
    read_targets,
)
from hf_ssm.probes.results import MaskingResult
from hf_ssm.probes.resuming import Company, Store, fingerprint_of_inputs, fingerprint_of_model
from hf_ssm.probes.strategies import SCORES, STRATEGIES, Choices, search
from hf_ssm.probes.targets import Start, Subject, Target, head_of, make_subject
from hf_ssm.utils.evaluation import unwrapped

__all__ = ["MaskingProbe"]


class MaskingProbe:
    """Masks the tokens of a sequence one after the other, first those that the prediction needs least.

    The model is in evaluation mode meanwhile, and left as it was. Special tokens of the tokenizer (without one, of the
    configuration) and tokens that are the mask already are never masked.

    Args:
        model: Of hf_ssm, or any of transformers with `input_ids` and `logits`: a classifier of sequences or tokens, a
            causal or a masked language model.
        tokenizer: Its tokenizer; without one, sequences are given as ids, and the mask is an id or "zero".
        mask: What stands in the place of a masked token: "mask", the tokenizer's mask token (default); "n", its token
            "N"; "pad", its padding token, which the model reads like any other; "zero", a vector of zeros in the place
            of the embedding; any token of the tokenizer, or an id.
        strategy: "exact" (default): at each step the token whose masking leaves the probability highest, of all tokens
            left. "screened": the same among the few that a score puts first, in long sequences several at once.
            "one_shot": a single ranking.
        max_tokens_per_batch: Most tokens that go through the model at once, default 16384; one whole sequence does at
            least.
        candidates: `screened`: how many are evaluated in a step, default 12.
        masks_per_step: `screened`: the share of the tokens left that one step may mask, default 0.01; 0 for one at
            a time.
        score: `screened` and `one_shot`: "occlusion" (default), the probability when that token alone is masked
            (`screened`: asked again whenever a quarter of the tokens is gone); or "gradient", which is cheaper but
            may mislead: the embedding difference times the gradient of the log-probability.
        minimum_probability: Refuse sequences whose target is less likely than this when nothing is masked, default 0.
        allow_wrong: Also probe a target that is not what the model predicts, default False.

    Raises:
        ValueError: An unknown name, a number out of its range, a mask that the tokenizer does not have, a model that
            does not read token ids.

    Example:
        >>> probe = MaskingProbe(model, tokenizer, mask="n", strategy="screened")
        >>> result = probe.run("ACGTTTGACA", target=1)
        >>> result.survivors(3), result.area

    Source: Nishikawa & Suzuki 2025, Section 5 and Appendix K.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any = None,
        mask: str | int = "mask",
        strategy: str = "exact",
        *,
        max_tokens_per_batch: int = 16384,
        candidates: int = 12,
        masks_per_step: float = 0.01,
        score: str = "occlusion",
        minimum_probability: float = 0.0,
        allow_wrong: bool = False,
    ):
        check_choice("strategy", strategy, STRATEGIES)
        check_choice("score", score, SCORES)
        for name, value in (("max_tokens_per_batch", max_tokens_per_batch), ("candidates", candidates)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"`{name}`={value!r}: give a positive integer.")
        for name, share in (("masks_per_step", masks_per_step), ("minimum_probability", minimum_probability)):
            if not 0 <= share <= 1:
                raise ValueError(f"`{name}`={share!r}: give a share from 0 to 1.")
        self.model = unwrapped(model)
        self.head = head_of(self.model)
        self.tokenizer = tokenizer
        self._vocabulary = _embeddings(self.model)
        self.mask = find_mask(mask, tokenizer, self._vocabulary)
        self.choices = Choices(strategy, candidates, masks_per_step, score)
        self.max_tokens_per_batch = max_tokens_per_batch
        self.minimum_probability = minimum_probability
        self.allow_wrong = allow_wrong

    def run(self, inputs: Any, target: Any = None, output: str | Path | None = None, *, progress: bool = True) -> Any:
        """Probe one sequence or many.

        Under `accelerate launch` the processes share the sequences; each returns the results of all.

        Args:
            inputs: A text, or ids as a list or tensor `(L,)`: one sequence. A list of these, a tensor `(B, L)` or a
                `datasets.Dataset` with a column "input_ids" (where there is an "attention_mask", without the padding),
                "sequence" or "text": many.
            target: What to look at. A classifier of sequences: the number of a class; `None` (default), the class that
                is predicted; "label", the label column of a Dataset (or the name of another). A language model: the
                position of a token, which is predicted: by a causal one from what stands before it, so that what
                follows is left out; by a masked one with the mask in its place. A classifier of tokens: a position, or
                a tuple of position and class. Any model: a callable of the logits of a batch that gives one number for
                each row, which is then what is kept high. For many sequences also a list, one for each.
            output: A safetensors file that holds what is finished, from which the same call goes on after an
                interruption.
            progress: Show a progress bar (in the first process).

        Returns:
            A `MaskingResult` for one sequence, `MaskingResults` for many.

        Raises:
            ValueError: Before any work: inputs of the wrong kind, empty or too long; nothing to be masked; a target out
                of range, wrongly predicted (see `allow_wrong`) or too unlikely; an `output` of another model, of other
                settings or of other inputs.
        """
        subjects = self._subjects(inputs, target)
        company = Company()
        with probing(self.model):
            subjects = [self._checked(subject, _where(number, inputs)) for number, subject in enumerate(subjects)]
            described = [subject.target.describe() for subject in subjects]
            store = Store(output, self._settings([subject.input_ids for subject in subjects], described), company)
            todo = [number for number in range(len(subjects)) if number not in store.finished]
            total = sum(len(subjects[number].candidates) for number in company.share(todo))
            bar = logging.tqdm(total=total, unit="token", disable=not (progress and company.is_first))
            try:
                for number in company.share(todo):
                    store.add(number, self._probed(subjects[number], bar.update))
            finally:
                store.write()
                bar.close()
            results = store.join()
        return results[0] if is_single(inputs) else results

    def start(self, inputs: Any, target: Any = None) -> Any:
        """The probability of the target before anything is masked, and whether the model predicts it.

        Nothing is refused for being predicted wrongly, or for being unlikely.

        Args:
            inputs: As for `run`.
            target: As for `run`.

        Returns:
            A record with `probability`, `predicted` (the class or token) and `right`, or of many sequences a list of
            such.

        Raises:
            ValueError: As for `run`.
        """
        subjects = self._subjects(inputs, target)
        with probing(self.model):
            found = [self._start(subject)[0] for subject in subjects]
        return found[0] if is_single(inputs) else found

    def evaluate(self, inputs: Any, order: Sequence[int] | Tensor, target: Any = None) -> Tensor:
        """The probability of the target of one sequence along a given order, such as that of another sequence.

        A position that cannot be masked here (a special token, the target, what a causal model does not read for it)
        changes nothing. A wrong prediction is not refused.

        Args:
            inputs: One sequence.
            order: M positions.
            target: As for `run`.

        Returns:
            `(M + 1,)`, float64: before the first and after each.

        Raises:
            ValueError: As for `run`; positions that are not in the sequence, or come twice.
        """
        if not is_single(inputs):
            raise ValueError("`inputs` must be one sequence: a text, or a list or tensor of ids.")
        (subject,) = self._subjects(inputs, target)
        positions = [int(place) for place in order]
        length = len(subject.input_ids)
        if not all(0 <= place < length for place in positions) or len(set(positions)) < len(positions):
            raise ValueError(f"`order` must hold different positions of 0 to {length - 1}, got {positions[:8]}...")
        with probing(self.model):
            evaluator = self._evaluator(subject)
            logits = evaluator.start_logits()
            evaluator.target = evaluator.target.predicted(logits)
            start = evaluator.target.value(logits).cpu()
            maskable = set(subject.candidates.tolist())
            effective = [place for place in positions if place in maskable]
            values = evaluator.along(evaluator.masked([]), effective) if effective else start[:0]
        reached = torch.cat([start, values])
        steps = torch.tensor([0, *(place in maskable for place in positions)]).cumsum(0)
        return reached[steps]

    def _subjects(self, inputs: Any, target: Any) -> list[Subject]:
        ids = read_sequences(inputs, self.tokenizer, self._vocabulary, longest_input(self.model))
        targets = read_targets(target, inputs, len(ids))
        special = self._special_tokens()
        own_mask = getattr(self.tokenizer, "mask_token_id", None)
        return [
            make_subject(
                self.head,
                self.model.config,
                sequence,
                own,
                mask_id=self.mask.token_id,
                own_mask_id=own_mask,
                special=special,
                where=_where(number, inputs),
            )
            for number, (sequence, own) in enumerate(zip(ids, targets, strict=True))
        ]

    def _special_tokens(self) -> set[int]:
        if self.tokenizer is not None:
            return set(self.tokenizer.all_special_ids)
        config = self.model.config
        found: list[Any] = [getattr(config, f"{name}_token_id", None) for name in ("pad", "bos", "eos", "sep", "cls")]
        several = [ids if isinstance(ids, (list, tuple)) else [ids] for ids in found]
        return {int(token) for ids in several for token in ids if token is not None}

    def _evaluator(self, subject: Subject) -> Evaluator:
        return evaluator_for(self.model, subject, self.mask.token_id, self.max_tokens_per_batch)

    def _start(self, subject: Subject) -> tuple[Start, Target]:
        """What the model says when nothing is masked, and the target, which is then known."""
        logits = self._evaluator(subject).start_logits()
        return subject.target.start(logits), subject.target.predicted(logits)

    def _checked(self, subject: Subject, where: str) -> Subject:
        """The same with a target that is known, and is what the model says when nothing is masked."""
        start, target = self._start(subject)
        if not (start.right or self.allow_wrong):
            raise ValueError(
                f"{where}the prediction is wrong before anything is masked: {target.kind} {start.predicted}, not the "
                f"target {target.index} (probability {start.probability:.3g}). Leave the sequence out, or say "
                "`allow_wrong=True`."
            )
        if start.probability < self.minimum_probability and target.function is None:
            raise ValueError(
                f"{where}the target has the probability {start.probability:.3g}, below `minimum_probability`="
                f"{self.minimum_probability}: leave the sequence out, or lower it."
            )
        return replace(subject, target=target)

    def _probed(self, subject: Subject, advance: Callable[[int], Any]) -> MaskingResult:
        evaluator = self._evaluator(subject)
        order, values = search(evaluator, self.choices, advance)
        text = None if self.tokenizer is None else self.tokenizer.convert_ids_to_tokens(subject.input_ids.tolist())
        return MaskingResult(
            subject.input_ids,
            torch.tensor(order, dtype=torch.int64),
            values,
            subject.target.describe(),
            self.choices.strategy,
            self.mask.name,
            evaluator.evaluations,
            evaluator.tokens,
            text,
        )

    def _settings(self, sequences: list[Tensor], targets: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "model": fingerprint_of_model(self.model),
            "mask": [self.mask.name, self.mask.token_id],
            **self.choices.settings(),
            "inputs": fingerprint_of_inputs(sequences, targets),
        }


def _where(number: int, inputs: Any) -> str:
    return "" if is_single(inputs) else f"sequence {number}: "


def _embeddings(model: Any) -> int:
    """How many tokens the model knows."""
    find = getattr(model, "get_input_embeddings", None)
    try:
        count = getattr(None if find is None else find(), "num_embeddings", None)
    except (AttributeError, NotImplementedError):
        count = None
    if count is None:
        raise ValueError(f"{type(model).__name__} has no embedding of tokens: a probe masks tokens.")
    return int(count)
