"""A view written in 60 lines, outside the package, is a capability of all families."""

import inspect

import pytest
import torch
from torch import Tensor

from hf_ssm.models.views.selection import VIEWS, register_view
from hf_ssm.modules.rows import Rows, View


class Reversal(View):
    """Rows with `read_backward` are read from their last token to their first; hidden states stay where tokens are."""

    arguments = ("read_backward",)

    def __init__(self, chosen: Tensor):
        self.chosen = chosen
        self.order = Tensor()

    @classmethod
    def of(cls, model, call):
        chosen = call.get("read_backward")
        return None if chosen is None else cls(chosen)

    def arrange(self, hidden_states: Tensor, rows: Rows) -> tuple[Tensor, Rows]:
        shape = hidden_states.shape[:2]
        mask = torch.ones(shape, dtype=torch.bool) if rows.mask is None else rows.mask
        steps = torch.arange(shape[1]).expand(shape)
        first = mask.int().argmax(1, keepdim=True)
        turned = torch.where(mask, 2 * first + mask.sum(1, keepdim=True) - 1 - steps, steps)
        self.order = torch.where(self.chosen.unsqueeze(1), turned, steps)
        return self.restore(hidden_states), rows.moved(lambda values: values.gather(1, self.order))

    def restore(self, hidden_states: Tensor) -> Tensor:
        # The order is its own inverse.
        return hidden_states.gather(1, self.order.unsqueeze(-1).expand_as(hidden_states))


@pytest.fixture
def reversal():
    register_view(Reversal)
    yield
    VIEWS.remove(Reversal)
    View.all_arguments.discard("read_backward")


def test_it_fits_60_lines():
    assert len(inspect.getsource(Reversal).splitlines()) <= 60


@pytest.mark.parametrize("family", ["Hyena", "S4", "S5", "SelectiveSSM", "SSD"])
@pytest.mark.parametrize("head", ["Model", "ForCausalLM", "ForSequenceClassification"])
def test_all_families_and_heads_read_it(reversal, make_model, family, head):
    model = make_model(family, head).eval()
    tokens = torch.randint(7, 11, (2, 9))
    mask = torch.ones(2, 9, dtype=torch.long)
    mask[1, 6:] = 0
    flipped = tokens.clone()
    flipped[1, :6] = tokens[1, :6].flip(0)
    chosen = torch.tensor([False, True])
    options = {"attention_mask": mask, "output_hidden_states": True}
    viewed = model(tokens, read_backward=chosen, **options).hidden_states[-1]
    expected = model(flipped, **options).hidden_states[-1]
    torch.testing.assert_close(viewed[0], expected[0])
    torch.testing.assert_close(viewed[1, :6], expected[1, :6].flip(0))


def test_tau_is_that_of_the_arranged_rows(reversal, make_model):
    model = make_model("S4", "ForSequenceClassification").eval()
    tokens = torch.randint(7, 11, (3, 8))
    viewed = model(tokens, read_backward=torch.ones(3, dtype=torch.bool), output_tau=True).tau
    torch.testing.assert_close(viewed, model(tokens.flip(1), output_tau=True).tau)


def test_an_unknown_argument_is_still_refused(make_model):
    with pytest.raises(TypeError, match="read_backward"):
        make_model("S4", "Model")(torch.randint(7, 11, (1, 4)), read_backward=torch.tensor([True]))


def test_models_of_videos_have_no_views(make_model):
    model = make_model("ConvS5", "ForVideoPrediction", num_channels=1, patch_size=2)
    with pytest.raises(TypeError, match="no argument `seq_idx`"):
        model(torch.rand(1, 4, 8, 8, 1), seq_idx=torch.tensor([[0, 0, 1, 1]]))


@pytest.mark.parametrize("name", ["documents", "both_strands"])
def test_what_heads_look_up_is_no_argument_of_theirs(make_model, name):
    with pytest.raises(TypeError, match=f"no argument `{name}`"):
        make_model("S4", "ForCausalLM")(torch.randint(7, 11, (1, 4)), **{name: True})
