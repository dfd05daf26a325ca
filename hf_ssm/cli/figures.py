"""The figures of `hf-ssm train`."""

import sys
from collections.abc import Callable
from pathlib import Path

from hf_ssm import plotting
from hf_ssm.cli.checkpoints import unit_of
from hf_ssm.training.folder import PICTURE_NAME, RESPONSE_PICTURE_NAME
from hf_ssm.training.run import RunResult
from hf_ssm.utils.files import staged_files


def draw_run(result: RunResult, output: Path, name: str) -> set[str]:
    """Draw the training log and, for long convolutions, the frequency responses before and after training.

    A figure that cannot be drawn is named on stderr.

    Args:
        result: A finished run.
        output: Its folder.
        name: Its name, for the titles.

    Returns:
        The names of the files that were written.
    """
    if not plotting.can_plot():
        print(f"No {PICTURE_NAME}: {plotting.INSTALL_HINT}", file=sys.stderr)
        return set()
    figures: dict[str, Callable[[Path], object]] = {}
    if any("loss" in entry for entry in result.log_history):  # there is no curve without a step
        figures[PICTURE_NAME] = lambda path: _draw_log(result, path, name)
    if result.responses[1]:
        figures[RESPONSE_PICTURE_NAME] = lambda path: _draw_responses(result, path, name)
    written: set[str] = set()
    for file, draw in figures.items():
        try:
            with staged_files(output) as scratch:
                draw(scratch / file)
                new = {path.name for path in scratch.iterdir()}
            written |= new
        # An installation of matplotlib can fail in many ways, and no figure is worth the run.
        except Exception as error:
            print(f"No {file}: {type(error).__name__}: {' '.join(str(error).split())}", file=sys.stderr)
    return written


def _draw_log(result: RunResult, path: Path, name: str) -> None:
    metrics = sorted({metric for values in result.results.values() for metric in values} - {"loss"})
    title = f"Training of {name}"
    plotting.plot_training_log(result.log_history, path, metrics, title, chance=result.chance, tau=result.tau)


def _draw_responses(result: RunResult, path: Path, name: str) -> None:
    unit = unit_of(result.data.tokenizer)
    title = f"Frequency response of each convolution of {name}"
    plotting.plot_frequency_responses(*result.responses, path, title, length=result.data.longest, unit=unit)
