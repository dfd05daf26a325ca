"""The colours of importance, in pictures and in HTML alike."""

import itertools

__all__ = ["GREY", "colour_of", "ink_on", "shade_of"]

_Stations = tuple[tuple[float, tuple[int, int, int]], ...]

# Stations of cividis, a map made to look alike to readers with and without colour vision, from light to dark: what
# matters is dark on a white page. The lightest part is left out, as no letter could be read in it.
_LETTERS: _Stations = (
    (0.0, (214, 195, 96)),
    (0.25, (172, 160, 116)),
    (0.5, (124, 123, 120)),
    (0.75, (67, 78, 108)),
    (1.0, (0, 32, 76)),
)
# Behind letters what does not matter may be as light as the page.
_GROUNDS: _Stations = ((0.0, (255, 250, 229)), (0.4, (214, 195, 96)), *((0.4 + 0.6 * at, c) for at, c in _LETTERS[1:]))
GREY = "#C4C4C4"
"""Of tokens that are never masked."""


def colour_of(importance: float) -> str:
    """The colour of a letter of an importance from 0 to 1, as #RRGGBB; what is outside counts as the nearer end."""
    return _between(_LETTERS, importance)


def shade_of(importance: float) -> str:
    """The same for the ground behind letters, which begins lighter."""
    return _between(_GROUNDS, importance)


def _between(stations: _Stations, importance: float) -> str:
    share = min(max(importance, 0.0), 1.0)
    for (start, low), (end, high) in itertools.pairwise(stations):
        if share <= end:
            way = (share - start) / (end - start)
            return "#" + "".join(f"{round(a + (b - a) * way):02X}" for a, b in zip(low, high, strict=True))
    raise ValueError(f"`importance`={importance!r}: give a share from 0 to 1.")


def ink_on(colour: str) -> str:
    """Black or white, whichever is read more easily on #RRGGBB (by the contrast ratio of WCAG 2)."""
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    # Where both have the same contrast: (Y + 0.05)² = 0.05 · 1.05.
    return "#000000" if luminance > 0.1791 else "#FFFFFF"
