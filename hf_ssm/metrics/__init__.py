"""Our metrics as modules of the evaluate library: each lies in a folder that `evaluate.load` takes.

They load without a network, keep sums instead of examples, and can be pushed as Spaces. Importing this package does not
import evaluate.
"""

import difflib
import importlib
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_ssm.metrics.spaces import push

if TYPE_CHECKING:
    import evaluate

__all__ = ["NAMES", "load", "path", "push"]

NAMES = ("accuracy", "f1", "generalization_gap", "mcc", "pass_rate", "perplexity", "tau")
"""The metrics there are."""


def path(name: str) -> Path:
    """The folder of a metric, for `evaluate.load(str(path(name)))`.

    Raises:
        ValueError: for an unknown name; it lists those there are.
    """
    if name not in NAMES:
        near = difflib.get_close_matches(str(name), NAMES, n=1)
        meant = f" (did you mean {near[0]!r}?)" if near else ""
        raise ValueError(f"metric must be one of {', '.join(NAMES)}, got {name!r}{meant}")
    return Path(__file__).parent / name


def load(name: str, config_name: str | None = None, *, source: str = "package", **options: Any) -> "evaluate.Metric":
    """One of our metrics, ready for `add_batch` and `compute`.

    Args:
        name: one of `NAMES`.
        config_name: of the metric's configurations, where it has several (`accuracy` and `perplexity`: "sums"; `tau`:
            "channels"); by default "default".
        source: "package", which needs no network; or "hub", the metric that the Hub has under this name, whose code is
            downloaded and run, with our result names (and ours, with a warning, where that does not work).
        options: of `evaluate.load`, such as `num_process`, `process_id`, `experiment_id` and `cache_dir`.

    Returns:
        The metric; its `description` and `inputs_description` say what it takes and gives.

    Raises:
        ValueError: for an unknown name, configuration or source.
    """
    folder = path(name)
    if source not in ("package", "hub"):
        raise ValueError(f"source must be 'package' or 'hub', got {source!r}")
    module = importlib.import_module(f"{__name__}.{folder.name}.{folder.name}")
    from evaluate.loading import import_main_class

    ours = import_main_class(module.__name__)(config_name=config_name, **options)
    if source == "package":
        return ours
    from hf_ssm.metrics.from_hub import from_hub

    try:
        return from_hub(ours)
    except Exception as error:  # of the network, of the Hub, of the code that came from it
        reason = " ".join(str(error).split()) or type(error).__name__
        warnings.warn(f"metric {name!r} of the Hub cannot be used ({reason}): ours is used instead", stacklevel=2)
        return ours
