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

# Where the result of a job ends below the window, the page moves so that the button, the message and the result begin
# at its top; not if the visitor has opened another tab.
_SHOW = """() => {
    const [buttons, result] = ["buttons", "result"].map(part => document.getElementById(`NAME-${part}`));
    if (result?.checkVisibility() && result.getBoundingClientRect().bottom > innerHeight) buttons.scrollIntoView();
}"""

Work = Callable[..., str]
"""A computation: from a `Job` and the values of the inputs to HTML."""


class Jobs:
    """The running computations of all visitors. One runs at a time, others wait."""

    def __init__(self) -> None:
        self._running: dict[tuple[str | None, str], Job] = {}

    def stop(self, request: gr.Request) -> None:
        """Stop everything that runs for a visitor."""
        for (session, _), job in list(self._running.items()):
            if session == request.session_hash:
                job.stop()

    def add_button(self, label: str, work: Work, inputs: Sequence[Any], unit: str = "steps") -> None:
        """Add a button that runs `work`, one that cancels it, a line for progress and messages, and the result.

        Args:
            label: Of the button.
            work: The computation.
            inputs: Components whose values it takes after the job.
            unit: What its progress counts.
        """
        name = "-".join(label.lower().split())
        with gr.Row(elem_id=f"{name}-buttons", elem_classes="job-buttons"):
            start = gr.Button(label, variant="primary", min_width=120, scale=0)
            cancel = self._cancel_button(label)
        message, result = gr.HTML(), gr.HTML(elem_id=f"{name}-result")

        def run(request: gr.Request, *values: Any) -> Iterator[tuple[Any, ...]]:
            yield from self._run(label, work, unit, request, values)

        finished = start.click(
            run,
            list(inputs),
            [start, cancel, message, result],
            concurrency_limit=1,
            concurrency_id="model",
            show_progress="hidden",
            api_visibility="private",
        )
        finished.then(None, None, None, js=_SHOW.replace("NAME", name), api_visibility="private")

    def add_upload(self, label: str, work: Callable[[str], str], file_types: Sequence[str], text: gr.Textbox) -> None:
        """Add a button that uploads a file, and a line for messages.

        Args:
            label: Of the button.
            work: From the path of the file to the value of `text`.
            file_types: Suffixes of the files.
            text: The input field.
        """
        upload = gr.UploadButton(label, file_types=[*file_types], file_count="single", size="md")
        message = gr.HTML()

        def run(path: str) -> tuple[Any, Any]:
            try:
                return markup.note("The file is in the field."), work(path)
            except ValueError as error:
                return markup.error(" ".join(str(error).split())), gr.skip()

        upload.upload(run, upload, [message, text], show_progress="hidden", api_visibility="private")

    def _cancel_button(self, label: str) -> gr.Button:
        """A hidden button that stops the work of that label."""
        cancel = gr.Button("Cancel", variant="stop", visible=False, min_width=120, scale=0)

        def stop(request: gr.Request) -> None:
            job = self._running.get((request.session_hash, label))
            if job is not None:
                job.stop()

        cancel.click(stop, queue=False, show_progress="hidden", api_visibility="private")
        return cancel

    def _run(
        self, label: str, work: Work, unit: str, request: gr.Request, values: Sequence[Any]
    ) -> Iterator[tuple[Any, ...]]:
        """Updates of start button, cancel button, message and result while `work` runs."""
        job = self._running[request.session_hash, label] = Job(unit)
        busy = gr.update(interactive=False), gr.update(visible=True)
        idle = gr.update(interactive=True), gr.update(visible=False)
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
            self._running.pop((request.session_hash, label), None)


def _stopped(job: Job) -> str:
    if not job.total:
        return f"Cancelled after {job.seconds:.0f} s."
    return f"Cancelled after {job.done:,} of {job.total:,} {job.unit}."
