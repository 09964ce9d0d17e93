"""Ranks that run a model in different orders: nothing is exchanged for something else in silence."""

import random
import warnings

import pytest

pytest.importorskip("torch")

import onnx
import torch
from forced_plans import forced_plan
from small_models import proto_of
from torch_orders import MODELS
from torch_ranks import Ranks

from shardplan.model.read import read_model
from shardplan.torch.collectives.order import content_of

SAID = "error[another-order]: processes run the model in different orders: they are about to send different tensors"


@pytest.fixture(scope="module")
def strangers(tmp_path_factory):
    """Four ranks that iterate over a set of strings in two orders, others in every run of the tests. Along each axis of
    2x2 both orders meet: it is one of rank 0 and 3, and one of 1 and 2."""
    while True:
        one, other = random.SystemRandom().sample(range(1 << 32), 2)
        seeds = [one, other, other, one]
        ranks = Ranks(4, tmp_path_factory.mktemp("strangers"), ("torch_cases", "torch.export._trace"), seeds)
        if len(set(ranks.run("torch_orders", "order"))) > 1:
            break
        ranks.close()
    print("PYTHONHASHSEED of the ranks:", seeds)  # a failing test shows it
    yield ranks
    ranks.close()


@pytest.fixture(scope="module")
def plan_of(tmp_path_factory):
    def made(name, **options):
        path = tmp_path_factory.mktemp("model") / f"{name}.onnx"
        onnx.save(proto_of(MODELS[name][1]), path)
        return forced_plan(read_model(path), "2x2", **options)

    return made


def test_orders_differ(four, strangers):
    assert len(set(strangers.run("torch_orders", "order"))) > 1
    assert len(set(four.run("torch_orders", "order"))) == 1


@pytest.mark.parametrize("mode", ["eager", "exported"])
@pytest.mark.parametrize("seed", [1, 2])
def test_tables_that_the_program_makes_are_made_in_any_order(strangers, plan_of, seed, mode):
    """Whatever the plan says of them: each process has them whole, and none is sent."""
    plan = plan_of("tables", seed=seed)
    sent = [move for move in plan.moves if any(not step.collective.is_free for step in move.steps)]
    assert len({move.tensor for move in sent if move.reader.startswith("Sin")}) > 2
    for errors in strangers.run("torch_orders", "step", "tables", plan, mode):
        assert isinstance(errors, tuple), errors
        assert max(errors) < 1e-5


@pytest.mark.parametrize("mode", ["eager", "exported"])
@pytest.mark.parametrize(("name", "options"), [("branches", {"recipe": "ZeRO-3"}), ("scaled", {"seed": 3})])
def test_another_order_is_an_error_and_on_all_processes(four, strangers, plan_of, name, options, mode):
    plan = plan_of(name, **options)
    said = strangers.run("torch_orders", "step", name, plan, mode)
    assert all(SAID in text and "PYTHONHASHSEED" in text for text in said)
    assert len(set(said)) == 1
    for errors in four.run("torch_orders", "step", name, plan, mode):
        assert max(errors) < 1e-5


def test_constants_are_told_apart_by_their_imaginary_parts_too():
    one, other = (torch.complex(torch.ones(3), torch.full((3,), part)) for part in (1.0, 2.0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert content_of(one) != content_of(other)
    assert content_of(one.conj()) == content_of(torch.complex(one.real, -one.imag))
