"""Load exported folders where hf_ssm is installed but not imported at first; run by test_export.py.

    python beside_hf_ssm.py FOLDER NAME OTHER_NAME

Both are causal language models. Prints "well" at the end.
"""

import importlib
import sys
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file

HOME, (NAME, OTHER) = Path(sys.argv[1]), sys.argv[2:]


def load(name: str, **kwargs: Any) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(HOME / name, **kwargs)


def bits(name: str, model: Any) -> list[torch.Tensor]:
    model.zero_grad()
    output = model(**load_file(HOME / f"{name}.inputs"), return_dict=False)[0]
    output.square().mean().backward()
    return [output.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]


travelled = load(NAME, trust_remote_code=True)
assert type(travelled).__module__.startswith("transformers_modules."), type(travelled)
first = bits(NAME, travelled)
importlib.import_module("hf_ssm")
own = load(NAME)
# As the code of a checkpoint.
importlib.import_module("hf_ssm.ops.backends").set_backend("torch")
assert type(own).__module__.startswith("hf_ssm.models."), type(own)
for model in (own, travelled, own, travelled):
    assert all(map(torch.equal, first, bits(NAME, model)))
# Once hf_ssm is imported, transformers runs no other code, even with `trust_remote_code`.
assert type(load(NAME, trust_remote_code=True)) is type(own)
assert type(load(OTHER)).__module__.startswith("hf_ssm.models.")
print("well")
