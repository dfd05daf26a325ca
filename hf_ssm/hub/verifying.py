"""Verification of a checkpoint: consistency of a folder, checksums of a repository on the Hub, and foreign code.

The client checks the size of a download only; `verify` compares the cached copy with the checksums of the Hub.
"""

import functools
import json
import sys
import tempfile
from collections.abc import Iterator, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi
from huggingface_hub.utils import validate_repo_id
from transformers import AutoConfig

from hf_ssm.hub.client import cause_without_token, retry, user_error
from hf_ssm.hub.exporting import write_code
from hf_ssm.hub.flatten import HEADER
from hf_ssm.models.base.files import check_regular, read_index, read_json, read_safetensors_header
from hf_ssm.models.registry import FAMILIES, Family

__all__ = [
    "Problem",
    "Verification",
    "check_data",
    "check_folder",
    "family_of",
    "foreign_code",
    "own_code_problems",
    "verify",
]

_CONFIG, _WEIGHTS, _INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
# Keys of JSON files whose values name Python classes to load with `trust_remote_code=True`.
_CODE_KEYS = ("auto_map", "custom_pipelines")


@dataclass(frozen=True)
class Problem:
    """A problem with one file.

    Attributes:
        path: Path of the file in the folder or repository.
        what: Description of the problem.
    """

    path: str
    what: str

    def __str__(self) -> str:
        return f"{self.path}: {self.what}"


@dataclass(frozen=True)
class Verification:
    """Result of `verify`.

    Attributes:
        source: The folder, or USER/NAME.
        commit: Commit that a repository was compared with; `None` for a folder.
        checked: Number of checked files.
        absent: Files of the repository that are not in the cache, because nothing has requested them yet.
        problems: One entry per problem; empty if nothing is wrong.
    """

    source: str
    commit: str | None
    checked: int
    absent: tuple[str, ...]
    problems: tuple[Problem, ...]


def verify(
    source: str | Path, revision: str | None = None, *, cache_dir: str | Path | None = None, token: str | None = None
) -> Verification:
    """Verify a checkpoint without running any of its code.

    Checks the headers of the weights against the file sizes, shards against their index, the configuration and other
    JSON files, and that all Python code is what the installed version of hf_ssm writes. For a repository on the
    Hub, the cached copy (downloaded if absent) is also compared with the checksums of the Hub.

    Args:
        source: A folder, or USER/NAME.
        revision: Branch, tag or commit of a repository; by default the cached state of main.
        cache_dir: By default the cache of `huggingface_hub`.
        token: By default the stored login.

    Raises:
        ValueError: There is no such folder, repository or revision, or the login has no access.
        OSError: The Hub cannot be reached.
    """
    folder = Path(source).expanduser()
    if folder.is_dir():
        if revision is not None:
            raise ValueError(f"revision={revision!r} is for a repository on the Hub, but {str(source)!r} is a folder")
        checked = sum(path.is_file() for path in folder.iterdir())
        return Verification(str(source), None, checked, (), tuple(check_folder(folder)))
    if isinstance(source, Path) or str(source).count("/") > 1 or str(source).startswith((".", "~", "/")):
        raise ValueError(f"there is no folder {str(source)!r}")
    try:
        validate_repo_id(source)
        return _verify_cached(source, revision, cache_dir, token)
    except Exception as error:  # of huggingface_hub, of its HTTP library or of the disk
        raise user_error(error, source, revision, token) from cause_without_token(error, token)


def check_folder(folder: str | Path, elsewhere: Set[str] = frozenset()) -> list[Problem]:
    """Find damaged files, inconsistent files and foreign code in the folder of a checkpoint.

    Args:
        folder: Written by `save_pretrained` or `export`.
        elsewhere: Names of files that may be absent, for a cache that has only part of a repository.
    """
    folder = Path(folder)
    return [*check_data(folder, elsewhere), *foreign_code(folder), *own_code_problems(folder, elsewhere)]


def check_data(folder: Path, elsewhere: Set[str] = frozenset()) -> list[Problem]:
    """The part of `check_folder` about weights, configuration and other JSON files."""
    return [*_check_weights(folder, elsewhere), *_check_config(folder, elsewhere), *_check_json(folder)]


def family_of(folder: Path) -> Family | None:
    """The registered family of the configuration in a folder; `None` for other models and unreadable files."""
    try:
        model_type = read_json(folder / _CONFIG).get("model_type")
    except (OSError, ValueError):
        return None
    return next((family for family in FAMILIES.values() if family.config_class.model_type == model_type), None)


def foreign_code(folder: Path) -> Iterator[Problem]:
    """Python files that hf_ssm did not write, and references to code that is neither in `auto_map` nor ours.

    The header that marks code of hf_ssm can be forged: `own_code_problems` compares such files with the package.
    """
    for path in sorted(folder.rglob("*.py")):
        if _header_version(path) is None:
            name = path.relative_to(folder).as_posix()
            yield Problem(name, "is foreign code, not written by hf_ssm: `trust_remote_code=True` may run it")
    family = family_of(folder)
    for path in sorted(folder.glob("*.json")):
        for key, reference in _code_references(path):
            if "--" in reference:
                yield Problem(path.name, f"`{key}` refers to foreign code in another repository: {reference!r}")
            elif family is None or path.name != _CONFIG or key != "auto_map":
                yield Problem(path.name, f"`{key}` refers to foreign code: {reference!r}")


def own_code_problems(folder: Path, elsewhere: Set[str] = frozenset()) -> Iterator[Problem]:
    """Differences between the code in a folder that is marked as code of hf_ssm, and what the package writes."""
    family = family_of(folder)
    expected, auto_map = _expected_code(family.name) if family is not None else ({}, {})
    installed, versions = sys.modules["hf_ssm"].__version__, set()
    for path in sorted(folder.rglob("*.py")):
        name, version = path.relative_to(folder).as_posix(), _header_version(path)
        if version is None or path.read_bytes() == expected.get(name):
            continue
        versions.add(version)
        if version == installed:
            yield Problem(name, f"has been changed: it is not what hf_ssm {version} writes")
        else:
            yield Problem(
                name,
                f"is marked as code of hf_ssm {version}, which the installed version {installed} cannot check: verify "
                f"it with hf_ssm {version}",
            )
    stored = read_json(folder / _CONFIG).get("auto_map") if family is not None else None
    if not stored or versions - {installed}:
        return
    for name in sorted(expected.keys() - elsewhere):
        if not (folder / name).is_file():
            yield Problem(name, f"is missing, but {_CONFIG} refers to the code of the model")
    if not isinstance(stored, dict):
        yield Problem(_CONFIG, f"`auto_map` must be an object, got {type(stored).__name__}")
        return
    for key, reference in stored.items():
        if reference != auto_map.get(key) and "--" not in str(reference):
            yield Problem(_CONFIG, f"`auto_map` refers to foreign code for {key}: {reference!r}")


@functools.cache
def _expected_code(family: str) -> tuple[dict[str, bytes], dict[str, str]]:
    """The Python files by name and the `auto_map` that the installed package writes for a family."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = write_code(FAMILIES[family].config_class(), Path(scratch))
        files = {path.name: path.read_bytes() for path in folder.glob("*.py")}
        return files, read_json(folder / _CONFIG)["auto_map"]


def _header_version(path: Path) -> str | None:
    """Version of hf_ssm in the header of a Python file; `None` for a file without the header."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            first = file.readline(1000)
    except OSError:
        return None
    words = first.removeprefix(HEADER).split(maxsplit=1)
    return words[0] if first.startswith(f"{HEADER} ") and words else None


def _code_references(path: Path) -> Iterator[tuple[str, str]]:
    """Key and reference (`file.Class` or `user/name--file.Class`) of all code that a JSON file names."""
    try:
        content = read_json(path)
    except (OSError, ValueError):
        return  # reported by `_check_json`
    for key in _CODE_KEYS:
        waiting = [content.get(key)]
        while waiting:
            value = waiting.pop()
            if isinstance(value, str) and "." in value:
                yield key, value
            elif isinstance(value, (list, dict)):
                waiting.extend(value.values() if isinstance(value, dict) else value)


def _verify_cached(repo_id: str, revision: str | None, cache_dir: str | Path | None, token: str | None) -> Verification:
    api = HfApi(token=token)

    def compare() -> Any:
        return retry(lambda: api.verify_repo_checksums(repo_id, revision=revision, cache_dir=cache_dir))

    def download(patterns: list[str] | None) -> None:
        retry(lambda: api.snapshot_download(repo_id, revision=revision, cache_dir=cache_dir, allow_patterns=patterns))

    try:
        found = compare()
    except OSError:
        raise
    except ValueError:  # the cache has nothing of the revision; an HfHubHTTPError may be both
        download(None)
        found = compare()
    if any(path.endswith(".py") for path in found.missing_paths):
        # `from_pretrained` with hf_ssm installed does not request the code, but others run it.
        download(["*.py"])
        found = compare()
    bad = {
        mismatch["path"]: f"its {mismatch['algorithm']} differs from the one on the Hub"
        for mismatch in found.mismatches
    } | dict.fromkeys(found.extra_paths, "is not in the repository")
    others = check_folder(found.verified_path, frozenset(found.missing_paths))
    problems = [Problem(path, what) for path, what in sorted(bad.items())]
    problems += [problem for problem in others if problem.path not in bad]
    return Verification(repo_id, found.revision, found.checked_count, tuple(found.missing_paths), tuple(problems))


def _reason(error: Exception, path: Path) -> str:
    """Message of an error about a file, without the name of the file."""
    text = " ".join(str(error).split())
    for name in (repr(str(path)), str(path)):
        text = text.replace(f"{name} ", "it ") if text.startswith(f"{name} ") else text.replace(name, "it")
    return text


def _check_weights(folder: Path, elsewhere: Set[str]) -> Iterator[Problem]:
    """Check sizes and headers of all safetensors files, and an index against its shards."""
    held: dict[str, set[str]] = {}
    damaged: set[str] = set()
    for path in folder.glob("*.safetensors"):
        try:
            check_regular(path)
            held[path.name] = set(read_safetensors_header(path))
        except (OSError, ValueError) as error:
            damaged.add(path.name)
            yield Problem(path.name, _reason(error, path))
    if not held and not damaged and not any(name.endswith(".safetensors") for name in elsewhere):
        pickles = sorted(path.name for path in folder.glob("*.bin") if path.name.startswith("pytorch_model"))
        if pickles:
            yield Problem(pickles[0], "is a pickle, which cannot be checked: save the weights as safetensors")
        else:
            yield Problem(_WEIGHTS, "is missing, and there are no other weights")
    index = folder / _INDEX
    if index.exists():
        yield from _check_index(index, held, damaged | elsewhere)
    elif _INDEX not in elsewhere:
        shards = sorted(name for name in (*held, *damaged) if "-of-" in name)
        yield from (Problem(name, f"is a shard, but there is no {_INDEX}") for name in shards)


def _check_index(index: Path, held: dict[str, set[str]], unknown: Set[str]) -> Iterator[Problem]:
    """Check an index against the tensors of its shards, except those that are `unknown`."""
    try:
        places = read_index(index)
    except (OSError, ValueError) as error:
        yield Problem(index.name, _reason(error, index))
        return
    shards = set(places.values())
    for name in sorted(shards - held.keys() - unknown):
        count = sum(place == name for place in places.values())
        yield Problem(name, f"is missing, but {index.name} lists {count} tensors in it")
    for name in sorted(shards & held.keys()):
        named = {tensor for tensor, place in places.items() if place == name}
        for tensor in sorted(named ^ held[name])[:1]:
            where = "is in the index only" if tensor in named else "is not in the index"
            yield Problem(name, f"{tensor} {where}")
    if _WEIGHTS in held and _WEIGHTS not in shards:
        yield Problem(_WEIGHTS, f"is read instead of the shards of {index.name}: delete one or the other")
    for name in sorted(shard for shard in held.keys() - shards if "-of-" in shard):
        yield Problem(name, f"is a shard that {index.name} does not list")


def _check_config(folder: Path, elsewhere: Set[str]) -> Iterator[Problem]:
    path = folder / _CONFIG
    if not path.exists() and _CONFIG in elsewhere:
        return
    try:
        read_json(path)
        if family_of(folder) is not None:
            AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except FileNotFoundError:
        yield Problem(_CONFIG, "is missing")
    except Exception as error:  # a wrong value may raise anything
        yield Problem(_CONFIG, _reason(error, path))


def _check_json(folder: Path) -> Iterator[Problem]:
    """Check that the JSON files of tokenizer and generation can be parsed."""
    for path in sorted(folder.glob("*.json")):
        if path.name in (_CONFIG, _INDEX):
            continue
        try:
            check_regular(path)
            json.loads(path.read_bytes())
        except (OSError, ValueError, RecursionError) as error:
            yield Problem(path.name, f"is not valid JSON: {_reason(error, path)}")
