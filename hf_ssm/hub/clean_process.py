"""Run in a new process by `hf_ssm.hub.reload`, which hands over this file's text; imports nothing of this package.

Reads a job from standard input: `folder` with a checkpoint, `again`, where to save it a second time, the Auto class, a
file with inputs, texts for the tokenizer (or null), the number of threads, and where to write the results.
"""

import importlib.abc
import json
import sys
from typing import Any


class _Blocker(importlib.abc.MetaPathFinder):
    """Hides a package, however it is installed."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> None:
        if fullname.partition(".")[0] == "hf_ssm":
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)


def main() -> None:
    sys.meta_path.insert(0, _Blocker())
    job = json.load(sys.stdin)
    _say("importing torch and transformers")
    import torch
    from safetensors.torch import load_file, save_file

    torch.set_num_threads(job["threads"])
    inputs = load_file(job["inputs"])
    results = _run(job, inputs, "first", job["folder"], job["again"])
    results |= _run(job, inputs, "second", job["again"], None)
    save_file(results, job["results"])


def _run(job: dict[str, Any], inputs: dict[str, Any], name: str, folder: str, again: str | None) -> dict[str, Any]:
    """Logits and ids that a folder gives, under names that begin with `name`; it is then saved again."""
    import torch
    import transformers
    from transformers.dynamic_module_utils import get_class_from_dynamic_module

    _say(f"loading {'the exported folder' if again else 'what a loaded copy had saved'}")
    model = getattr(transformers, job["auto_class"]).from_pretrained(folder, trust_remote_code=True).eval()
    _say("looking for the classes in `auto_map`")
    for reference in model.config.auto_map.values():
        get_class_from_dynamic_module(reference, folder)
    _say("running it")
    with torch.no_grad():
        results = {f"{name}.logits": model(**inputs, return_dict=False)[0].contiguous()}
    if again:
        _say("saving it again")
        model.save_pretrained(again)
    if job["texts"] is not None:
        _say("loading the tokenizer")
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
        for number, text in enumerate(job["texts"]):
            results[f"{name}.{number}"] = torch.tensor(tokenizer(text)["input_ids"], dtype=torch.int64)
        if again:
            _say("saving the tokenizer again")
            tokenizer.save_pretrained(again)
    return results


def _say(step: str) -> None:
    """What is done next, for the one who reads the output of a process that failed."""
    print(step, flush=True)


if __name__ == "__main__":
    main()
