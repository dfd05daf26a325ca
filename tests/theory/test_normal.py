"""Normal state matrices: diagonalisation, contraction, attention, and the norms of the bounds."""

import math

import numpy as np
import pytest
import torch
from scipy.linalg import expm, schur
from theory_references import normal_attention_reference

from hf_ssm import SelectiveSSMConfig, SelectiveSSMForSequenceClassification
from hf_ssm.analysis.bounds import generalization_bound
from hf_ssm.ops.lti.hippo import legs_matrix
from hf_ssm.ops.selective_scan import scan_matrix
from hf_ssm.theory.bounds import log_output_bound
from hf_ssm.theory.normal import (
    normal_attention,
    normality_defect,
    numerical_abscissa,
    real_matrix_of_pairs,
    unitary_diagonalization,
)
from hf_ssm.theory.selective_norms import selective_norms


def random_normal(*shape, shift=0.5):
    """Real normal matrices `(..., N, N)`: conjugate pairs in a random orthonormal basis."""
    *lead, n = shape
    pairs = torch.complex(-shift - torch.rand(*lead, n // 2), 3 * torch.randn(*lead, n // 2))
    basis = torch.linalg.qr(torch.randn(*lead, n, n, dtype=torch.float64))[0]
    return basis @ real_matrix_of_pairs(pairs) @ basis.mT


REPEATED = torch.block_diag(*[torch.tensor([[-1.0, -2.0], [2.0, -1.0]], dtype=torch.float64)] * 2)
SKEW = torch.tensor([[0.0, 1.0, -2.0], [-1.0, 0.0, 3.0], [2.0, -3.0, 0.0]], dtype=torch.float64)


@pytest.mark.parametrize("A", [random_normal(4, 6), REPEATED, SKEW, torch.zeros(3, 3), -torch.eye(4), REPEATED * 1j])
def test_unitary_diagonalization(A):
    eigenvalues, vectors = unitary_diagonalization(A)
    identity = torch.eye(A.shape[-1], dtype=torch.complex128).expand_as(vectors)
    torch.testing.assert_close(vectors.mH @ vectors, identity, rtol=0, atol=1e-10)
    rebuilt = vectors @ torch.diag_embed(eigenvalues) @ vectors.mH
    torch.testing.assert_close(rebuilt, A.to(torch.complex128), rtol=1e-10, atol=1e-10)


def test_eigenvalues_are_those_of_a_schur_decomposition():
    A = random_normal(6)
    triangular = schur(A.numpy(), output="complex")[0]
    assert np.abs(np.triu(triangular, 1)).max() < 1e-10
    pairs = unitary_diagonalization(A)[0].numpy(), np.diag(triangular)
    found, expected = (np.sort_complex(eigenvalues.round(decimals=9)) for eigenvalues in pairs)
    np.testing.assert_allclose(found, expected, atol=1e-8)


def spectral_abscissa(A: torch.Tensor) -> torch.Tensor:
    """max Re λ(A) of each matrix `(..., N, N)`."""
    return torch.linalg.eigvals(A.double()).real.amax(-1)


def test_hippo_and_a_jordan_block_are_not_normal():
    jordan = torch.tensor([[-1.0, 50.0], [0.0, -1.0]])
    for A in (legs_matrix(8)[0], jordan):
        with pytest.raises(ValueError, match=r"`A` is not normal: .* `numerical_abscissa` bounds its contraction"):
            unitary_diagonalization(A)
        assert 0.1 < normality_defect(A) <= math.sqrt(2)
    # Stable, and yet a step makes states larger: the spectral abscissa does not bound it, the numerical one does.
    assert spectral_abscissa(jordan) < 0 < numerical_abscissa(jordan)
    for t in (0.01, 0.1, 1.0):
        size = np.linalg.norm(expm(t * jordan.double().numpy()), 2)
        assert math.exp(t * spectral_abscissa(jordan)) < size <= math.exp(t * numerical_abscissa(jordan))


@pytest.mark.parametrize("t", [0.1, 2.0])
def test_a_normal_matrix_contracts_by_its_spectral_abscissa(t):
    A = random_normal(6)
    assert numerical_abscissa(A).item() == pytest.approx(spectral_abscissa(A).item(), rel=1e-10)
    size = np.linalg.norm(expm(t * A.numpy()), 2)
    assert size == pytest.approx(math.exp(t * spectral_abscissa(A).item()), rel=1e-10)


def test_attention_against_matrix_exponentials():
    A = random_normal(3, 4)
    delta, B, C = torch.rand(2, 6, 3).double(), torch.randn(2, 6, 4).double(), torch.randn(2, 6, 4).double()
    for steps in (delta, delta[..., :1]):
        expected = normal_attention_reference(steps, A, B, C)
        torch.testing.assert_close(normal_attention(steps, A, B, C), expected, rtol=1e-10, atol=1e-10)


def test_attention_of_diagonal_matrices_and_of_conjugate_pairs():
    delta, B, C = torch.rand(2, 6, 3).double(), torch.randn(2, 6, 4).double(), torch.randn(2, 6, 4).double()
    A = -torch.rand(3, 4).double()
    torch.testing.assert_close(
        normal_attention(delta, torch.diag_embed(A), B, C), scan_matrix(delta, A, B, C), rtol=1e-10, atol=1e-10
    )
    a = torch.complex(-torch.rand(3, 2), torch.randn(3, 2)).to(torch.complex128)
    pairs_B, pairs_C = (torch.view_as_complex(t.unflatten(-1, (2, 2))) for t in (B, C))
    # y = 2 Re C x = 2 (Re C Re x - Im C Im x).
    signs = torch.tensor([2.0, -2.0] * 2).double()
    expected = scan_matrix(delta, a, pairs_B, pairs_C)
    torch.testing.assert_close(normal_attention(delta, real_matrix_of_pairs(a), B, signs * C), expected)


@pytest.mark.parametrize("has_steps", [True, False])
def test_norms_of_normal_matrices(has_steps):
    A, weights = random_normal(3, 4), [torch.randn(4, 3) for _ in "BC"]
    q, p = (torch.randn(3), torch.randn(1)) if has_steps else (None, None)
    norms = selective_norms(A, *weights, torch.randn(3), q, p, 1.0)
    whole = np.zeros((12, 12))
    for channel in range(3):
        block = slice(4 * channel, 4 * channel + 4)
        whole[block, block] = A[channel] if has_steps else expm(A[channel].numpy())
    assert pytest.approx(np.linalg.norm(whole, 2), rel=1e-10) == norms.B_A
    assert pytest.approx(np.linalg.norm(whole, axis=0).sum(), rel=1e-10) == norms.M_A
    assert norms.s_A == pytest.approx(-spectral_abscissa(A).max().item(), rel=1e-10)
    diagonal = selective_norms(A.diagonal(dim1=1, dim2=2), *weights, None, q, p, 1.0)
    same = selective_norms(torch.diag_embed(A.diagonal(dim1=1, dim2=2)), *weights, None, q, p, 1.0)
    numbers = {name: value for name, value in vars(diagonal).items() if value is not None}
    assert {name: vars(same)[name] for name in numbers} == pytest.approx(numbers, rel=1e-10)
    with pytest.raises(ValueError, match="is not normal"):
        selective_norms(A + torch.triu(torch.ones(4, 4)), *weights, None, q, p, 1.0)


def test_the_bound_on_the_output_holds_for_a_rotating_model():
    """No input of norm 𝔅_u gives a larger output than the bound of (74), (106) and (107), with normal matrices."""
    A, (W_B, W_C), w = random_normal(3, 4), torch.randn(2, 4, 3).double(), torch.randn(3).double()
    q, p = torch.randn(3).double(), torch.randn(1).double()
    u = torch.nn.functional.normalize(torch.randn(200, 9, 3).double(), dim=-1)
    norms = selective_norms(A, W_B, W_C, w, q, p, 1.0)
    steps = torch.nn.functional.softplus(u @ q.unsqueeze(1) + p)
    matrix = normal_attention(steps, A, u @ W_B.T, u @ W_C.T)
    scores = torch.einsum("bdj,bjd,d->b", matrix[:, :, -1], u, w).abs()
    assert scores.max().log().item() < log_output_bound(norms)


def test_complex_states_have_the_bound_of_their_real_form():
    torch.manual_seed(1)
    flags = {"block": "plain", "hidden_size": 4, "state_size": 4, "num_labels": 1, "complex_state": True}
    model = SelectiveSSMForSequenceClassification(SelectiveSSMConfig(problem_type="regression", **flags)).eval()
    batch = {"input_ids": torch.randint(0, 12, (40, 8))}
    found = generalization_bound(model, [batch])
    assert all(assumption.holds for assumption in found.assumptions)
    scan = model.model.layers[0].mixer.scan
    _, W_B, W_C = scan.x_proj.weight.split([1, 4, 4])
    assert found.norms["B_C"] == pytest.approx(2 * np.linalg.norm(W_C.detach().numpy(), 2), rel=1e-6)
    assert found.norms["B_B"] == pytest.approx(np.linalg.norm(W_B.detach().numpy(), 2), rel=1e-6)
    assert found.norms["s_A"] == pytest.approx(0.5)
    assert model(**batch).logits.abs().max().log() < log_output_bound(
        scan.bound_norms(model.classifier.weight[0], found.norms["B_u"])
    )
