"""Whether a checkpoint is whole: a local folder by what its files say of each other, a downloaded one by checksums.

A download is only checked for its size by the client, so a byte that changed on the way or on the disk goes unseen
until it is compared with the Hub's checksums.
"""

import ast
import json
from collections.abc import Iterator, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi
from huggingface_hub.utils import validate_repo_id
from safetensors import SafetensorError, safe_open
from transformers import AutoConfig

from hf_ssm.hub.client import as_one_line, patiently, without_token
from hf_ssm.models.registry import FAMILIES

__all__ = ["Problem", "Verification", "check_folder", "verify"]

_CONFIG, _WEIGHTS, _INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
_OURS = frozenset(family.config_class.model_type for family in FAMILIES.values())


@dataclass(frozen=True)
class Problem:
    """One bad file, by its path in the folder or repository, and what is wrong with it."""

    path: str
    what: str

    def __str__(self) -> str:
        return f"{self.path}: {self.what}"


@dataclass(frozen=True)
class Verification:
    """What `verify` found.

    Attributes:
        source: the folder, or USER/NAME.
        commit: that a downloaded repository was compared with; None for a local folder.
        checked: number of files that were looked at.
        absent: files of the repository that are not in the cache, as nothing has asked for them yet.
        problems: one for each bad file; empty if all is well.
    """

    source: str
    commit: str | None
    checked: int
    absent: tuple[str, ...]
    problems: tuple[Problem, ...]


def verify(
    source: str | Path, revision: str | None = None, *, cache_dir: str | Path | None = None, token: str | None = None
) -> Verification:
    """Check a checkpoint before it is used.

    Of a local folder: the headers of its weights against their sizes, shards against their index, the configuration
    and other JSON files, and the code that the configuration names. Of a repository on the Hub: the same, and the copy
    in the cache, which is downloaded if it is not there, against the Hub's checksums.

    Args:
        source: a folder, or USER/NAME.
        revision: branch, tag or commit of a repository; by default main, as it was downloaded last.
        cache_dir: the cache; by default that of the Hub's client.
        token: by default the stored login.

    Raises:
        ValueError: if there is neither such a folder nor such a repository or revision, or it may not be seen.
        OSError: if the Hub cannot be reached.
    """
    folder = Path(source).expanduser()
    if folder.is_dir():
        if revision is not None:
            raise ValueError(f"revision={revision!r} is for a repository on the Hub, and {str(source)!r} is a folder")
        return Verification(str(source), None, sum(1 for _ in _files(folder)), (), tuple(check_folder(folder)))
    if isinstance(source, Path) or str(source).count("/") > 1 or str(source).startswith((".", "~", "/")):
        raise ValueError(f"{str(source)!r} is no folder")
    try:
        validate_repo_id(source)
        return _verify_cached(source, revision, cache_dir, token)
    except Exception as error:  # of the client, of the HTTP library, of the disk
        raise as_one_line(error, source, revision, token) from without_token(error, token)


def check_folder(folder: str | Path, elsewhere: Set[str] = frozenset()) -> list[Problem]:
    """What is wrong with the files of a folder, by what they say of each other.

    Args:
        folder: as `save_pretrained` or `export` left it.
        elsewhere: names of files that belong to it and may be absent, as in a cache that has only what was asked for.
    """
    folder = Path(folder)
    return [
        *_check_weights(folder, elsewhere),
        *_check_config(folder, elsewhere),
        *_check_json(folder),
        *_check_code(folder, elsewhere),
    ]


def _verify_cached(repo_id: str, revision: str | None, cache_dir: str | Path | None, token: str | None) -> Verification:
    api = HfApi(token=token)

    def compare() -> Any:
        return patiently(lambda: api.verify_repo_checksums(repo_id, revision=revision, cache_dir=cache_dir))

    try:
        found = compare()
    except ValueError as error:
        # Nothing of it is in the cache; a Hub that refuses says so as an OSError.
        if isinstance(error, OSError):
            raise
        patiently(lambda: api.snapshot_download(repo_id, revision=revision, cache_dir=cache_dir))
        found = compare()
    bad = {
        mismatch["path"]: f"its {mismatch['algorithm']} is not the one on the Hub" for mismatch in found.mismatches
    } | dict.fromkeys(found.extra_paths, "it is not in the repository")
    others = check_folder(found.verified_path, frozenset(found.missing_paths))
    problems = [Problem(path, what) for path, what in sorted(bad.items())]
    problems += [problem for problem in others if problem.path not in bad]
    return Verification(repo_id, found.revision, found.checked_count, tuple(found.missing_paths), tuple(problems))


def _files(folder: Path) -> Iterator[Path]:
    """The files at the top, by name."""
    return (path for path in sorted(folder.iterdir()) if path.is_file())


def _reason(error: Exception, path: Path) -> str:
    """What is said of a file, without its name."""
    text = " ".join(str(error).split())
    for name in (repr(str(path)), str(path)):
        text = text.replace(f"{name} ", "it ") if text.startswith(f"{name} ") else text.replace(name, "it")
    return text


def _check_weights(folder: Path, elsewhere: Set[str]) -> Iterator[Problem]:
    """Sizes and headers of all safetensors files, and an index against its shards."""
    held: dict[str, set[str]] = {}
    damaged: set[str] = set()
    for path in folder.glob("*.safetensors"):
        try:
            with safe_open(path, "pt") as file:
                held[path.name] = set(file.keys())
        except (OSError, SafetensorError) as error:
            damaged.add(path.name)
            yield Problem(path.name, f"is cut off or damaged: {_reason(error, path)}")
    if not held and not damaged and not any(name.endswith(".safetensors") for name in elsewhere):
        pickles = sorted(path.name for path in folder.glob("*.bin") if path.name.startswith("pytorch_model"))
        if pickles:
            yield Problem(pickles[0], "a pickle, which cannot be checked: save the weights as safetensors")
        else:
            yield Problem(_WEIGHTS, "is not there, nor are there other weights")
    index = folder / _INDEX
    if index.exists():
        yield from _check_index(index, held, damaged | elsewhere)
    elif _INDEX not in elsewhere:
        shards = sorted(name for name in (*held, *damaged) if "-of-" in name)
        yield from (Problem(name, f"is a shard, but there is no {_INDEX}") for name in shards)


def _check_index(index: Path, held: dict[str, set[str]], unknown: Set[str]) -> Iterator[Problem]:
    """An index against the tensors of its shards; nothing is said of the shards that are `unknown`."""
    try:
        content = json.loads(index.read_bytes())
        places = content["weight_map"]
        if not isinstance(places, dict) or not isinstance(content["metadata"], dict):
            raise ValueError("`weight_map` and `metadata` must be objects")
    except (KeyError, OSError, RecursionError, TypeError, ValueError) as error:
        yield Problem(index.name, _reason(error, index))
        return
    shards = set(places.values())
    for name in sorted(shards - held.keys() - unknown):
        count = sum(place == name for place in places.values())
        yield Problem(name, f"is not there, but {index.name} names it for {count} tensors")
    for name in sorted(shards & held.keys()):
        named = {tensor for tensor, place in places.items() if place == name}
        for tensor in sorted(named ^ held[name])[:1]:
            where = "is in the index only" if tensor in named else "is not in the index"
            yield Problem(name, f"{tensor} {where}")
    if _WEIGHTS in held and _WEIGHTS not in shards:
        yield Problem(_WEIGHTS, f"is read in the place of the shards of {index.name}: delete one or the other")
    for name in sorted(shard for shard in held.keys() - shards if "-of-" in shard):
        yield Problem(name, f"is a shard that {index.name} does not name")


def _check_config(folder: Path, elsewhere: Set[str]) -> Iterator[Problem]:
    path = folder / _CONFIG
    if not path.exists() and _CONFIG in elsewhere:
        return
    try:
        kind = json.loads(path.read_bytes()).get("model_type")
        if kind in _OURS:
            AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except FileNotFoundError:
        yield Problem(_CONFIG, "is not there")
    except Exception as error:  # whatever a wrong value makes of it
        yield Problem(_CONFIG, _reason(error, path))


def _check_json(folder: Path) -> Iterator[Problem]:
    """Whether the other JSON files, of tokenizer and generation, can be read."""
    for path in sorted(folder.glob("*.json")):
        if path.name in (_CONFIG, _INDEX):
            continue
        try:
            json.loads(path.read_bytes())
        except (OSError, ValueError, RecursionError) as error:
            yield Problem(path.name, f"is no valid JSON: {_reason(error, path)}")


def _check_code(folder: Path, elsewhere: Set[str]) -> Iterator[Problem]:
    """The files that the configuration names as the model's code, and those that these import."""
    try:
        named = json.loads((folder / _CONFIG).read_bytes()).get("auto_map") or {}
    except (AttributeError, OSError, RecursionError, ValueError):
        return  # said already
    classes = [name for value in named.values() for name in (value if isinstance(value, list) else [value]) if name]
    waiting = sorted({f"{name.split('.')[0]}.py" for name in classes if "--" not in name})
    done: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in done:
            continue
        done.add(name)
        path = folder / name
        try:
            tree = ast.parse(path.read_bytes(), filename=name)
        except FileNotFoundError:
            if name not in elsewhere:
                yield Problem(name, "is not there, but the model's code needs it")
            continue
        except (OSError, SyntaxError, ValueError) as error:
            yield Problem(name, f"cannot be read as code: {error}")
            continue
        defined = {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
        for wanted in sorted({entry.split(".")[1] for entry in classes if f"{entry.split('.')[0]}.py" == name}):
            if wanted not in defined:
                yield Problem(name, f"has no class {wanted}, which {_CONFIG} names")
        imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.level == 1]
        waiting += [f"{node.module}.py" for node in imports if node.module]
