"""Frequency responses of a model's operators, and the useful range of the frequency scale α.

Legend: `C` kernels of one convolution in one direction, `F` frequencies.
"""

import copy
import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hf_ssm.analysis.recording import sequence_operators
from hf_ssm.models.base.configuration import SSMConfig
from hf_ssm.modules.operator import SequenceOperator, materialized
from hf_ssm.ops.long_conv import fast_length
from hf_ssm.ops.lti.hippo import initial_eigenvalues
from hf_ssm.ops.lti.transfer import frequency_grid
from hf_ssm.theory.frequency import alpha_max, alpha_max_from_spectrum, sampled_total_variation
from hf_ssm.theory.spectrum import distance_from_flat, spectral_edge

__all__ = [
    "AlphaRecommendation",
    "FrequencyResponse",
    "alpha_recommendation",
    "band_total_variation",
    "frequency_responses",
    "has_frequency_responses",
]

_QUANTILES = (0.5, 0.9, 0.99)
# The share of the power that the fastest poles should reach, and the distance below which a spectrum is nearly flat:
# sequences of DNA have 0.02 to 0.06, slow signals 0.5 and more.
_BAND, _FLAT = 0.9, 0.1
# The coarsest and the finest even grid of a polygon; numbers held at a time.
_COARSEST, _FINEST = 2**12, 2**20
_AT_ONCE = 2**23
# Nodes around a pole for each factor of e in the distance; additional even nodes; greatest number for a row.
_NODES_PER_FOLD, _EVEN, _FINEST_GRADED = 2, 64, 2**17
# Narrower peaks than this are beyond the spacing of double precision numbers.
_NARROWEST = 1e-13
_ROUNDING = 1e-12


@dataclasses.dataclass(frozen=True, eq=False)
class FrequencyResponse:
    """The response of one long convolution in one direction of time, of the whole (untruncated) kernel.

    It includes the feed-through (in the forward direction) and the Sobolev filter: (1 + s)^β in the causal mode, the
    weight (1 + |s|)^β in the zero-phase mode. With `sobolev_frequency="bilinear"` and β > 0 the response at π is
    infinite. The response of a two-sided convolution is forward(ω) + e^{iω} conj(backward(ω)). The response of S5 is
    the gain of each output channel, the norm of its row of the transfer matrix.

    Attributes:
        name: Path of the module within the backbone, such as "layers.0.mixer.long_conv".
        layer: Number of the block.
        direction: "forward", or "backward" for the kernel that runs from the end of the sequence; its response is in
            this direction of time.
        omega: `(F,)`, radians per sample in [0, π]; divided by 2π: cycles per sample.
        response: `(C, F)`, complex128, on the CPU.
        group: Index among the convolutions that share a generator (Hyena of order > 2); else 0.
        operator: A copy of the module on the CPU; `None` if only the samples are known.
    """

    name: str
    layer: int
    direction: str
    omega: Tensor
    response: Tensor
    group: int = 0
    operator: SequenceOperator | None = dataclasses.field(default=None, repr=False)

    @property
    def rows(self) -> Tensor:
        """Indices of the kernels among the rows of `LongFilter.response`."""
        if self.operator is None:
            raise ValueError(f"the response of {self.name} has no `operator`: only its samples are known.")
        channels = torch.arange(self.group, self.operator.channels, self.operator.groups)
        return channels + (self.direction == "backward") * self.operator.channels


def has_frequency_responses(model: nn.Module) -> bool:
    """Whether a model has a long convolution, or another operator with a frequency response."""
    return any(operator.frequency_response is not None for _, _, operator in sequence_operators(model))


def frequency_responses(model: nn.Module, num_frequencies: int = 512) -> list[FrequencyResponse]:
    """The frequency responses of all operators of a model that have a frequency response.

    Selective scans have none: their kernel changes from token to token.

    Args:
        model: A model of hf_ssm, bare, with a head, or in a wrapper.
        num_frequencies: F, evenly spaced from 0 to π, both included.

    Returns:
        The responses by layer, direction and group.

    Raises:
        ValueError: The model has no long convolution, or `num_frequencies` is below 2.

    Source: Yu et al. 2025, eqs. (2), (3) and (8), for the discrete kernels.
    """
    omega = frequency_grid(num_frequencies)
    responses = []
    for name, layer, module in sequence_operators(model):
        if module.frequency_response is None:
            continue
        with materialized(*module.modules()), torch.no_grad():
            operator = _frozen_copy(module)
        for direction in ("forward", "backward")[: operator.directions]:
            for group in range(operator.groups):
                place = FrequencyResponse(name, layer, direction, omega, torch.empty(0), group, operator)
                response = operator.frequency_response(omega, place.rows)
                responses.append(dataclasses.replace(place, response=response))
    if not responses:
        raise ValueError(
            f"{type(model).__name__} has no operator with a frequency response: a selective scan varies "
            "in time. Give a Hyena, S4 or S5 model."
        )
    return responses


def _frozen_copy(module: SequenceOperator) -> SequenceOperator:
    """A copy on the CPU without gradients, and without the hooks with which accelerate keeps weights elsewhere."""
    hooks = [inner._hf_hook for inner in module.modules() if hasattr(inner, "_hf_hook")]
    # Entries of the memo are not copied: a hook holds the weights of the whole model.
    operator = copy.deepcopy(module, {id(hook): None for hook in hooks})
    for inner in operator.modules():
        if "_hf_hook" in inner.__dict__:
            for name in ("_hf_hook", "_old_forward", "forward"):
                inner.__dict__.pop(name, None)
    return operator.cpu().requires_grad_(False)


def band_total_variation(response: FrequencyResponse, edges: Sequence[float], rtol: float = 1e-4) -> Tensor:
    """The total variation of each kernel's response over bands of frequency.

    Frequency bias means a larger variation at low frequencies than at high ones. The result is the variation of the
    kernel, not of the samples: the limit of the lengths of polygons on ever finer nodes. If the poles are known and the
    response at a single frequency is cheap, nodes concentrate around each pole according to its width, so that no peak
    is missed. For implicit and sinusoid filters, and S4 with the zero-order hold, nodes are evenly spaced, at most 2^20
    (or eight per tap, if that is more): peaks narrower than about 1e-6 radians may be missed. For a response without
    `operator`, the result is the variation of its samples, a lower bound.

    Args:
        response: An entry of the result of `frequency_responses`.
        edges: Ends of the bands, ascending, in radians per sample in [0, π].
        rtol: Relative accuracy.

    Returns:
        `(C, len(edges) - 1)`, float64. Infinite where the response is infinite; NaN for a kernel that holds NaN.

    Raises:
        ValueError: Fewer than two edges, edges out of order or range.

    Source: Yu et al. 2025, Section 2, for the response of the discrete kernel.
    """
    return variation_of_kernels(response, torch.arange(len(response.response)), edges, rtol)


def variation_of_kernels(response: FrequencyResponse, kernels: Tensor, edges: Sequence[float], rtol: float) -> Tensor:
    """`band_total_variation` of some kernels of a response, by their indices, `(len(kernels), len(edges) - 1)`."""
    samples, operator = response.response[kernels], response.operator
    polygon = sampled_total_variation(samples, response.omega, edges)
    if operator is None:
        return polygon
    rows = response.rows[kernels]
    ends = torch.tensor(list(edges), dtype=torch.float64).clamp(0, math.pi)
    within = (response.omega >= ends[:-1, None]) & (response.omega <= ends[1:, None])
    undefined = torch.isnan(samples).any(-1, keepdim=True)
    finite = ~((torch.isinf(samples).unsqueeze(1) & within).any(-1) | undefined)
    lengths = _lengths_on_graded_nodes if operator.has_graded_response else _lengths_on_even_nodes
    levels = lengths(operator, rows, ends, finite)
    return torch.where(finite, _extrapolated(levels, rtol), torch.where(undefined, math.nan, math.inf))


def _extrapolated(levels: Iterator[tuple[Tensor, float]], rtol: float) -> Tensor:
    """The limit of the lengths of polygons, each with half the spacing of the previous one.

    The error of a polygon is proportional to the square of the spacing, so a third of the difference of two lengths is
    added. `levels` yields lengths and the largest magnitude of the samples, which determines the rounding error.
    """
    before, _ = next(levels)
    limit = torch.full_like(before, math.inf)
    for length, size in levels:
        last, limit = limit, length + (length - before) / 3
        before = length
        # The agreement is limited by the rounding of the differences.
        if bool(((limit - last).abs() <= rtol * limit + _ROUNDING * size).all()):
            break
    return limit


def _features(operator: SequenceOperator, rows: Tensor) -> tuple[Tensor, Tensor] | None:
    """Centres and widths, `(R, n)`, of the peaks of a response; `None` if unknown."""
    features: tuple[Tensor, Tensor] | None = operator.response_features(rows)
    return None if features is None else (features[0], features[1].clamp(_NARROWEST, math.pi))


def _graded_nodes(centres: Tensor, widths: Tensor, ends: Tensor) -> Tensor:
    """Ascending nodes `(R, M)` with the ends; the spacing grows with the width of a peak and the distance to it."""
    reach = torch.asinh(math.pi / widths).unsqueeze(-1)
    half = math.ceil(_NODES_PER_FOLD * reach.max().item())
    offsets = widths.unsqueeze(-1) * torch.sinh(reach * torch.linspace(-1, 1, 2 * half + 1, dtype=torch.float64))
    shared = torch.cat([ends, torch.linspace(ends[0].item(), ends[-1].item(), _EVEN + 1, dtype=torch.float64)])
    nodes = torch.cat([(centres.unsqueeze(-1) + offsets).flatten(1), shared.expand(len(centres), -1)], dim=-1)
    return nodes.clamp(ends[0], ends[-1]).sort(dim=-1).values


def _lengths_on_graded_nodes(
    operator: SequenceOperator, rows: Tensor, ends: Tensor, finite: Tensor
) -> Iterator[tuple[Tensor, float]]:
    """Lengths `(R, bands)` of polygons on `_graded_nodes`, repeatedly refined by midpoints."""
    features = _features(operator, rows)
    assert features is not None
    centres, widths = features
    nodes = _graded_nodes(centres, widths, ends)
    values = _evaluate_by_row(operator, nodes, rows, centres.shape[-1])
    while True:
        middle = (nodes[:, 1:] + nodes[:, :-1]) / 2
        # Each cell belongs to one band.
        band = (torch.searchsorted(ends, middle) - 1).clamp(0, len(ends) - 2)
        steps = values.diff(dim=-1).abs()
        length = torch.zeros(finite.shape, dtype=torch.float64).scatter_add(1, band, steps)
        size = torch.where(torch.isfinite(values), values, 0.0).abs().max().item()
        yield torch.where(finite, length, 0.0), size
        if nodes.shape[-1] > _FINEST_GRADED:
            return
        between = _evaluate_by_row(operator, middle, rows, centres.shape[-1])
        nodes, order = torch.cat([nodes, middle], dim=-1).sort(dim=-1, stable=True)
        values = torch.cat([values, between], dim=-1).gather(-1, order)


def _evaluate_by_row(operator: SequenceOperator, nodes: Tensor, rows: Tensor, num_poles: int) -> Tensor:
    """The response at nodes `(R, M)`, different for each row, in blocks of rows."""
    # A handful of numbers each for every node and pole.
    at_once = max(1, _AT_ONCE // (4 * nodes.shape[-1] * num_poles))
    blocks = zip(nodes.split(at_once), rows.split(at_once), strict=True)
    return torch.cat([operator.frequency_response(*block) for block in blocks])


def _lengths_on_even_nodes(
    operator: SequenceOperator, rows: Tensor, ends: Tensor, finite: Tensor
) -> Iterator[tuple[Tensor, float]]:
    """Lengths of polygons on finer and finer grids; the first resolves the last tap and the narrowest pole."""
    count = max(_COARSEST, 4 * fast_length(operator.support or 1))
    features = _features(operator, rows)
    if features is not None:
        narrowest = features[1].min().item()
        count = min(_FINEST // 2, max(count, fast_length(math.ceil(2 * math.pi / narrowest))))
    finest = max(2 * count, _FINEST)
    while count <= finest:
        omega = frequency_grid(count + 1)
        lengths, size = [], 0.0
        for block in rows.split(max(1, _AT_ONCE // count)):
            values = operator.frequency_response(omega, block)
            lengths.append(sampled_total_variation(values, omega, ends.tolist()))
            size = max(size, torch.where(torch.isfinite(values), values, 0.0).abs().max().item())
        yield torch.where(finite, torch.cat(lengths), 0.0), size
        count *= 2


@dataclasses.dataclass(frozen=True)
class AlphaRecommendation:
    """Upper ends of the useful range of `frequency_scale` (α), and whether the data give a reason to change it.

    A limit is a range over the step sizes Δ. The first number of a pair is for the largest Δ: up to it the fastest pole
    of every channel is useful. The second is for the smallest Δ: above it the fastest pole is useful for no channel.
    The limits follow from the state size and the step sizes as much as from the data, and are not recommended values.

    Attributes:
        state_size: N.
        init: Initialisation of the state matrix.
        discretization: "zoh" or "bilinear".
        time_steps: The smallest and the largest Δ.
        largest_frequency: max |Im a| at α = 1, in radians per unit of time.
        frequency_scale: α of the configuration.
        data_free: α_max without the data.
        edges: Share q of the inputs' power to the frequency ω_q below which it lies, in radians per sample.
        from_data: Share q to the α_max that places the fastest pole at ω_q.
        band: Frequency below which 90 % of the power lies, in radians per sample; `None` without data.
        flatness: Distance of the power from that of white noise, see `distance_from_flat`; `None` without data.
        flat_below: Distance below which the spectrum counts as nearly flat.
    """

    state_size: int
    init: str
    discretization: str
    time_steps: tuple[float, float]
    largest_frequency: float
    frequency_scale: float
    data_free: tuple[float, float]
    edges: dict[float, float]
    from_data: dict[float, tuple[float, float]]
    band: float | None = None
    flatness: float | None = None
    flat_below: float = _FLAT

    @property
    def reach(self) -> tuple[float, float]:
        """Frequencies of the fastest pole for the smallest and the largest Δ, in radians per sample, at most π."""
        turns = [self.frequency_scale * self.largest_frequency * step for step in self.time_steps]
        low, high = (2 * math.atan(turn / 2) if self.discretization == "bilinear" else turn for turn in turns)
        return min(low, math.pi), min(high, math.pi)

    @property
    def trial(self) -> float | None:
        """An α worth a trial, with which the largest Δ reaches 90 % of the power; `None` without a reason in the data.

        The data give a reason if the spectrum is not nearly flat, and more than a tenth of the power lies above the
        fastest pole of every channel. The data never give a reason for a smaller α: each initialisation has slow poles,
        whatever its fastest pole is.
        """
        if self.band is None or self.flatness is None or self.flatness < self.flat_below or self.band <= self.reach[1]:
            return None
        step, size = self.time_steps[1], self.state_size
        return alpha_max_from_spectrum(
            self.band, size, step, discretization=self.discretization, largest_frequency=self.largest_frequency
        )

    @property
    def verdict(self) -> str:
        """One sentence on whether the data give a reason to change α."""
        kept = f"no change of frequency_scale = {self.frequency_scale:g} is recommended"
        if self.band is None or self.flatness is None:
            return f"Without data, {kept}."
        if self.flatness < self.flat_below:
            return f"The spectrum is nearly flat (distance from white noise {self.flatness:.3f}): {kept}."
        low, high, band = (omega / (2 * math.pi) for omega in (*self.reach, self.band))
        poles = f"the fastest poles are at {low:.2g} to {high:.2g} cycles per sample"
        share = f"{_BAND:.0%} of the power lies below {band:.4f}"
        if self.trial is None:
            return f"{share}, and {poles}: {kept}."
        return (
            f"{share}, but {poles}: frequency_scale = {self.trial:.3g} reaches it and is worth a trial against "
            f"{self.frequency_scale:g} on validation data."
        )

    @property
    def paper_note(self) -> str | None:
        """The difference from the limits of Yu et al.; `None` unless `init` is "lin", as in the paper."""
        if self.init != "lin":
            return None
        factor = self.largest_frequency / (self.state_size * math.pi / 2)
        return (
            f"The fastest of n = {self.state_size} poles is (n/2 - 1)π here, as poles are conjugate pairs; with nπ/2, "
            f"as Yu et al. print it, the limits are {factor:.4g} times as large."
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values for a JSON file; an infinite limit is `None`."""
        values = dataclasses.asdict(self)
        values |= {"trial": self.trial, "verdict": self.verdict}
        values["edges"] = {f"{q:g}": edge for q, edge in self.edges.items()}
        values["from_data"] = {
            f"{q:g}": [value if math.isfinite(value) else None for value in pair] for q, pair in self.from_data.items()
        }
        return values


def alpha_recommendation(
    model_or_config: Any,
    power: Tensor | None = None,
    *,
    quantiles: Sequence[float] = _QUANTILES,
    positions: int | None = None,
) -> AlphaRecommendation:
    """The upper ends of the useful range of `frequency_scale`, and whether data give a reason to change it.

    The upper ends depend on the state size, the initialisation and the discretization, and on the range of step sizes
    [time_step_min, time_step_max]; `frequency_shift` is taken as 0. The limit on Im a is the same for all
    initialisations, and α follows from the fastest pole of the initialisation. The fastest pole of "lin" is (n/2 - 1)π,
    where the paper prints nπ/2: for n = 64 and Δ = 0.01 the bilinear limit is 25.93, and 25.12 with the paper's
    frequency.

    Args:
        model_or_config: A configuration of hf_ssm with a state space filter, or a model with one.
        power: Power of the inputs, `(F,)` or `(..., F)`, such as the result of `power_spectrum` (summed over the other
            axes); default: only the limits without data.
        quantiles: Shares q of the power.
        positions: Number of positions from which the power was computed: a spectrum that white noise of this number of
            positions may have counts as nearly flat (Bartlett's test at 1 %). Default: a large number.

    Raises:
        ValueError: The configuration has no state matrix with frequencies other than 0 and a range of step sizes, or
            `power` is zero.

    Source: Yu et al. 2025, Section 5.1 and Appendix G; `theory.frequency.alpha_max` lists the differences.
    """
    config = getattr(model_or_config, "config", model_or_config)
    if not isinstance(config, SSMConfig):
        raise ValueError(
            f"a {type(config).__name__} has no state space filter: give a configuration or model of hf_ssm."
        )
    if config.no_alpha_rule is not None:
        raise ValueError(config.no_alpha_rule)
    fastest = initial_eigenvalues(config.init, config.block_size).imag.max().item()
    if not fastest:
        raise ValueError(
            f"`state_size`={config.block_size} with `init`={config.init!r} has only the frequency 0, and α does not "
            "change the frequency 0: use 4 states or more."
        )
    steps = float(config.time_step_max), float(config.time_step_min)
    edges: Mapping[float, float] = {}
    band = flatness = None
    if power is not None:
        total = power.flatten(0, -2).sum(0) if power.dim() > 1 else power
        edges = {q: spectral_edge(total, q).item() for q in quantiles}
        band, flatness = spectral_edge(total, _BAND).item(), distance_from_flat(total)
    size, rule = config.block_size, config.discretization
    free = [alpha_max(size, dt, discretization=rule, largest_frequency=fastest) for dt in steps]
    limits = {
        q: [alpha_max_from_spectrum(edge, size, dt, discretization=rule, largest_frequency=fastest) for dt in steps]
        for q, edge in edges.items()
    }
    return AlphaRecommendation(
        state_size=size,
        init=config.init,
        discretization=rule,
        time_steps=(steps[1], steps[0]),
        largest_frequency=fastest,
        frequency_scale=float(config.frequency_scale),
        data_free=(free[0], free[1]),
        edges=dict(edges),
        from_data={q: (pair[0], pair[1]) for q, pair in limits.items()},
        band=band,
        flatness=flatness,
        flat_below=_FLAT if not positions else max(_FLAT, 1.63 / math.sqrt(positions / 2)),
    )
