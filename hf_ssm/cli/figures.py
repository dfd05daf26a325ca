"""The figures of `hf-ssm train`."""

import sys
from collections.abc import Callable
from pathlib import Path

from hf_ssm import plotting
from hf_ssm.cli.checkpoints import can_draw, unit_of
from hf_ssm.training.folder import PICTURE_NAME, RESPONSE_PICTURE_NAME
from hf_ssm.training.run import RunResult
from hf_ssm.utils.files import staged_files


def draw_run(result: RunResult, output: Path) -> set[str]:
    """Draw the training log and, for long convolutions, the frequency responses before and after training.

    Returns:
        Names of the figures; one that cannot be drawn is named on stderr.
    """
    if not can_draw(PICTURE_NAME):
        return set()
    figures: dict[str, Callable[[Path], object]] = {}
    if any("loss" in entry for entry in result.log_history):  # without a step there is no curve
        metrics = sorted({name for values in result.results.values() for name in values} - {"loss"})
        title = f"Training of {output.name}"
        figures[PICTURE_NAME] = lambda path: plotting.plot_training_log(
            result.log_history, path, metrics, title, chance=result.chance.get("validation"), tau=result.tau
        )
    if result.responses[1]:
        about, unit = f"Frequency response of each convolution of {output.name}", unit_of(result.data.tokenizer)
        figures[RESPONSE_PICTURE_NAME] = lambda path: plotting.plot_frequency_responses(
            *result.responses, path, about, length=result.data.longest, unit=unit
        )
    drawn = set()
    for name, draw in figures.items():
        try:
            with staged_files(output) as scratch:
                draw(scratch / name)
            drawn.add(name)
        # An installation of matplotlib can fail in many ways, and no figure is worth the run.
        except Exception as error:
            print(f"No {name}: {type(error).__name__}: {' '.join(str(error).split())}", file=sys.stderr)
    return drawn
