"""Exports in which what a program reads from values is as in the example, and those that leave nothing behind."""

import functools

import pytest

pytest.importorskip("torch")
pytest.importorskip("onnxscript")

import torch
from torch import nn
from torch.nn import functional
from written_graphs import evaluated

from shardplan.errors import ShardplanError
from shardplan.torch.planning.plan import read_module


class AsInExample(nn.Module):
    """Goes on with as many entries as its masks pick, with numbers that it reads, and through branches."""

    def __init__(self):
        super().__init__()
        self.kinds = torch.tensor([True, False, True, False])
        self.register_buffer("mask", torch.tensor([False, True, False, True]))
        self.register_buffer("seen", torch.tensor(0))

    def forward(self, x, labels):
        self.seen += 1
        own = functional.one_hot(labels).bool()  # as many classes as there are
        changed = torch.zeros_like(x)
        changed[..., self.mask] = x[..., self.mask].view(3, 2) * 2
        counted = [x[:, number] * (2 if kind else 3) for number, kind in enumerate(self.kinds)]
        sums = x.new_zeros(int(labels.max()) + 1, 4).index_add(0, labels, x)
        repeated = x.repeat_interleave(labels, dim=0)
        unique, place = torch.unique(labels, return_inverse=True)
        return (
            x[own].view(len(x), 1) * changed, torch.stack(counted), sums[unique][place], repeated[:3] - x,
            x.masked_select(own).reshape(3, 1),
        )  # fmt: skip


def test_what_values_decide_is_as_in_the_example_where_the_largest_shapes_do_not_fit():
    module, x, labels = AsInExample(), torch.randn(3, 4), torch.tensor([3, 0, 1])
    for mine, theirs in zip(evaluated(module, x, labels), module(x, labels), strict=True):
        assert torch.equal(torch.from_numpy(mine), theirs)
    assert module.seen == 1


class Steps(nn.Module):
    """As many steps as a grid has, as solvers of differential equations take them, with all that a mask may pick."""

    def forward(self, x):
        grid, made = torch.linspace(0, 1, 4), x
        while grid[0] < 0.9:
            made, grid = made * 2, grid[1:]
        return made, x[x > 0]


def test_conditions_are_as_in_the_example_and_masks_pick_all():
    made, picked = evaluated(Steps(), torch.tensor([1.0, -1.0]))
    assert made.tolist() == [8.0, -8.0]
    assert picked.tolist() == [1.0, -1.0]


def test_what_values_decide_needs_an_example_with_values():
    with torch.device("meta"):
        module, x = AsInExample(), torch.randn(3, 4)
    with pytest.raises(ShardplanError, match="cannot-export"):
        read_module(module, (x, torch.empty(3, dtype=torch.long, device="meta")))


class Counted(nn.Module):
    """A size that only values tell, of which torch's exporter makes an unknown one."""

    def forward(self, x, groups):
        return x.new_zeros(int(groups.max()) + 1, 4).index_add(0, groups, x)


def test_sizes_that_values_decide_are_those_of_the_example():
    model = read_module(Counted(), (torch.randn(6, 4), torch.tensor([0, 0, 1, 1, 2, 2])))
    assert [model.tensors[name].shape for name in model.outputs] == [(3, 4)]


class Sized(nn.Module):
    """Gives tensors where torch takes sizes, and lists their numbers; its checks of values are for plain runs alone."""

    def forward(self, x, mask, grid):
        if not torch.compiler.is_exporting() and grid.sum() > 100:
            raise ValueError
        high, wide = mask.any(1).sum(), mask.any(0).sum()
        small = functional.interpolate(x[None, None], size=(high, wide))[0, 0]
        rows = [x.new_full((), row).expand(wide) * small[0, :wide] for row, _ in grid.tolist()]
        most = max(grid[0, 0], grid[0, 1])
        none = (mask > 1).nonzero()
        return small[:high].view(wide, -1), torch.stack(rows), x[:, :1] * most, none[none[:, 0] == 0].view(0, 2)


def test_tensors_that_are_sizes_are_those_of_the_example():
    module, x = Sized(), torch.randn(4, 6)
    mask = torch.zeros(4, 6, dtype=torch.long)
    mask[:2, :3] = 1
    given = x, mask, torch.tensor([[1, 2], [3, 4]])
    for mine, theirs in zip(evaluated(module, *given), module(*given), strict=True):
        assert torch.equal(torch.from_numpy(mine), theirs)


@functools.cache
def places(size):
    return torch.arange(size)


class Cached(nn.Module):
    def forward(self, x):
        return x[places(len(x))]


def test_caches_of_a_program_keep_no_tensor_of_the_export():
    read_module(Cached(), (torch.randn(3, 4),))
    assert torch.equal(places(3), torch.tensor([0, 1, 2]))
