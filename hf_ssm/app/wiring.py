"""Buttons that start and stop computations, and the messages around them."""

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import gradio as gr
from torch import OutOfMemoryError

from hf_ssm.app import markup
from hf_ssm.app.jobs import Job, Stopped

__all__ = ["Jobs", "Work"]

logger = logging.getLogger(__name__)

# Input that cannot be used, and limits of the machine: one line is enough.
_EXPECTED = (ValueError, OSError, ImportError, MemoryError, OutOfMemoryError)

Work = Callable[..., str]
"""A computation: from a `Job` and the values of the inputs to HTML."""


class Jobs:
    """The running computations of all visitors. One runs at a time, the others wait in a queue."""

    def __init__(self) -> None:
        self._of_sessions: dict[str | None, Job] = {}

    def stop(self, request: gr.Request) -> None:
        """Stop the computation of a visitor, if one runs."""
        job = self._of_sessions.get(request.session_hash)
        if job is not None:
            job.stop()

    def add_button(self, label: str, work: Work, inputs: Sequence[Any], unit: str = "steps") -> None:
        """Add a button that runs `work`, one that cancels it, a line for progress and messages, and the result.

        Args:
            label: Of the button.
            work: The computation.
            inputs: Components whose values it takes after the job.
            unit: What its progress counts.
        """
        with gr.Row():
            start = gr.Button(label, variant="primary", min_width=120, scale=0)
            cancel = gr.Button("Cancel", variant="stop", visible=False, min_width=120, scale=0)
        message, result = gr.HTML(), gr.HTML()

        def run(request: gr.Request, *values: Any) -> Iterator[tuple[Any, ...]]:
            yield from self._run(label, work, unit, request, values)

        start.click(
            run,
            list(inputs),
            [start, cancel, message, result],
            concurrency_limit=1,
            concurrency_id="model",
            show_progress="hidden",
            api_visibility="private",
        )
        cancel.click(self.stop, queue=False, show_progress="hidden", api_visibility="private")

    def _run(
        self, label: str, work: Work, unit: str, request: gr.Request, values: Sequence[Any]
    ) -> Iterator[tuple[Any, ...]]:
        """Updates of start button, cancel button, message and result while `work` runs."""
        job = self._of_sessions[request.session_hash] = Job(unit)
        busy = gr.Button(interactive=False), gr.Button(visible=True)
        idle = gr.Button(interactive=True), gr.Button(visible=False)
        yield *busy, markup.progress(job), ""
        try:
            running = job.run(lambda: work(job, *values))
            while True:
                try:
                    next(running)
                except StopIteration as finished:
                    yield *idle, "", finished.value
                    return
                yield gr.skip(), gr.skip(), markup.progress(job), gr.skip()
        except Stopped:
            yield *idle, markup.note(_stopped(job)), gr.skip()
        except _EXPECTED as error:
            yield *idle, markup.error(" ".join(str(error).split()) or type(error).__name__), gr.skip()
        except Exception as error:
            logger.exception("%s failed", label)
            sentence = f"The computation failed with a {type(error).__name__}; the log of the server has the details."
            yield *idle, markup.error(sentence), gr.skip()
        finally:
            job.stop()
            self._of_sessions.pop(request.session_hash, None)


def _stopped(job: Job) -> str:
    if not job.total:
        return f"Cancelled after {job.seconds:.0f} s."
    return f"Cancelled after {job.done:,} of {job.total:,} {job.unit}."
