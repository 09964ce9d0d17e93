"""Exports of what ONNX has no form for: complex numbers as pairs, shapes and branches that depend on data."""

import warnings

import pytest

pytest.importorskip("torch")
pytest.importorskip("onnxscript")

import onnx
import torch
from torch import distributions, nn
from torch.nn import functional
from torch.nn.utils import rnn
from written_graphs import evaluated

from shardplan.errors import ShardplanError
from shardplan.torch.planning.onnx_program import onnx_bytes
from shardplan.torch.planning.plan import read_module


class Complex(nn.Module):
    """Products, quotients, powers, roots, conjugates, choices, sums and pieces of complex numbers."""

    def forward(self, x, y):
        a, b = torch.view_as_complex(x), torch.polar(y.exp(), y)
        made = (a * b + 2j * a - 1) / (b + 3) + b.log() * a.conj() - torch.exp(0.1 * a) + b.sqrt() + a**2
        made = torch.where(y > 0, made, a).unsqueeze(0).expand(2, -1, -1).transpose(1, 2)
        made = torch.cat([made, made[:, :1] * 1j], 1).masked_fill(torch.eye(2, dtype=torch.bool)[:, :1, None], 1 + 2j)
        mixed = torch.einsum("bij,bkj->bik", made, torch.complex(made.imag, made.real)) @ made
        return (
            torch.view_as_real(mixed.sum(0)),
            mixed.abs(),
            mixed.angle(),
            (mixed.real - mixed.to(torch.complex128).imag),
            torch.view_as_real(mixed.to(torch.complex128)).type_as(x),
        )


def test_complex_numbers_are_pairs():
    x, y = torch.randn(3, 4, 2, generator=torch.Generator().manual_seed(1)), torch.linspace(-1, 1, 12).view(3, 4)
    for mine, theirs in zip(evaluated(Complex(), x, y), Complex()(x, y), strict=True):
        assert torch.allclose(torch.from_numpy(mine), theirs, atol=1e-4)


class Volumes(nn.Module):
    """What torch's exporter writes wrong: convolutions without a bias, ranges of whole numbers and others."""

    def forward(self, x, first, second, bias):
        made = functional.conv3d(functional.conv3d(x, first, stride=2), second, bias, padding=(0, 1, 1), groups=2)
        return made * torch.arange(0.0, x.shape[-1], 2), torch.arange(1, 2.5, step=1)


def test_what_torch_writes_wrong():
    given = (torch.randn(shape) for shape in ((2, 2, 4, 4, 4), (4, 2, 2, 2, 2), (2, 2, 1, 3, 3), (2,)))
    module, given = Volumes(), tuple(given)
    for mine, theirs in zip(evaluated(module, *given), module(*given), strict=True):
        assert torch.allclose(torch.from_numpy(mine), theirs, atol=1e-5)


class Picked(nn.Module):
    def forward(self, x, labels):
        keep = labels != 0
        changed = torch.zeros_like(x)
        changed[keep] = x[keep] * 2
        rows = torch.where(keep.any(1))[0]
        seen = 0
        for each in keep.flatten()[:3].nonzero():
            seen = seen + int(each[0])
        return x[keep], changed, x.masked_select(keep[..., None]), x[rows], x[..., keep[0, :1].expand(2)] + seen


def test_what_a_mask_picks_is_all_of_it():
    x, labels = torch.randn(2, 3, 2), torch.tensor([[1, 1, 2], [3, 1, 1]])
    for mine, theirs in zip(evaluated(Picked(), x, labels), Picked()(x, labels), strict=True):
        assert torch.equal(torch.from_numpy(mine), theirs)
    assert [part.shape for part in evaluated(Picked(), x, 0 * labels)] == [
        (6, 2),
        (2, 3, 2),
        (12,),
        (2, 3, 2),
        (2, 3, 2),
    ]


class Branching(nn.Module):
    def forward(self, x):
        if (x > 100).any():
            raise ValueError("too large")
        return x * 2


def test_branches_that_depend_on_data_are_as_in_the_example_or_not_taken_and_it_is_said():
    with pytest.warns(UserWarning, match="planned as with these example inputs"):
        found = evaluated(Branching(), torch.ones(2, 2))
    assert (found[0] == 2).all()
    with pytest.warns(UserWarning, match="branches that depend on data") as said:
        onnx_bytes(Branching(), (torch.ones(2, 2, device="meta"),), {})
    assert [each.filename for each in said] == [__file__]


class Checked(nn.Module):
    """Checks what it is given; draws by a generator; shifts bytes; indexes by sequences of numbers in tensors."""

    def forward(self, x, numbers, weight, packed):
        assert torch.isfinite(x).all(), "not a number"
        if not bool((numbers >= 0).all()):
            raise ValueError("a number below zero")
        nibbles = torch.stack([packed & 15, packed >> 4], -1).to(x.dtype).sum(-1)
        marked = torch.ones(4, 4)
        marked[tuple(numbers.unbind()), tuple(numbers.roll(1).unbind())] = 0.0
        drawn = torch.randn(x.shape, generator=torch.Generator().manual_seed(1)) * 0
        return functional.bilinear(x, x, weight), nibbles + marked, 1.0 - numbers, drawn


def test_checks_hold_and_generators_are_left_out():
    packed = torch.arange(64, 80, dtype=torch.uint8).view(4, 4)
    module, given = Checked(), (torch.randn(4, 4), torch.tensor([0, 2, 3]), torch.randn(2, 4, 4), packed)
    with pytest.warns(UserWarning, match="planned as with these example inputs"):
        found = evaluated(module, *given)
    with pytest.warns(UserWarning, match="branches that depend on data"):
        onnx_bytes(module.to("meta"), tuple(each.to("meta") for each in given), {})
    for mine, theirs in zip(found, module(*given), strict=True):
        assert torch.allclose(torch.from_numpy(mine), theirs, atol=1e-5)


class Sized(nn.Module):
    def forward(self, x, sizes):
        return x[: int(sizes[0])] * 2


def test_a_refusal_names_the_line_of_the_program():
    with pytest.raises(ShardplanError, match=r"\n  at test_onnx_of_data.py, line \d+: return x\[: int\(sizes\[0\]\)\]"):
        onnx_bytes(Sized(), (torch.randn(4), torch.tensor([2], device="meta")), {})


class Losses(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(4, 6)

    def forward(self, x, labels):
        chances = self.out(x).log_softmax(-1)
        valid = labels >= 0
        lengths = torch.full((2,), 5, dtype=torch.long)
        spoken = functional.ctc_loss(
            chances.transpose(0, 1), labels.masked_select(valid), lengths, valid.sum(-1), reduction="sum"
        )
        policy = distributions.Categorical(logits=chances)
        return spoken - policy.log_prob(labels.abs()[:, :1].expand(2, 5)).mean() + torch.corrcoef(x[0]).sum()


def test_losses_that_look_at_numbers_can_be_planned():
    checks = distributions.Distribution._validate_args
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = read_module(Losses(), (torch.randn(2, 5, 4), torch.tensor([[1, 2, 3], [4, 5, -1]])))
    assert [parameter.name for parameter in model.parameters] == ["out.weight", "out.bias"]
    assert distributions.Distribution._validate_args is checks


class Spoken(nn.Module):
    """A recurrent layer over sequences of their own lengths."""

    def __init__(self):
        super().__init__()
        self.layer = nn.GRU(4, 3, batch_first=True)

    def forward(self, x, lengths):
        packed = rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        padded, lasted = rnn.pad_packed_sequence(self.layer(packed)[0], total_length=6)
        return padded, lasted


def test_packed_sequences_are_as_long_as_the_longest():
    graph = onnx.load_from_string(onnx_bytes(Spoken(), (torch.randn(2, 5, 4), torch.tensor([3, 5])), {})).graph
    shapes = [[dim.dim_value for dim in value.type.tensor_type.shape.dim] for value in graph.output]
    assert shapes == [[6, 2, 3], [2]]
    assert [node.op_type for node in graph.node].count("GRU") == 1


class Bags(nn.Module):
    """Bags by offsets, one of them empty, and how often numbers are there."""

    def forward(self, table, numbers, starts, shares):
        bags = [functional.embedding_bag(numbers, table, starts, mode=mode) for mode in ("mean", "max")]
        bags.append(functional.embedding_bag(numbers, table, starts, mode="sum", per_sample_weights=shares))
        bags.append(functional.embedding_bag(numbers, table, starts[:-1], padding_idx=2, include_last_offset=True))
        return torch.bincount(numbers, minlength=8), torch.bincount(numbers, shares, minlength=8), *bags


def test_bags_by_offsets_and_counts():
    numbers, starts = torch.tensor([1, 2, 2, 5, 0, 7, 7, 7]), torch.tensor([0, 3, 3, 6, 8])
    given = torch.randn(8, 4, generator=torch.Generator().manual_seed(1)), numbers, starts, torch.linspace(0, 1, 8)
    for mine, theirs in zip(evaluated(Bags(), *given), Bags()(*given), strict=True):
        assert torch.allclose(torch.from_numpy(mine).to(theirs.dtype), theirs, atol=1e-6)


class Padded(nn.Module):
    """Bags of equal sizes in which a row does not count, one of them of that row alone."""

    def forward(self, table, numbers):
        return tuple(
            functional.embedding_bag(numbers, table, mode=mode, padding_idx=2) for mode in ("mean", "max", "sum")
        )


def test_bags_in_which_a_row_does_not_count():
    given = torch.randn(8, 4, generator=torch.Generator().manual_seed(1)), torch.tensor([[1, 2, 2], [2, 2, 2]])
    for mine, theirs in zip(evaluated(Padded(), *given), Padded()(*given), strict=True):
        assert torch.allclose(torch.from_numpy(mine), theirs, atol=1e-6)
    assert [*read_module(Padded(), given).outputs]


def test_a_lookup_that_bounds_its_rows_is_refused():
    with pytest.raises(ShardplanError) as caught:
        read_module(nn.Sequential(nn.Embedding(8, 4, max_norm=1.0)), torch.zeros(2, 3, dtype=torch.long))
    assert str(caught.value) == (
        "error[cannot-export]: no plan can be made of the lookup '0': it changes the rows of its table (max_norm)\n"
        "hint: plan it without max_norm, and bound the table between steps: with shardplan.torch.whole(model, name)"
    )


class Decomposed(nn.Module):
    def forward(self, x):
        square = x @ x.mT
        values, vectors = torch.linalg.eigh(square)
        left, sizes, right = torch.linalg.svd(x, full_matrices=False)
        first, second = torch.linalg.qr(x.mT)
        solved = torch.linalg.solve(square, x) + torch.cholesky_solve(x, torch.linalg.cholesky(square))
        made = torch.matrix_exp(square) + torch.linalg.inv(square)
        turned = torch.linalg.householder_product(first, values)
        return values, vectors, left, sizes, right, first, second, solved, made, turned, torch.logdet(square)


def test_decompositions_are_planned_by_their_sizes():
    x = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(1))
    made = evaluated(Decomposed(), x)
    assert [each.shape for each in made] == [tuple(each.shape) for each in Decomposed()(x)]


@pytest.fixture
def grouped():
    """The operator of transformers that multiplies rows in groups; declared where transformers is not there."""
    library = torch.library.Library("transformers", "FRAGMENT")
    if not hasattr(torch.ops.transformers, "grouped_mm_fallback"):
        library.define("grouped_mm_fallback(Tensor input, Tensor weight, Tensor offs) -> Tensor")
        library.impl("grouped_mm_fallback", lambda rows, weight, _: rows @ weight[0], "CompositeExplicitAutograd")
    yield torch.ops.transformers.grouped_mm_fallback
    library._destroy()


def test_rows_in_groups_are_multiplied_by_their_matrices(grouped):
    class Grouped(nn.Module):
        def forward(self, rows, matrices, ends):
            return grouped(rows, matrices, ends)

    rows, matrices, ends = torch.randn(7, 4), torch.randn(3, 4, 8), torch.tensor([2, 2, 7], dtype=torch.int32)
    expected = torch.cat([rows[:2] @ matrices[0], rows[2:] @ matrices[2]])
    assert torch.allclose(torch.from_numpy(evaluated(Grouped(), rows, matrices, ends)[0]), expected, atol=1e-5)
