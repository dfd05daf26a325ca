"""The attention matrix of every family with one, against plain recurrences; and of padded rows."""

from typing import Any

import pytest
import torch
from torch import Tensor

from hf_ssm import attention_matrix

LENGTH, TOKENS = 11, 7
ROTATED = {"complex_state": True, "init": "legs", "D_has_hdim": True}


def mamba_2_by_loops(scan: Any, x: Tensor, arguments: tuple[Tensor, ...]) -> Tensor:
    """S_t = exp(Δ_t (A + iω)) S_{t-1} + Δ_t B_t x_t and y_t = Re conj(C_t) S_t + D x_t, channel by channel, `(L, D)`.

    Heads are split into groups of consecutive heads.
    """
    inputs, dt = (part[0] for part in arguments)
    heads, groups, size = scan.heads, scan.groups_of_heads, scan.state_size
    matrices = inputs[:, scan.channels :].reshape(len(x), 2, groups, size)
    delta = torch.log1p(torch.exp(dt + scan.dt_bias))
    output = torch.zeros_like(x)
    for channel in range(scan.channels):
        head = channel // (scan.channels // heads)
        group = head // (heads // groups)
        A, B, C = -torch.exp(scan.A_log[head]), matrices[:, 0, group], matrices[:, 1, group]
        C = C if scan.C_scale is None else C * scan.C_scale
        if scan.A_imag is not None:
            A = torch.complex(A, torch.zeros_like(A)) + 1j * scan.A_imag[head]
            B, C = (torch.complex(part[:, 0::2], part[:, 1::2]) for part in (B, C))
        state = torch.zeros_like(B[0])
        for t in range(len(x)):
            state = torch.exp(delta[t, head] * A) * state + delta[t, head] * B[t] * x[t, channel]
            skip = scan.D[channel if len(scan.D) == scan.channels else head]
            output[t, channel] = (C[t].conj() * state).sum().real + skip * x[t, channel]
    return output


def selective_by_loops(scan: Any, u: Tensor, arguments: tuple[Tensor, ...]) -> Tensor:
    """x_t = exp(Δ_t A) x_{t-1} + Δ_t B_t u_t and y_t = C_t x_t + D u_t, channel by channel, `(L, D)`.

    Complex states are one of each conjugate pair, so that their real parts count twice.
    """
    selecting = arguments[0][0]
    step, B, C = (selecting @ scan.x_proj.weight.T).split([scan.rank, scan.state_size, scan.state_size], dim=-1)
    step = step.expand(u.shape) if scan.dt_proj is None else step @ scan.dt_proj.weight.T
    delta = torch.log1p(torch.exp(step + scan.dt_bias))
    if scan.A_imag is not None:
        B, C = (torch.complex(part[:, 0::2], part[:, 1::2]) for part in (B, 2 * C))
    output = torch.zeros_like(u)
    for channel in range(scan.channels):
        A = -torch.exp(scan.A_log[channel])
        A = A if scan.A_imag is None else torch.complex(A, scan.A_imag[channel])
        state = torch.zeros_like(A)
        for t in range(len(u)):
            state = torch.exp(delta[t, channel] * A) * state + delta[t, channel] * B[t] * u[t, channel]
            output[t, channel] = (C[t] * state).sum().real + scan.D[channel] * u[t, channel]
    return output


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("SelectiveSSM", {}),
        ("SelectiveSSM", {"bidirectional_weight_tie": False}),
        ("SelectiveSSM", {"complex_state": True}),
        ("SelectiveSSM", {"block": "plain", "use_skip": True}),
        ("SSD", {}),
        ("SSD", {"rescale_init": True}),
        ("SSD", {"n_groups": 1}),
        ("SSD", ROTATED),
    ],
)
@torch.no_grad()
def test_columns_are_the_outputs_for_impulses(make_model, family: str, options: dict[str, Any], reverse: bool) -> None:
    """By loops over positions, channels and heads, with the step sizes, B and C of the sequence."""
    sizes = {"bidirectional": True, "hidden_size": 8}
    sizes |= {"head_dim": 2, "n_groups": 2} if family == "SSD" else {}
    model = make_model(family, "Model", **(sizes | options)).double()
    layer, inputs = model.layers[1], torch.randn(1, 6, 8, dtype=torch.float64)
    scan, arguments = layer.mixer.reverse_scan if reverse else layer.mixer.scan, []
    scan.D.normal_()
    if getattr(scan, "C_scale", None) is not None:
        scan.C_scale.fill_(1.3)
    handle = scan.register_forward_pre_hook(lambda module, args: arguments.extend(args[: 1 + (family == "SSD")]))
    layer(inputs)
    handle.remove()
    by_loops = mamba_2_by_loops if family == "SSD" else selective_by_loops
    columns = []
    for position in range(6):
        impulse = torch.zeros(6, scan.channels, dtype=torch.float64)
        impulse[position] = 1
        columns.append(by_loops(scan, impulse, tuple(arguments)).T)
    expected = torch.stack(columns, dim=-1).unsqueeze(0)
    # The reverse scan has read the sequence from its end.
    expected = expected.flip(-1, -2) if reverse else expected
    matrix = attention_matrix(layer, inputs, reverse=reverse)
    assert expected[:, :, 3, 3].abs().min() > 0
    torch.testing.assert_close(matrix, expected, rtol=1e-10, atol=1e-12)
    some = [5, 0, scan.channels - 1]
    torch.testing.assert_close(attention_matrix(layer, inputs, channels=some, reverse=reverse), matrix[:, some])


@pytest.mark.parametrize("family", ["S4", "S5", "Hyena"])
def test_linear_time_invariant_families_have_no_attention_matrix(make_model, family: str) -> None:
    with pytest.raises(TypeError, match="`layer` must be a block of a selective model"):
        attention_matrix(make_model(family, "Model").layers[0], torch.randn(1, 6, 8))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("first", [0, 2, LENGTH - TOKENS], ids=["right", "both", "left"])
@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("SelectiveSSM", {}),
        ("SelectiveSSM", {"block": "plain"}),
        ("SelectiveSSM", {"sobolev_order": 0.5, "sobolev_mode": "zero_phase"}),
        ("SSD", {}),
        ("SSD", {"sobolev_order": 0.5}),
    ],
)
def test_padding_has_no_rows_and_no_columns(make_model, family, options, first, reverse):
    model = make_model(family, "Model", bidirectional=True, **options)
    where = slice(first, first + TOKENS)
    inputs, mask = torch.randn(2, LENGTH, 8), torch.zeros(2, LENGTH, dtype=torch.long)
    mask[:, where] = 1
    with torch.no_grad():
        found = attention_matrix(model.layers[0], inputs, mask, reverse=reverse)
        alone = attention_matrix(model.layers[0], inputs[:, where], reverse=reverse)
    expected = torch.zeros_like(found)
    expected[:, :, where, where] = alone
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    assert alone.abs().amax((0, 1)).diagonal(-1 if not reverse else 1).min() > 0
