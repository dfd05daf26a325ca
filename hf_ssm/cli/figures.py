"""The figures of `hf-ssm train`."""

from pathlib import Path

from hf_ssm import plotting
from hf_ssm.cli.checkpoints import unit_of
from hf_ssm.training.folder import PICTURE_NAME, RESPONSE_PICTURE_NAME
from hf_ssm.training.run import RunResult


def draw_run(result: RunResult, folder: Path, name: str) -> None:
    """Write the training log and, for long convolutions, the frequency responses before and after training."""
    metrics = sorted({name for values in result.results.values() for name in values} - {"loss"})
    title = f"Training of {name}"
    log = folder / PICTURE_NAME
    plotting.plot_training_log(result.log_history, log, metrics, title, chance=result.chance, tau=result.tau)
    if result.responses[1]:
        path, unit = folder / RESPONSE_PICTURE_NAME, unit_of(result.data.tokenizer)
        title = f"Frequency response of each convolution of {name}"
        plotting.plot_frequency_responses(*result.responses, path, title, length=result.data.longest, unit=unit)
