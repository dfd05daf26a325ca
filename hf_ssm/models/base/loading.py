"""What `from_pretrained` sees to beside what transformers does: files that mean harm, and models of random weights."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

from safetensors import SafetensorError

from hf_ssm.models.base.files import check_folder


@contextmanager
def readable(source: Any, options: dict[str, Any]) -> Iterator[None]:
    """Check the files of a folder, and have what is said of those that cannot be read be one line.

    Args:
        source: Folder, Hub id or `None`.
        options: Keyword arguments of `from_pretrained`.

    Raises:
        FileNotFoundError: A file that an index names is not there.
        ValueError: Files that are not what they claim to be, or lie elsewhere.
    """
    folder = None if source is None else Path(source, options.get("subfolder") or "")
    if folder is not None and folder.is_dir():
        check_folder(folder, options.get("variant"), options.get("use_safetensors"))
    try:
        yield
    except (EOFError, RuntimeError, SafetensorError, UnpicklingError) as error:
        if isinstance(error, RuntimeError) and "PytorchStreamReader" not in str(error):
            raise
        # What torch says of a pickle is how to run it all the same.
        why = error if isinstance(error, SafetensorError) else "a damaged pickle, or one that runs code"
        raise ValueError(f"the weights of {str(source)!r} cannot be read: {why}") from error


def check_some_loaded(model: Any, source: Any, missing: list[str]) -> None:
    """Raise `ValueError` where no weight of the backbone was found; transformers warns, and draws random ones.

    Args:
        model: As it was loaded.
        source: From where, for the message.
        missing: Names of the weights that were not there.
    """
    prefix = "" if model.base_model is model else model.base_model_prefix
    wanted = [name for name, _ in model.base_model.named_parameters(prefix=prefix)]
    if set(missing).issuperset(wanted):
        raise ValueError(
            f"{str(source)!r} holds no weight of a {type(model).__name__} (such as {wanted[0]}): it is a checkpoint of "
            "another model."
        )


__all__ = ["check_some_loaded", "readable"]
