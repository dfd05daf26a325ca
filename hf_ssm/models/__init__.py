"""Model families. Each folder beside `base` is one; importing this package imports, and so registers, all of them."""

import importlib
import pkgutil

for _entry in pkgutil.iter_modules(__path__):
    if _entry.ispkg and _entry.name != "base":
        importlib.import_module(f"{__name__}.{_entry.name}")
