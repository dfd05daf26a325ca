"""Results of a probe to plot."""

import random
from collections.abc import Callable

import pytest
import torch
from transformers import PreTrainedTokenizerBase

from hf_ssm.probes import MaskingResult
from hf_ssm.tokenization import build_dna_tokenizer


@pytest.fixture
def make_result() -> Callable[..., MaskingResult]:
    """`make_result(text, tokenizer, target=..., seed=...)`: random order of masking, decreasing probabilities."""

    def make(
        text: str = "ACGTACGTAC",
        tokenizer: PreTrainedTokenizerBase | None = None,
        *,
        target: dict | None = None,
        seed: int = 0,
    ) -> MaskingResult:
        tokenizer = tokenizer or build_dna_tokenizer()
        ids = torch.tensor(tokenizer(text)["input_ids"])
        target = target or {"kind": "class", "label": 1}
        maskable = [
            place
            for place, token in enumerate(ids.tolist())
            if token not in tokenizer.all_special_ids and place < target.get("position", len(ids))
        ]
        draw = random.Random(seed)
        order = torch.tensor(draw.sample(maskable, len(maskable)))
        values = sorted((draw.random() for _ in range(len(maskable) + 1)), reverse=True)
        tokens = tokenizer.convert_ids_to_tokens(ids.tolist())
        probabilities = torch.tensor(values, dtype=torch.float64)
        return MaskingResult(ids, order, probabilities, target, "exact", "n", 55, 550, tokens)

    return make
