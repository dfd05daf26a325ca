"""Run in two processes as by `accelerate launch`: probes four sequences and checks that both get all results."""

import sys

import torch

import hf_ssm

torch.manual_seed(0)
config = hf_ssm.S4Config(hidden_size=8, state_size=8, initializer_range=0.4)
model = hf_ssm.S4ForSequenceClassification(config)
probe = hf_ssm.MaskingProbe(model, hf_ssm.build_dna_tokenizer(), draws=4)
texts = ["ACGTA", "GGCAT", "TTACG", "CATGA"]
searched = []
search = probe._search
probe._search = lambda sequence, advance: searched.append(sequence) or search(sequence, advance)
together = probe.run(texts, output=f"{sys.argv[1]}/probe.safetensors", progress=False)
assert len(searched) == 2
assert together.indices == [0, 1, 2, 3], together.indices
for text, result in zip(texts, together, strict=True):
    assert result.tokens_text == list(text)
    # Evaluated by itself, without the other process.
    again = probe.evaluate(text, result.order)
    torch.testing.assert_close(again, result.probabilities, rtol=1e-5, atol=1e-7)
torch.distributed.destroy_process_group()
