"""Models that are called with, and return, dictionaries, lists and records of tensors."""

import pytest

pytest.importorskip("torch")
pytest.importorskip("onnxscript")

import torch
from torch_structures import OfMapping, OfRecord, Rows, batch_of

import shardplan.torch
from shardplan.errors import ShardplanError
from shardplan.torch.argument_paths import named_tensors, with_tensors
from shardplan.torch.exported.call_form import CallForm
from shardplan.torch.planning.plan import read_module

TENSOR = torch.ones(2)


@pytest.mark.parametrize("mode", ["eager", "exported"])
@pytest.mark.parametrize("kind", [OfMapping, OfRecord])
def test_they_run_as_in_one_process(four, kind, mode):
    plan = shardplan.torch.plan(kind(), batch_of(kind), "2x2", pins=["a.weight=[machine, gpu]"])
    assert {tensor.name for tensor in plan.tensors if tensor.role == "input"} == {"batch_x", "batch_goals_y", "shift"}
    for error, local in four.run("torch_structures", "train", kind, plan, mode):
        assert error < 1e-6
        assert local


def test_names_are_those_of_the_plan():
    arguments = [("batch", {"x": TENSOR, "rest": [3, TENSOR]}), ("mask", None), ("y", TENSOR)]
    assert [name for name, _ in named_tensors(arguments)] == ["batch_x", "batch_rest_1", "y"]
    assert with_tensors("batch", arguments[0][1], lambda _, leaf: leaf) is arguments[0][1]
    assert with_tensors("batch", {"x": 1}, lambda name, _: name) == {"x": "batch_x"}


def test_a_graph_is_called_by_place_and_by_name():
    def called(*args, **kwargs):
        return form.leaves(args, kwargs)

    form = CallForm.of(OfMapping(), ({"x": TENSOR, "goals": TENSOR},), {"shift": TENSOR, "kind": "l1"})
    one, two, three = torch.zeros(3, 2).unbind()
    found = called(kind="l1", shift=three, batch={"goals": two, "x": one})
    assert all(a is b for a, b in zip(found[:3], (one, two, three), strict=True))
    assert called({"x": one, "goals": two}, three, kind="l1")[2] is three
    for args, kwargs, said in [
        (({"x": one, "goals": two},), {"kind": "l1"}, "it is given batch, kind"),
        (({"x": one},), {"shift": three, "kind": "l1"}, "it is given other structures of them"),
        (({"x": one, "goals": two}, three), {"kind": "l2"}, "it is given 'l2' where that was 'l1'"),
        (({"x": one, "goals": two}, 1.0), {"kind": "l1"}, "it is given 1.0 where that was a tensor"),
    ]:
        with pytest.raises(ShardplanError, match=said):
            called(*args, **kwargs)


def test_records_that_torch_does_not_know_are_refused_in_words():
    class Strange:
        x = TENSOR

    with pytest.raises(ShardplanError, match="register a dataclass where it is defined") as refused:
        read_module(OfMapping(), ({"x": TENSOR, "goals": Strange()}, TENSOR))
    assert "[cannot-export]" in str(refused.value)
    assert isinstance(batch_of(OfRecord)[0], Rows)
