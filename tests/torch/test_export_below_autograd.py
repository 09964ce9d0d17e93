"""Exports of programs that differentiate inside, and of forms that torch's own exporter cannot write."""

import warnings

import pytest

pytest.importorskip("torch")
pytest.importorskip("onnxscript")

import onnx
import torch
from onnx.reference import ReferenceEvaluator
from torch import nn
from torch.nn import functional

from shardplan.errors import ShardplanError
from shardplan.torch.planning.below_autograd import _convolution_backward
from shardplan.torch.planning.onnx_program import onnx_bytes
from shardplan.torch.planning.plan import read_module


def check(module, *args):
    """The exported graph gives what the module gives; its inputs, in order."""
    weights = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    graph = onnx.load_from_string(onnx_bytes(module, args, {}))
    for held in graph.graph.initializer:
        if held.name in weights:
            held.CopyFrom(onnx.numpy_helper.from_array(weights[held.name].detach().numpy(), held.name))
    names = [value.name for value in graph.graph.input]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # the evaluator takes logarithms of zero on its way
        (made,) = ReferenceEvaluator(graph).run(None, dict(zip(names, (arg.numpy() for arg in args), strict=True)))
    assert torch.allclose(torch.from_numpy(made), module(*args), rtol=1e-4, atol=1e-5)
    return names


class Inside(nn.Module):
    """A gradient for the input, with the layers that images have."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(4, 6, 3, 2, 1), nn.SiLU(), nn.Conv2d(6, 6, 3, padding=2, dilation=2), nn.GELU()
        )
        self.up = nn.ConvTranspose2d(6, 2, 2, 2)

    def forward(self, x):
        inner = x.detach().requires_grad_()
        made = self.up(self.net(inner)).square().sum()
        return torch.autograd.grad(made, inner)[0] + x


class Mapped(nn.Module):
    """Gradients of every row, a Jacobian and what goes forward through it."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 4)

    def net(self, x):
        return self.last(functional.softplus(self.first(x)))

    def forward(self, x, y):
        each = torch.func.vmap(torch.func.grad(lambda row: self.net(row).exp().sum()))(x)
        jacobians = torch.func.vmap(torch.func.jacrev(self.net))(x)
        _, along = torch.func.jvp(self.net, (x,), (y,))
        return each + jacobians.sum(1) + along


@pytest.mark.parametrize(
    ("make", "shapes"), [(Inside, [(2, 4, 9, 9)]), (Mapped, [(3, 4), (3, 4)])], ids=["inside", "mapped"]
)
def test_programs_that_differentiate_inside_are_written(make, shapes):
    torch.manual_seed(1)
    check(make(), *(torch.randn(shape) for shape in shapes))


CONVOLUTIONS = [
    (False, 1, 2, 1, 2, 0), (False, 2, 1, 0, 1, 0), (False, 4, 2, 2, 1, 0),
    (True, 1, 2, 1, 1, 1), (True, 2, 2, 0, 2, 1),
]  # fmt: skip


@pytest.mark.parametrize(("transposed", "groups", "stride", "padding", "dilation", "more"), CONVOLUTIONS)
def test_gradients_of_convolutions_are_convolutions(transposed, groups, stride, padding, dilation, more):
    x = torch.randn(3, 4, 7, 8, dtype=torch.double)
    weight = torch.randn(*((4, 8 // groups) if transposed else (8, 4 // groups)), 3, 3, dtype=torch.double)
    settings = [stride] * 2, [padding] * 2, [dilation] * 2, transposed, [more] * 2, groups
    made = torch.convolution(x, weight, None, *settings)
    given = torch.randn_like(made), x, weight, [8], *settings, [True] * 3
    for mine, theirs in zip(_convolution_backward(*given), torch.ops.aten.convolution_backward(*given), strict=True):
        assert torch.allclose(mine, theirs)


class Refused(nn.Module):
    def forward(self, x):
        def looked(row):
            return row.sum() if float(row.sum()) > 0 else row.prod()

        return torch.func.vmap(torch.func.grad(looked))(x)


def test_a_module_that_is_refused_leaves_no_transform_under_way():
    with pytest.raises(ShardplanError, match="cannot-export"):
        onnx_bytes(Refused(), (torch.randn(3, 4),), {})
    assert torch.randn(3).shape == (3,)  # which a transform of `vmap` would refuse
    with torch.autograd.graph.saved_tensors_hooks(lambda kept: kept, lambda kept: kept):
        assert torch.randn(3, requires_grad=True).exp().shape == (3,)


class Named(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("noise", torch.linspace(0, 1, 5))
        self.weight = nn.Parameter(torch.ones(4, 4))

    def forward(self, noise, weight):
        return self.noise[weight][:, None] * noise + noise @ self.weight


def test_an_argument_may_be_called_as_a_tensor_of_the_module():
    given = torch.randn(4, 4), torch.tensor([0, 4, 2, 1])
    assert check(Named(), *given) == ["input.noise", "input.weight"]
    read = read_module(Named(), given)
    assert [parameter.name for parameter in read.parameters if parameter.trainable] == ["weight"]


class Bounds(nn.Module):
    """Whole numbers for bounds of floats; numbers of 32 bits as an index of what is set."""

    def forward(self, x):
        made = x.clamp(0, 0.9) + torch.clip(x, min=-0.5, max=2)
        made[torch.tensor([2, 0], dtype=torch.int32)] = 7.0
        return torch.ops.aten._unsafe_index_put(made, [torch.tensor([1], dtype=torch.int32)], x[:1], True)


def test_bounds_and_indices_are_of_the_types_that_onnx_takes():
    check(Bounds(), torch.randn(4, 3))


class Merged(nn.Module):
    """Features of images among words."""

    def forward(self, words, features):
        rows = (words.sum(-1) > 0).unsqueeze(-1).expand_as(words)
        return words.masked_scatter(rows, features) + words.masked_scatter(words > 0.5, features)


def test_entries_may_be_put_where_a_mask_says():
    check(Merged(), torch.randn(2, 3, 4), torch.randn(6, 4))


class Ranked(nn.Module):
    def forward(self, x):
        rounded = x.round()
        values, places = rounded.mode(1)
        kept, _ = rounded.mode(0, keepdim=True)
        return (values + places + kept + x.nanmedian(1)[0] + x.nanmedian()).sum(-1) + rounded.nanmedian(0).indices.sum()


def test_entries_of_a_rank_and_those_that_are_there_most_often():
    torch.manual_seed(2)
    check(Ranked(), torch.randn(7, 7) * 1.5)


class Modes(nn.Module):
    """As a Fourier operator keeps some frequencies: complex entries set in a tensor of zeros."""

    def forward(self, x, y):
        made = torch.full((3, 4), 1 - 2j)
        made[:, :2] = torch.view_as_complex(x)[:, :2] * 2j
        made[1:] = made[1:] + torch.view_as_complex(y)[1:]
        return torch.view_as_real(made * made.conj() + made)


def test_complex_entries_may_be_set():
    check(Modes(), torch.randn(3, 4, 2), torch.randn(3, 4, 2))
