"""How a model reads sequences: the case of letters, columns and windows, as in its training."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ReadOptions:
    """How the training of a model read its sequences, which inference repeats.

    Stored with a model as the section `data` of its `train_config.yaml`; `ReadOptions.of_training` takes that section.

    Attributes:
        keep_case: Whether lower-case letters (soft-masked repeats) of genomes stay; by default they become capitals.
        sequence_column: Column of the sequences in a table.
        window: Letters of a window of a longer sequence; None for whole sequences.
        max_length: Longest row in tokens; None for no limit.
    """

    keep_case: bool = False
    sequence_column: str = "sequence"
    window: int | None = None
    max_length: int | None = None

    @classmethod
    def of_training(cls, data: Mapping[str, Any], **changes: Any) -> "ReadOptions":
        """The options of a section `data`; `changes` that are not None replace them."""
        values = {**data, **{name: value for name, value in changes.items() if value is not None}}
        return cls(**{field.name: values[field.name] for field in fields(cls) if values.get(field.name) is not None})

    def letters(self, sequence: str, source: str | Path) -> str:
        """A sequence in capitals unless the case is kept; one line of the log says so if that changes a letter."""
        capitals = sequence if self.keep_case else sequence.upper()
        if capitals != sequence:
            note_capitals(source)
        return capitals


DEFAULTS = ReadOptions()
"""The options of a model that is not known to differ."""


@lru_cache
def note_capitals(source: str | Path) -> None:
    """Log, once for each file, that its lower-case letters become capitals: files are read several times."""
    logger.warning(
        "%s: lower-case (soft-masked) letters are read as capitals; keep_case=True (--keep-case, or --set "
        "data.keep_case=true for hf-ssm train) keeps them.",
        Path(source).name,
    )
