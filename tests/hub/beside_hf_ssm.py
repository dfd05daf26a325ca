"""What a user does who has exported folders and hf_ssm, but did not say so at first; run by test_export.py.

    python beside_hf_ssm.py FOLDER NAME OTHER_NAME

Both are causal language models. Prints "well" in the end.
"""

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


def module_of(model: Any, name: str) -> Any:
    return sys.modules[f"{type(model).__module__.rpartition('.')[0]}.{name}"]


travelled = load(NAME, trust_remote_code=True)
assert type(travelled).__module__.startswith("transformers_modules."), type(travelled)
first = bits(NAME, travelled)
# Its kernels, where they may run, are those of hf_ssm.
operation = module_of(travelled, "ops_short_conv")._SHORT_CONV
assert operation.choose(torch.zeros(1, 2, 3), torch.zeros(3, 2), None, False, None, None).__module__.startswith(
    "hf_ssm."
)

own = load(NAME)
assert type(own).__module__.startswith("hf_ssm.models."), type(own)
for model in (own, travelled, own, travelled):
    assert all(map(torch.equal, first, bits(NAME, model)))
# With hf_ssm's own classes there, transformers runs no other code, even where it is trusted.
assert type(load(NAME, trust_remote_code=True)) is type(own)
assert type(load(OTHER)).__module__.startswith("hf_ssm.models.")
# Operators of both are there, each under its own name.
namespace = module_of(travelled, "ops_context").NAMESPACE
assert namespace.startswith("hf_ssm_")
assert torch.ops.hf_ssm.long_conv is not None
assert getattr(torch.ops, namespace).long_conv is not None
print("well")
