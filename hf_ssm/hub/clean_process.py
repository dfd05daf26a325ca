"""Script of the process that loads a saved model; `hf_ssm.hub.reload` passes its text to a new interpreter.

The script imports nothing of hf_ssm. It reads a job from standard input, as JSON:

- `folder`, `auto_class`: the saved model, and the Auto class that loads it.
- `again`: folder to save it to and load it from a second time.
- `inputs`: safetensors file with the arguments of `forward`; `labels.`-prefixed tensors are those of a training step.
- `texts`: texts for the tokenizer, or null.
- `threads`: number of threads, on which the order of a sum may depend.
- `results`: safetensors file to write.
"""

import json
import sys
from typing import Any


def main() -> None:
    job = json.load(sys.stdin)
    # Python then finds no module hf_ssm, however the package is installed.
    sys.modules["hf_ssm"] = None  # type: ignore[assignment]
    _report("importing torch and transformers")
    import torch
    import transformers
    from safetensors.torch import load_file, save_file

    torch.set_num_threads(job["threads"])
    tensors = load_file(job["inputs"])
    inputs = {name: tensor for name, tensor in tensors.items() if not name.startswith("labels.")}
    labels = {name.removeprefix("labels."): tensors[name] for name in tensors.keys() - inputs.keys()}
    _report("loading the saved model")
    model, logits = _load(job, inputs, job["folder"])
    results = {"first.logits": logits}
    if job["texts"] is not None:
        _report("loading the tokenizer")
        tokenizer = transformers.AutoTokenizer.from_pretrained(job["folder"], trust_remote_code=False)
        results |= token_ids(tokenizer, job["texts"])
    _report("saving the model again")
    model.save_pretrained(job["again"])
    _report("loading the model saved again")
    results["second.logits"] = _load(job, inputs, job["again"])[1]
    _report("training the model")
    results |= {f"trained.{name}": tensor for name, tensor in training_step(model, inputs, labels).items()}
    save_file(results, job["results"])


def training_step(model: Any, inputs: dict[str, Any], labels: dict[str, Any]) -> dict[str, Any]:
    """One step of stochastic gradient descent in training mode.

    Args:
        model: The model, which is changed.
        inputs: Arguments of `forward`.
        labels: `labels`, or empty for models without a loss, which then minimise their mean squared output.

    Returns:
        `loss`, and all weights and buffers after the step.
    """
    import torch

    torch.manual_seed(0)
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    output = model(**inputs, **labels, return_dict=True)
    loss = output.loss if labels else output[0].float().square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return {"loss": loss.detach()} | {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def _load(job: dict[str, Any], inputs: dict[str, Any], folder: str) -> tuple[Any, Any]:
    """The model in a folder, and its logits."""
    import torch
    import transformers
    from transformers.dynamic_module_utils import get_class_from_dynamic_module

    auto: Any = getattr(transformers, job["auto_class"])
    model = auto.from_pretrained(folder, trust_remote_code=True).eval()
    _report("looking for the classes in `auto_map`")
    for reference in model.config.auto_map.values():
        get_class_from_dynamic_module(reference, folder)
    _report("running the model")
    with torch.no_grad():
        return model, model(**inputs, return_dict=False)[0].contiguous()


def token_ids(tokenizer: Any, texts: list[str]) -> dict[str, Any]:
    """The ids of each text."""
    import torch

    return {f"ids.{number}": torch.tensor(tokenizer(text)["input_ids"]).long() for number, text in enumerate(texts)}


def _report(step: str) -> None:
    """Name the next step on standard output, where `hf_ssm.hub.reload` reads at which one a process failed."""
    print(step, flush=True)


if __name__ == "__main__":
    main()
