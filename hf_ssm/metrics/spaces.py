"""Metrics as Spaces of the Hub, from which `evaluate.load("user/name")` takes them without hf_ssm."""

import re
import sys
from string import Template
from typing import TYPE_CHECKING

from huggingface_hub import CommitOperationAdd, HfApi, SpaceCardData
from huggingface_hub.errors import HfHubHTTPError, HFValidationError
from huggingface_hub.utils import validate_repo_id

if TYPE_CHECKING:
    import evaluate

_SHARED = "base"
_PACKAGE_IMPORT, _SIBLING_IMPORT = f"from hf_ssm.metrics.{_SHARED} import", f"from .{_SHARED} import"
_REQUIREMENTS = "datasets>=4.0\nevaluate>=0.4.6\nnumpy>=1.26\n"
# A version that Spaces offer, and whose interface the page keeps to.
_GRADIO = "5.49.1"

_APP = Template('''"""The page of the metric: columns as JSON in, the result out."""

import json
from pathlib import Path

import evaluate
import gradio

METRIC = evaluate.load(str(Path(__file__).with_name("$script")))
FEATURES = METRIC.features[0] if isinstance(METRIC.features, list) else METRIC.features


def compute(*columns):
    """The result for columns as JSON; what is wrong with them is shown to the reader."""
    try:
        return METRIC.compute(**{name: json.loads(text) for name, text in zip(FEATURES, columns, strict=True)})
    except ValueError as error:
        raise gradio.Error(str(error)) from error


page = gradio.Interface(
    fn=compute,
    inputs=[gradio.Textbox(label=f"{name}, as JSON") for name in FEATURES],
    outputs=gradio.JSON(label="result"),
    title="Metric: $name",
    description=METRIC.description,
)

if __name__ == "__main__":
    page.launch()
''')

_CARD = Template("""
# $title

$description

A metric of the package `hf_ssm`, which is not needed to load it:

```python
import evaluate

metric = evaluate.load("$repo_id")
```

## Inputs and values

```
$inputs
```

## Limits

The columns are reduced to sums when they are added, so that memory does not grow with the examples; what was added
cannot be asked for again. Only results of the same data and the same split can be compared.

## Citation

```bibtex
$citation
```
""")


def push(
    name: str,
    repo_id: str,
    *,
    token: str | None = None,
    private: bool | None = None,
    message: str = "Add metric",
) -> str:
    """Push one of our metrics as a Space: its code, a page that computes it, and a card; one commit.

    Repeating it changes nothing where all has arrived. `evaluate.load(repo_id)` runs the code of the Space.

    Args:
        name: one of `hf_ssm.metrics.NAMES`.
        repo_id: USER/NAME of the Space; made if it is not there. The script is called like it, as evaluate wants.
        token: by default the stored login.
        private: of a new Space; by default the namespace decides.
        message: of the commit.

    Returns:
        The address of the Space.

    Raises:
        ValueError: for an unknown metric or a name that evaluate could not load.
        OSError: if the Hub cannot be reached or refuses; the call may be repeated.
    """
    files = space_files(name, repo_id)
    api = HfApi(token=token)
    try:
        url = api.create_repo(repo_id, repo_type="space", space_sdk="gradio", private=private, exist_ok=True)
        api.create_commit(
            repo_id,
            [CommitOperationAdd(path, text.encode("utf-8")) for path, text in files.items()],
            repo_type="space",
            commit_message=message,
        )
    except (HfHubHTTPError, OSError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise OSError(f"metric {name!r} was not pushed to {repo_id!r} ({reason}): call `push` again") from error
    return str(url)


def space_files(name: str, repo_id: str) -> dict[str, str]:
    """The files of a Space that holds a metric, path -> text.

    Args:
        name: one of `hf_ssm.metrics.NAMES`.
        repo_id: USER/NAME.

    Raises:
        ValueError: for an unknown metric or a name that evaluate could not load.
    """
    from hf_ssm.metrics import load, path

    folder = path(name)
    module = _module_name(repo_id)
    source = (folder / f"{name}.py").read_text(encoding="utf-8")
    shared = (folder.parent / f"{_SHARED}.py").read_text(encoding="utf-8")
    return {
        "README.md": _card(load(name), repo_id),
        "app.py": _APP.substitute(script=f"{module}.py", name=name),
        "requirements.txt": _REQUIREMENTS,
        f"{_SHARED}.py": shared,
        f"{module}.py": source.replace(_PACKAGE_IMPORT, _SIBLING_IMPORT),
    }


def _module_name(repo_id: str) -> str:
    """The name of the repository, which evaluate imports as a module."""
    user, slash, module = repo_id.partition("/")
    try:
        if not (user and slash and module):
            raise HFValidationError("it needs a user or organisation and a name")
        validate_repo_id(repo_id)
    except HFValidationError as error:
        raise ValueError(f"a Space is named USER/NAME, got {repo_id!r}: {error}") from error
    # The page imports modules of these names, and finds first what lies beside it.
    taken = module in {_SHARED, "app", "datasets", "evaluate", "gradio", "numpy"} | set(sys.stdlib_module_names)
    if taken or not re.fullmatch(r"[A-Za-z0-9_-]+", module):
        raise ValueError(
            f"evaluate imports the code of a Space under its name: use letters, digits, - and _ only, and no name of "
            f"another module, got {repo_id!r}"
        )
    return module


def _card(metric: "evaluate.Metric", repo_id: str) -> str:
    data = SpaceCardData(
        title=f"Metric: {metric.name}",
        sdk="gradio",
        sdk_version=_GRADIO,
        app_file="app.py",
        license="apache-2.0",
        tags=["evaluate", "metric", "hf_ssm"],
    )
    inputs = metric.inputs_description.replace(f'hf_ssm.metrics.load("{metric.name}"', f'evaluate.load("{repo_id}"')
    text = _CARD.substitute(
        title=f"Metric: {metric.name}",
        description=metric.description.strip(),
        repo_id=repo_id,
        inputs=inputs.strip(),
        citation=metric.citation.strip(),
    )
    return f"---\n{data.to_yaml()}\n---\n{text}"
