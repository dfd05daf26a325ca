"""Model cards, and the way to and from the Hugging Face Hub."""

import importlib
from typing import Any

_LAZY = {
    "check_folder": "verifying",
    "export": "exporting",
    "export_program": "programs",
    "push": "pushing",
    "push_folder": "pushing",
    "verify": "verifying",
}

__all__ = sorted(_LAZY)


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"hf_ssm.hub.{_LAZY[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_LAZY])
