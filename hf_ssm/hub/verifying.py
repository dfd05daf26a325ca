"""Verification of a checkpoint: consistency of a folder, checksums of a repository on the Hub, and foreign code.

The client checks the size of a download only; `verify` compares the cached copy with the checksums of the Hub.
"""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi
from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers import AutoConfig

from hf_ssm.checkpoint import HEADER, auto_map, bundle
from hf_ssm.hub.client import user_errors
from hf_ssm.hub.scanning import Problem, scan
from hf_ssm.hub.sources import check_source
from hf_ssm.models.base.weights import compare, read_shapes
from hf_ssm.models.registry import FAMILIES, Family
from hf_ssm.utils.checks import check_path

__all__ = ["Problem", "Verification", "check_folder", "family_of", "named_class", "verify"]

_CONFIG, _WEIGHTS, _INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
# Keys of JSON files whose values name Python classes to load with `trust_remote_code=True`.
_CODE_KEYS = ("auto_map", "custom_pipelines")


@dataclass(frozen=True)
class Verification:
    """Result of `verify`.

    Attributes:
        commit: Commit that a repository was compared with; `None` for a folder.
        checked: Number of checked files.
        absent: Files of the repository that are not in the cache, because nothing has requested them yet.
        problems: One entry per problem; empty if nothing is wrong.
    """

    commit: str | None
    checked: int
    absent: tuple[str, ...]
    problems: tuple[Problem, ...]


def verify(
    source: str | Path, revision: str | None = None, *, cache_dir: str | Path | None = None, token: str | None = None
) -> Verification:
    """Verify a checkpoint without running any of its code.

    Checks the headers of the weights against the file sizes, shards against their index, the configuration and other
    JSON files, that the weights are those of the configuration (names, shapes, types) and finite, and that all Python
    code is what the installed version of hf_ssm writes. For a
    repository on the Hub, the cached copy (downloaded if absent) is also compared with the checksums of the Hub.

    Links out of the folder and broken links are problems, with which nothing is read. Links from the cache of the Hub
    to its blobs are none.

    Args:
        source: A folder, or USER/NAME.
        revision: Branch, tag or commit of a repository; by default the cached state of main.
        cache_dir: By default the cache of `huggingface_hub`.
        token: By default the stored login.

    Raises:
        ValueError: There is no such folder, repository or revision, or the login has no access.
        OSError: The Hub cannot be reached.
    """
    check_path("source", source)
    folder = Path(source).expanduser()
    if folder.is_dir():
        if revision is not None:
            raise ValueError(f"revision={revision!r} is for a repository on the Hub, but {str(source)!r} is a folder")
        checked = sum("/" not in name for name in scan(folder)[0])
        return Verification(None, checked, (), tuple(check_folder(folder)))
    try:
        check_source(source, cache_dir=cache_dir, token=token)
    except FileNotFoundError as error:
        raise ValueError(str(error)) from None
    with user_errors(str(source), revision):
        return _verify_cached(str(source), revision, cache_dir, token)


def check_folder(folder: str | Path, elsewhere: Set[str] = frozenset()) -> list[Problem]:
    """Find damaged files, inconsistent files and foreign code in the folder of a checkpoint.

    Args:
        folder: Written by `save_pretrained` or `export`.
        elsewhere: Names of files that may be absent, for a cache that has only part of a repository.
    """
    folder = Path(folder)
    files, links = scan(folder)
    if links:
        return links
    family = family_of(folder)
    problems = [*_check_weights(folder, files, elsewhere), *_check_config(folder, family, elsewhere)]
    # The content of files is of interest only if they can be read.
    problems += [] if problems or family is None else _check_model(folder, family)
    problems += _check_json(files, family, elsewhere)
    problems += _check_code(files, family)
    return problems


def family_of(folder: Path) -> Family | None:
    """The registered family of the configuration in a folder; `None` for other models and unreadable files."""
    try:
        model_type = _read_object(folder / _CONFIG).get("model_type")
    except (OSError, ValueError):
        return None
    return next((family for family in FAMILIES.values() if family.config_class.model_type == model_type), None)


def named_class(family: Family, config: Any) -> Any:
    """The model class that the `architectures` of a configuration name; `None` unless it is one of the family."""
    names = config.architectures
    return next((cls for cls in family.model_classes.values() if names in ([cls.__name__], cls.__name__)), None)


def _at_top(files: Mapping[str, Path], suffix: str) -> Iterator[Path]:
    """The files of a suffix that are not in folders below."""
    yield from (path for name, path in files.items() if "/" not in name and name.endswith(suffix))


def _check_weights(folder: Path, files: Mapping[str, Path], elsewhere: Set[str]) -> Iterator[Problem]:
    """Check the headers of safetensors files, and an index against its shards."""
    tensors: dict[str, set[str] | None] = {}
    for path in _at_top(files, ".safetensors"):
        tensors[path.name] = None
        try:
            with safe_open(path, framework="pt") as file:
                tensors[path.name] = set(file.keys())
        except (OSError, SafetensorError) as error:
            yield Problem(path.name, f"is damaged: {_reason(error, path)}")
    if (folder / _INDEX).exists():
        try:
            yield from _check_index(_read_object(folder / _INDEX), tensors, elsewhere)
        except (OSError, ValueError) as error:
            yield Problem(_INDEX, _reason(error, folder / _INDEX))
    elif _WEIGHTS not in tensors and not {_WEIGHTS, _INDEX} & elsewhere:
        pickles = sorted(path.name for path in folder.glob("pytorch_model*.bin"))
        if pickles:
            yield Problem(pickles[0], "is a pickle, which cannot be checked: save the weights as safetensors")
        else:
            yield Problem(_WEIGHTS, f"is missing, and there is no {_INDEX}")


def _check_index(
    index: Mapping[str, Any], tensors: Mapping[str, set[str] | None], elsewhere: Set[str]
) -> Iterator[Problem]:
    """Check an index against the tensors of its shards; `None` stands for a damaged shard."""
    shards = index.get("weight_map")
    if not isinstance(shards, dict) or not all(isinstance(name, str) for name in shards.values()):
        raise ValueError("`weight_map` must map tensors to files")
    listed: dict[str, set[str]] = {}
    for tensor, shard in shards.items():
        listed.setdefault(shard, set()).add(tensor)
    for name in sorted(listed.keys() - elsewhere):
        if name not in tensors:
            yield Problem(name, f"is missing, but {_INDEX} lists {len(listed[name])} tensors in it")
        elif (stored := tensors[name]) is not None and stored != listed[name]:
            differing = min(stored ^ listed[name])
            yield Problem(name, f"does not have the tensors that {_INDEX} lists, such as {differing}")
    if _WEIGHTS in tensors and _WEIGHTS not in listed:
        yield Problem(_WEIGHTS, f"is read instead of the shards of {_INDEX}: delete one or the other")


def _check_config(folder: Path, family: Family | None, elsewhere: Set[str]) -> Iterator[Problem]:
    path = folder / _CONFIG
    if not path.exists():
        if _CONFIG not in elsewhere:
            yield Problem(_CONFIG, "is missing")
        return
    try:
        _read_object(path)
        if family is not None:
            AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:  # a wrong value may raise anything
        yield Problem(_CONFIG, _reason(error, path))


def _check_model(folder: Path, family: Family) -> Iterator[Problem]:
    """Compare the weights with those that the configuration asks for, and look for numbers that are not finite."""
    source = _WEIGHTS if (folder / _WEIGHTS).exists() or not (folder / _INDEX).exists() else _INDEX
    names = {_WEIGHTS} if source == _WEIGHTS else set(_read_object(folder / _INDEX)["weight_map"].values())
    files = [folder / name for name in sorted(names) if (folder / name).exists()]
    if len(files) == len(names):
        try:
            yield from _compare(folder, family, files, source)
        except Exception as error:  # a wrong value may raise anything
            yield Problem(_CONFIG, _reason(error, folder / _CONFIG))
    for path in files:
        try:
            not_finite = list(_not_finite(path))
        except Exception as error:  # torch lacks operations for some types
            yield Problem(path.name, f"cannot be read: {_reason(error, path)}")
            continue
        if not_finite:
            yield Problem(path.name, f"has NaN or infinite numbers in {_listed(not_finite)}")


def _compare(folder: Path, family: Family, files: Sequence[Path], source: str) -> Iterator[Problem]:
    """Compare names, shapes and types of all weights of a model with its configuration."""
    config: Any = family.config_class.from_pretrained(folder)
    if getattr(config, "quantization_config", None) is not None:
        return  # Quantised weights have names and shapes of their own.
    head = named_class(family, config)
    if config.architectures is not None and head is None:
        yield Problem(_CONFIG, f"`architectures` must be one model class of hf_ssm, got {config.architectures!r}")
    stored: dict[str, Tensor] = {}
    for path in files:
        try:
            stored |= read_shapes(path)
        except ValueError as error:
            yield Problem(path.name, _reason(error, path))
            return
    fit = compare(head or family.model_classes["Model"], config, stored)
    if fit.missing:
        yield Problem(source, f"lacks weights that {_CONFIG} asks for: {_listed(fit.missing)}")
    if head is not None and fit.unknown:
        yield Problem(source, f"has weights that {_CONFIG} does not ask for: {_listed(fit.unknown)}")
    for name, (weight, wanted) in fit.reshaped.items():
        what = f"has {name} of shape {tuple(weight.shape)}, but {_CONFIG} asks for {tuple(wanted.shape)}"
        yield Problem(source, what)
    for name, (weight, wanted) in fit.retyped.items():
        yield Problem(source, f"has {name} of type {weight.dtype}, but the model has {wanted.dtype} there")


def _not_finite(path: Path) -> Iterator[str]:
    """Names of the tensors of a safetensors file with NaN or infinite numbers."""
    with safe_open(path, framework="pt") as file:
        for name in file.keys():  # noqa: SIM118 - the file is not iterable
            tensor = file.get_tensor(name)
            # There is no test for types of 8 bits.
            is_of_8_bits = tensor.is_floating_point() and tensor.element_size() == 1
            if not (tensor.float() if is_of_8_bits else tensor).isfinite().all():
                yield name


def _listed(names: Iterable[str]) -> str:
    """The first names, and how many more there are."""
    first, *others = [*names]
    return f"{first} and {len(others)} more" if others else first


def _check_code(files: Mapping[str, Path], family: Family | None) -> Iterator[Problem]:
    """Compare Python files with those that the package writes; a header proves nothing."""
    expected = {} if family is None else bundle(family.config_class())
    # Some file systems ignore the case of names.
    for name, path in ((name, path) for name, path in files.items() if name.lower().endswith(".py")):
        content = path.read_bytes()
        if not content.startswith(f"{HEADER} ".encode()):
            yield Problem(name, "is foreign code, not written by hf_ssm: `trust_remote_code=True` may run it")
        # Checkpoints of a training run, in folders below, have the same code.
        elif content != expected.get(path.name, "").encode():
            installed = f"hf_ssm {sys.modules['hf_ssm'].__version__}"
            what = (
                f"has been changed, or was written by another version: {installed} writes other code (renew it: "
                "hf-ssm convert FOLDER)"
            )
            yield Problem(name, what, is_own_code=True)


def _check_json(files: Mapping[str, Path], family: Family | None, elsewhere: Set[str]) -> Iterator[Problem]:
    """Read JSON files, and compare the code that they refer to with the classes of the family."""
    references = set() if family is None else set(auto_map(family).values())
    for path in _at_top(files, ".json"):
        try:
            content = json.loads(path.read_bytes())
        except (OSError, ValueError) as error:
            # Problems of the others have been reported.
            if path.name not in (_CONFIG, _INDEX):
                yield Problem(path.name, f"is not valid JSON: {_reason(error, path)}")
            continue
        for key, reference in _code_references(content):
            if not isinstance(reference, str):
                yield Problem(path.name, f"`{key}` must map Auto classes to names of classes, got {reference!r}")
                continue
            module = reference.partition(".")[0]
            if "--" in reference:
                yield Problem(path.name, f"`{key}` refers to foreign code in another repository: {reference!r}")
            elif path.name == _CONFIG and key == "auto_map" and _is_older_code(files, reference, references):
                what = f"`{key}` refers to code of another version of hf_ssm: {reference!r}"
                yield Problem(path.name, what, is_own_code=True)
            elif path.name != _CONFIG or key != "auto_map" or reference not in references:
                yield Problem(path.name, f"`{key}` refers to foreign code: {reference!r}")
            elif f"{module}.py" not in elsewhere and f"{module}.py" not in files:
                yield Problem(f"{module}.py", f"is missing, but {_CONFIG} refers to {reference}", is_own_code=True)


def _is_older_code(files: Mapping[str, Path], reference: str, current: Set[str]) -> bool:
    """Whether `file.Class` names a class of the family in a file with the header of another version's code."""
    module, _, name = reference.partition(".")
    path = files.get(f"{module}.py")
    is_class_of_family = name in {other.partition(".")[2] for other in current}
    is_ours = path is not None and path.read_bytes().startswith(f"{HEADER} ".encode())
    return reference not in current and is_class_of_family and is_ours


def _read_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file; `ValueError` for other content."""
    content = json.loads(path.read_bytes())
    if not isinstance(content, dict):
        raise ValueError(f"must be a JSON object, got {type(content).__name__}")
    return content


def _code_references(content: Any) -> Iterator[tuple[str, Any]]:
    """Key and reference (`file.Class` or `user/name--file.Class`) of all code that the content of a JSON file names.

    Values that are no reference are returned as they are.
    """
    for key in _CODE_KEYS if isinstance(content, dict) else ():
        waiting = [content.get(key)]
        while waiting:
            value = waiting.pop()
            if isinstance(value, list | dict):
                waiting.extend(value.values() if isinstance(value, dict) else value)
            elif value is not None and (not isinstance(value, str) or "." in value):
                yield key, value


def _verify_cached(repo_id: str, revision: str | None, cache_dir: str | Path | None, token: str | None) -> Verification:
    api = HfApi(token=token)

    def compare() -> Any:
        return api.verify_repo_checksums(repo_id, revision=revision, cache_dir=cache_dir)

    def download(patterns: list[str] | None) -> None:
        api.snapshot_download(repo_id, revision=revision, cache_dir=cache_dir, allow_patterns=patterns)

    try:
        comparison = compare()
    except OSError:
        raise
    except ValueError:  # the cache has nothing of the revision; an HfHubHTTPError may be both
        download(None)
        comparison = compare()
    if any(path.endswith(".py") for path in comparison.missing_paths):
        # `from_pretrained` with hf_ssm installed does not request the code, but others run it.
        download(["*.py"])
        comparison = compare()
    absent = tuple(comparison.missing_paths)
    differing = {
        entry["path"]: f"its {entry['algorithm']} differs from the one on the Hub" for entry in comparison.mismatches
    }
    differing |= dict.fromkeys(comparison.extra_paths, "is not in the repository")
    problems = [Problem(path, what) for path, what in sorted(differing.items())]
    others = check_folder(comparison.verified_path, frozenset(absent))
    problems += [problem for problem in others if problem.path not in differing]
    return Verification(comparison.revision, comparison.checked_count, absent, tuple(problems))


def _reason(error: Exception, path: Path) -> str:
    """Message of an error about a file, without the name of the file."""
    text = " ".join(str(error).split())
    return text.replace(repr(str(path)), "it").replace(str(path), "it")
