"""What a schedule holds beside the rows of memory: weights gathered ahead of use, gradients until they are reduced."""

import pytest
from step_problems import base_problem

from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.profile import load_profile
from shardplan.graph.build import build_cost_graph
from shardplan.graph.memory import MemoryRows
from shardplan.graph.options import UNLIMITED_BYTES, PlanOptions
from shardplan.model.types import Model, Operator, Parameter, Tensor
from shardplan.plan.assemble import price
from shardplan.plan.step.in_flight_memory import in_flight_bytes
from shardplan.plan.step.phases import Policy
from shardplan.plan.step.schedule import schedule_step
from shardplan.plan.step.staying_weights import bytes_of, copies
from shardplan.planning.recipes import data_parallel, zero_3
from shardplan.planning.reduction import restrict
from shardplan.rules import model_rules
from shardplan.solve import solve

LAYERS, ROWS, WIDTH = 4, 4096, 2048
WEIGHT_BYTES = 4 * WIDTH * WIDTH


def chain():
    """Products in a row."""
    tensors = {"x0": Tensor("x0", (ROWS, WIDTH), "float", "input")}
    for number in range(1, LAYERS + 1):
        tensors[f"w{number}"] = Tensor(f"w{number}", (WIDTH, WIDTH), "float", "parameter")
        tensors[f"x{number}"] = Tensor(f"x{number}", (ROWS, WIDTH), "float", "activation")
    numbers = range(1, LAYERS + 1)
    dots = tuple(Operator(f"dot{n}", "MatMul", (f"x{n - 1}", f"w{n}"), (f"x{n}",), version=21) for n in numbers)
    weights = tuple(Parameter(f"w{n}", f"w{n}", f"w{n}") for n in numbers)
    return Model("chain", dots, tensors, weights, ("x0",), (f"x{LAYERS}",), {}, opset=21)


@pytest.fixture(scope="module", params=[data_parallel, zero_3], ids=["data parallel", "ZeRO-3"])
def flown(request):
    """A recipe's plan: its cost graph, memory rows and priced assignment."""
    model, cluster = chain(), make_cluster(load_profile("h100-dgx"), "2x1")
    built = build_cost_graph(model, model_rules(model), cluster, PlanOptions())
    choices = solve(restrict(base_problem(built), built, request.param(built))).choices
    memory = MemoryRows(built)
    return built, memory, price(built, memory, choices, UNLIMITED_BYTES), request.param


def test_gradients_are_in_flight_after_their_maker_has_run_until_they_are_reduced(flown):
    built, memory, priced, _ = flown
    flight = in_flight_bytes(built, priced.scheduled.parts, priced.scheduled, memory)
    (phase, ran) = next(one for one in priced.scheduled.phases_ran() if one[0].name == "last backward")
    spans = {span.item: span for span in ran.spans}
    begins = {phase.operators[i]: spans[i].start for i, item in enumerate(phase.program) if item.action == "compute"}
    sent = [
        (phase.operators[i], spans[i].end, len(phase.moves[i]))
        for i, item in enumerate(phase.program)
        if item.action == "issue" and item.deferred
    ]
    assert sum(moves for *_, moves in sent) == LAYERS
    held = [flight[memory.time.backward(operator)] for operator in range(LAYERS)]
    for operator in range(LAYERS):
        reduced = sum(moves for maker, end, moves in sent if maker > operator and end > begins[operator])
        gathered = held[operator] - reduced * WEIGHT_BYTES
        assert gathered >= 0
        assert gathered % WEIGHT_BYTES == 0
    if flown[3] is data_parallel:
        assert held[LAYERS - 1] == 0
        assert max(held) > 0


def test_gathered_weights_are_in_flight_from_their_issue_until_they_are_read(flown):
    """All operators are of one block: what they read is gathered as the first of them begins, and stays for backward,
    but for the first weight, which backward does not read."""
    built, memory, priced, recipe = flown
    flight = in_flight_bytes(built, priced.scheduled.parts, priced.scheduled, memory)
    expected = [WEIGHT_BYTES * (LAYERS - 1 - operator + max(0, operator - 1)) for operator in range(LAYERS)]
    assert flight[:LAYERS].tolist() == (expected if recipe is zero_3 else [0] * LAYERS)


def test_what_is_sent_where_it_stands_is_not_in_flight(flown):
    built, memory, priced, _ = flown
    parts = priced.scheduled.parts
    serial = schedule_step(parts, Policy(None, deferred=False))
    stay = bytes_of(copies(built, parts.moves, memory), memory.moments)
    assert (in_flight_bytes(built, parts, serial, memory) == stay).all()


def test_a_plan_is_scheduled_so_that_it_fits(flown):
    """Where the fastest schedule holds too much, one that holds less is taken, and is no faster."""
    built, memory, priced, _ = flown
    choices = tuple(priced.choice.values())
    tight = price(built, memory, choices, priced.memory.total - 1)
    assert tight.memory.total < priced.memory.total
    assert tight.step_s >= priced.step_s
