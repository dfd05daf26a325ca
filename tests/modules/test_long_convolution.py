"""The long convolution: its kernel, its τ, and the Sobolev filter on the whole."""

import pytest
import torch

from hf_ssm.modules.filters import StateSpaceFilter
from hf_ssm.modules.long_convolution import LongConvolution
from hf_ssm.ops.long_conv import long_conv_reference
from hf_ssm.theory.complexity import tau_reference

CHANNELS, LENGTH = 4, 11


def build(directions: int = 1, groups: int = 1, **flags) -> LongConvolution:
    kernel = StateSpaceFilter(
        CHANNELS * groups,
        directions,
        state_size=8,
        low_rank=False,
        init="legs",
        discretization="zoh",
        time_step_range=(0.05, 0.5),
    )
    module = LongConvolution(kernel, groups=groups, **flags)
    with torch.no_grad():
        for part in (kernel, module):
            for name, value in part.initial_parameters().items():
                part.get_parameter(name).copy_(value)
    return module.double()


def test_the_output_is_the_convolution_with_kernel_and_skip() -> None:
    module = build(directions=2)
    inputs = torch.randn(2, LENGTH, CHANNELS, dtype=torch.float64)
    output, tau = module(inputs, module.kernels(LENGTH))
    kernel = module.filter(LENGTH)
    expected = long_conv_reference(inputs, kernel[0], kernel[1]) + module.D * inputs
    torch.testing.assert_close(output, expected)
    assert tau is None


def test_tau_is_that_of_the_kernel_with_the_skip() -> None:
    module = build()
    inputs = torch.randn(5, LENGTH, CHANNELS, dtype=torch.float64)
    mask = torch.ones(5, LENGTH, dtype=torch.bool)
    mask[0, 4:] = mask[1, :3] = False
    inputs = inputs * mask.unsqueeze(-1)
    kernel = module.filter(LENGTH)[0].clone()
    kernel[:, 0] += module.D
    _, found = module(inputs, module.kernels(LENGTH), mask, output_tau=True)
    torch.testing.assert_close(found, tau_reference(kernel, inputs, mask).mean())


def test_tau_of_a_two_sided_convolution_is_the_mean_of_its_directions() -> None:
    module = build(directions=2)
    inputs = torch.randn(5, LENGTH, CHANNELS, dtype=torch.float64)
    forward = module.filter(LENGTH)[0].clone()
    forward[:, 0] += module.D
    backward = torch.nn.functional.pad(module.filter(LENGTH)[1], (1, 0))[:, :LENGTH]
    expected = torch.cat([tau_reference(forward, inputs), tau_reference(backward, inputs.flip(1))]).mean()
    _, found = module(inputs, module.kernels(LENGTH), output_tau=True)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("mode", ["causal", "zero_phase"])
@pytest.mark.parametrize("directions", [1, 2])
def test_rescaling_makes_tau_one(mode: str, directions: int) -> None:
    module = build(directions, groups=2, sobolev_order=0.5, sobolev_mode=mode)
    inputs = torch.randn(6, LENGTH, CHANNELS, dtype=torch.float64)
    untouched = module.kernels(LENGTH)[:, 0::2]
    module.rescaling = []
    output, _ = module(inputs, module.kernels(LENGTH), group=1)
    (before,) = module.rescaling
    module.rescaling = None
    again, after = module(inputs, module.kernels(LENGTH), group=1, output_tau=True)
    assert (before - 1).abs() > 0.01
    torch.testing.assert_close(after, torch.ones_like(after))
    torch.testing.assert_close(output, again)
    assert torch.equal(module.kernels(LENGTH)[:, 0::2], untouched)


@pytest.mark.parametrize("groups", [1, 3])
def test_groups_use_their_own_channels(groups: int) -> None:
    module = build(groups=groups)
    inputs = torch.randn(2, LENGTH, CHANNELS, dtype=torch.float64)
    kernels = module.kernels(LENGTH)
    for group in range(groups):
        output, _ = module(inputs, kernels, group=group)
        torch.testing.assert_close(output, long_conv_reference(inputs, kernels[0, group::groups]))


@pytest.mark.parametrize("frequency", ["normalized", "radian"])
def test_the_zero_phase_filter_weights_each_frequency(frequency: str) -> None:
    """A tone far from the ends comes out multiplied by (1+|s|)^β times the kernel's own response, without delay."""
    order, length, bin_ = 0.8, 4096, 400
    plain, filtered = (
        build(sobolev_order=b, sobolev_mode="zero_phase", sobolev_frequency=frequency) for b in (0.0, order)
    )
    filtered.load_state_dict(plain.state_dict())
    omega = 2 * torch.pi * bin_ / length
    tone = torch.cos(omega * torch.arange(length, dtype=torch.float64)).expand(1, CHANNELS, -1).mT
    size = omega / plain.filter.time_step() if frequency == "radian" else bin_ / length
    middle = slice(2000, 3000)
    with torch.no_grad():
        before, after = (module(tone, module.kernels(length))[0][:, middle] for module in (plain, filtered))
    torch.testing.assert_close(after, before * (1 + size) ** order, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("value", [0.0, float("nan")])
def test_rescaling_refuses_a_tau_it_cannot_divide_by(value: float) -> None:
    module = build()
    module.rescaling = []
    with pytest.raises(ValueError, match="needs a positive, finite τ"):
        module(torch.full((3, LENGTH, CHANNELS), value, dtype=torch.float64), module.kernels(LENGTH))


@pytest.mark.parametrize("gradient", [False, True])
def test_the_skip_is_added_to_the_first_tap_of_the_forward_direction(gradient: bool) -> None:
    module = build(directions=2)
    with torch.set_grad_enabled(gradient):
        kernels, bare = module.kernels(LENGTH), module.filter(LENGTH)
    assert kernels.requires_grad == gradient
    expected = bare.detach().clone()
    expected[0, :, 0] += module.D.detach()
    assert torch.equal(kernels, expected)
    if gradient:
        cotangent = torch.randn_like(kernels)
        (skip,) = torch.autograd.grad(kernels, module.D, cotangent, retain_graph=True)
        torch.testing.assert_close(skip, cotangent[0, :, 0])
        found, plain = (torch.autograd.grad(k, module.filter.C, cotangent)[0] for k in (kernels, bare))
        torch.testing.assert_close(found, plain)
