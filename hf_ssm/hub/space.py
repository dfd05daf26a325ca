"""The page of a checkpoint (`hf-ssm app`) as a Space of the Hub.

A Space holds `app.py`, which serves the page; `requirements.txt`; `README.md` with the settings of the Space; and the
files of a local checkpoint. As hf_ssm need not be on a package index, a Space holds the code of the installed package
too, in the folder `hf_ssm`, and `requirements.txt` names what the package depends on: whoever opens or duplicates the
Space needs nothing else.
"""

import json
import shlex
import shutil
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

import yaml
from huggingface_hub import HfApi
from packaging.requirements import Requirement

from hf_ssm.hub.client import check_can_push, check_repo_id
from hf_ssm.hub.committing import folder_files
from hf_ssm.hub.exporting import new_folder
from hf_ssm.hub.pushing import check_model, push_files

__all__ = ["push_space", "save_space"]

_PACKAGE = "hf_ssm"
_MODEL_FOLDER = "model"
_SUFFIXES = frozenset({".css", ".md", ".py"})
# Wheels of torch for machines without an accelerator, such as the free ones of Spaces, are a tenth of the others' size.
_CPU_WHEELS = "--extra-index-url https://download.pytorch.org/whl/cpu"

_APP = '''"""The page of a model."""

from hf_ssm.cli import main

# All addresses: the Space forwards its visitors.
raise SystemExit(main(["app", {checkpoint}, "--host", "0.0.0.0"]))
'''

_README = """---
{settings}---

# {title}

Paste a sequence to see the prediction of {name}, the bases on which the prediction depends, the effects of variants,
and measures of the layers from theory. This command of the package hf_ssm{source} serves the page:

```bash
hf-ssm app {checkpoint}
```
"""
_COPIED = " (Apache License 2.0), whose code is in the folder `hf_ssm`,"


def save_space(
    checkpoint: str | Path, folder: str | Path, *, title: str | None = None, package: str | None = None
) -> Path:
    """Write the files of a Space that shows a checkpoint.

    Args:
        checkpoint: Folder of a model, whose files become part of the Space; or the id of a Hub repository, which the
            Space downloads when it starts.
        folder: A folder that does not exist or is empty.
        title: Title of the Space, default: the name of the checkpoint.
        package: What to install as hf_ssm, in the words of `pip install`, such as
            "hf_ssm[app] @ git+https://github.com/USER/NAME". Default: nothing; the code of the installed package
            becomes part of the Space.

    Returns:
        The folder. `python app.py` in it serves the page.

    Raises:
        ValueError: `checkpoint` is neither a complete model of hf_ssm nor the name of a repository.
        FileExistsError: The folder is not empty.
        ImportError: gradio, whose version the Space names, is not installed.
    """
    is_local = Path(checkpoint).is_dir()
    if is_local:
        check_model(Path(checkpoint))
    else:
        check_repo_id(str(checkpoint))
    try:
        sdk_version = version("gradio")
    except PackageNotFoundError as error:
        raise ImportError('gradio is not installed: pip install "hf_ssm[app]"') from error
    name = Path(checkpoint).resolve().name if is_local else str(checkpoint)
    source = f"{_MODEL_FOLDER}/{name}" if is_local else name
    settings = {
        "title": title or name.rpartition("/")[2],
        "emoji": "🧬",
        "colorFrom": "blue",
        "colorTo": "yellow",
        "sdk": "gradio",
        "sdk_version": sdk_version,
        "python_version": f"{sys.version_info.major}.{sys.version_info.minor}",
        "app_file": "app.py",
        "pinned": False,
        **({} if is_local else {"models": [name]}),
    }
    readme = _README.format(
        settings=yaml.safe_dump(settings, allow_unicode=True, sort_keys=False),
        title=settings["title"],
        name=name,
        checkpoint=shlex.quote(source),
        source=_COPIED if package is None else "",
    )
    texts = {
        "README.md": readme,
        "app.py": _APP.format(checkpoint=json.dumps(source, ensure_ascii=False)),
        "requirements.txt": "\n".join([_CPU_WHEELS, *(_dependencies() if package is None else [package])]) + "\n",
    }
    files = _code() if package is None else {}
    # The page runs the code of the package; dot files of a repository (evaluation results) are not those of a Space.
    files |= {
        f"{source}/{path}": file
        for path, file in (folder_files(Path(checkpoint), also=["*.py"]) if is_local else {}).items()
        if not path.endswith(".py") and not path.startswith(".")
    }
    with new_folder(folder) as space:
        for path, text in texts.items():
            (space / path).write_text(text, encoding="utf-8")
        for name, source_path in files.items():
            (space / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source_path, space / name)
    return Path(folder)


def push_space(
    checkpoint: str | Path,
    repo_id: str,
    *,
    title: str | None = None,
    package: str | None = None,
    private: bool | None = None,
    message: str = "Add page",
    token: str | None = None,
) -> str:
    """Push the page of a checkpoint as a Space, in one commit; `save_space` writes the same files to a folder.

    Args:
        checkpoint, title, package: As for `save_space`.
        repo_id: USER/NAME of the Space; created if absent. Files of an earlier push that are no longer part of the
            Space are deleted.
        private: Visibility of a new Space; by default the namespace decides.
        message: Commit message.
        token: By default the stored login.

    Returns:
        The URL of the Space.

    Raises:
        ValueError: As for `save_space`; a malformed name, missing login or right, or access tokens in files.
        ImportError: gradio is not installed.
        OSError: The push fails; the message says how to repeat.
    """
    check_repo_id(repo_id)
    check_can_push(repo_id, HfApi(token=token))
    with tempfile.TemporaryDirectory() as scratch:
        folder = save_space(checkpoint, Path(scratch, "space"), title=title, package=package)
        done = push_files(
            folder_files(folder, also=["app.py", f"{_PACKAGE}/*.py"]),
            repo_id,
            repo_type="space",
            private=private,
            message=message,
            token=token,
            delete_patterns=[f"{_PACKAGE}/*", f"{_MODEL_FOLDER}/*"],
            hint="call `push_space` again",
        )
    return str(done.repo_url)


def _code() -> dict[str, Path]:
    """The files of the installed package, by their path in the Space."""
    package = Path(__file__).resolve().parents[1]
    files = (path for path in sorted(package.rglob("*")) if path.suffix in _SUFFIXES and path.is_file())
    return {f"{_PACKAGE}/{path.relative_to(package).as_posix()}": path for path in files}


def _dependencies() -> list[str]:
    """What the package and its page depend on, without gradio, which the Space installs in its `sdk_version`."""
    return sorted(
        f"{needed.name}{needed.specifier}"
        for needed in {Requirement(line) for line in requires(_PACKAGE) or ()}
        if needed.name != "gradio"
        and (needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in ("", "app")))
    )
