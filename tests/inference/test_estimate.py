"""Times in words."""

import pytest

from hf_ssm.inference.estimate import duration


@pytest.mark.parametrize(("seconds", "text"), [(0.1, "1 s"), (89, "89 s"), (600, "10 min"), (9000, "2.5 h")])
def test_durations(seconds, text):
    assert duration(seconds) == text
