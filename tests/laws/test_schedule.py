"""Laws of the step on tiny graphs of which every assignment is tried: objective, schedules, and plans."""

import itertools
import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from step_problems import count, every_assignment, step_problem

from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.profile import profile_from_text
from shardplan.graph.build import build_cost_graph
from shardplan.graph.memory import MemoryRows
from shardplan.graph.objective_cuts import binding_cuts, plane_of, sums_around, work_of
from shardplan.graph.options import UNLIMITED_BYTES, PlanOptions
from shardplan.graph.problem import objective_of, to_problem
from shardplan.model.types import Model, Operator, Parameter, Tensor
from shardplan.plan.assemble import price
from shardplan.plan.file import dumps, loads
from shardplan.plan.step.phases import EAGER, HOLDING_LESS, Policy
from shardplan.plan.step.schedule import schedule_step
from shardplan.plan.views.timeline import timeline
from shardplan.planning import Planner
from shardplan.rules import model_rules
from shardplan.schedule.objective import at_multipliers, single_sums
from shardplan.solve import evaluate, solve
from shardplan.units import PS_PER_S

MOST = 450_000
"""Assignments of an example, allowed or not."""
ROUNDING_S = 1e-9
"""Of one time to whole nanoseconds: half of that, and of a bound the same."""


def model_of(rows, widths, relu, made_by=(), first=False):
    """Products in a row, each with a Relu behind it where `relu` says so; the input's gradient is wanted nowhere.
    `made_by[n]`: operators through which the weight of product n goes, before all others where `first` says so."""
    tensors = {"x0": Tensor("x0", (rows, widths[0]), "float", "input")}
    operators, weights, last = [], [], "x0"
    for number, (inner, wide) in enumerate(itertools.pairwise(widths), 1):
        weight, made = f"w{number}", f"x{number}"
        kinds = made_by[number - 1] if made_by else ()
        shape = (wide, inner) if kinds.count("Transpose") % 2 else (inner, wide)
        tensors[weight] = Tensor(weight, shape, "float", "parameter")
        weights.append(Parameter(weight, weight, weight))
        for kind in kinds:
            shape = shape[::-1] if kind == "Transpose" else shape
            read, weight = weight, f"{weight}.{kind}"
            tensors[weight] = Tensor(weight, shape, "float", "activation")
            operators.append(Operator(weight, kind, (read,), (weight,), version=21))
        tensors[made] = Tensor(made, (rows, wide), "float", "activation")
        operators.append(Operator(f"dot{number}", "MatMul", (last, weight), (made,), version=21))
        last = made
        if relu and number < len(widths) - 1:
            tensors[f"a{number}"] = Tensor(f"a{number}", (rows, wide), "float", "activation")
            operators.append(Operator(f"relu{number}", "Relu", (last,), (f"a{number}",), version=21))
            last = f"a{number}"
    if first:
        operators.sort(key=lambda operator: not operator.name.startswith("w"))
    return Model("tiny", tuple(operators), tensors, tuple(weights), ("x0",), (last,), {}, opset=21)


sizes = st.sampled_from([8, 64, 512, 4096])
models = st.tuples(sizes, st.lists(sizes, min_size=2, max_size=3).map(tuple), st.booleans())
of_weights = st.sampled_from([(), ("Transpose",), ("Neg",), ("Neg", "Transpose"), ("Transpose", "Neg")])
larger_models = st.tuples(
    sizes,
    st.lists(sizes, min_size=5, max_size=5).map(tuple),
    st.booleans(),
    st.tuples(*[of_weights] * 4),
    st.booleans(),
)
clusters = st.tuples(
    st.sampled_from(["generic", "h100-dgx", "v100-p3-16xl"]),
    st.sampled_from(["2x1", "1x4", "2x2"]),
    st.sampled_from([1.0, 1.1, 1.5]),
    st.sampled_from([0.0, 0.001, 25.0]),
)
options = st.builds(
    PlanOptions,
    mode=st.sampled_from(["training", "training", "inference"]),
    microbatches=st.sampled_from([1, 2, 4]),
    shard_optimizer=st.booleans(),
)


@cache
def cluster_of(name, mesh, kappa, bucket_mb):
    text = f"{{extends: 'builtin:{name}', overlap: {{kappa: {kappa}}}, coalesce: {{bucket_mb: {bucket_mb}}}}}"
    return make_cluster(profile_from_text(text, "tiny"), mesh)


def graph_of(model, cluster, asked):
    made = model_of(*model)
    built = build_cost_graph(made, model_rules(made), cluster_of(*cluster), asked)
    return built, MemoryRows(built)


def slack_s(built):
    """What rounding every time of a step to nanoseconds may amount to."""
    micro = built.options.microbatches
    return ROUNDING_S * (4 + 8 * micro * len(built.operators))


@given(models, clusters, options, st.data())
@settings(max_examples=40)
def test_any_multipliers_bound_the_schedule_of_every_assignment(model, cluster, asked, data):
    """No schedule of any assignment, whatever is prefetched and deferred, is shorter than the sums at any multipliers,
    or than the largest sum of every phase."""
    built, memory = graph_of(model, cluster, asked)
    objective, whole = objective_of(built), step_problem(built)
    weight = st.floats(0.0, 1.0)
    drawn = [data.draw(st.lists(weight, min_size=size, max_size=size)) for size in objective.sizes]
    multipliers = data.draw(st.sampled_from([tuple(map(tuple, drawn)), objective.usual_multipliers]))
    linear = to_problem(built, memory, None, at_multipliers(objective, multipliers))
    allowed = every_assignment(whole) if count(whole) <= MOST else None
    if allowed is None:
        return
    for number in data.draw(st.lists(st.integers(0, len(allowed.cost) - 1), min_size=1, max_size=6)):
        choices = tuple(allowed.choices[number].tolist())
        priced = price(built, memory, choices, UNLIMITED_BYTES)
        assert evaluate(whole, choices).cost == allowed.cost[number]
        assert evaluate(linear, choices).cost <= allowed.cost[number] + 1000
        assert allowed.cost[number] / PS_PER_S <= shortest_s(priced) + slack_s(built)


def shortest_s(priced):
    """The shortest schedule of an assignment, whatever it holds."""
    parts, kappa = priced.scheduled.parts, priced.built.cluster.overlap.kappa
    policies = (*map(Policy, (2, 4, 8)), Policy(just_in_time=True), EAGER, *HOLDING_LESS)
    return min(schedule_step(parts, policy, kappa).seconds for policy in policies)


@given(larger_models, clusters, options, st.lists(st.floats(0.0, 1.0), min_size=4, max_size=4))
@example((512, (4096,) * 5, False, (("Transpose",),) * 4, True), ("h100-dgx", "2x1", 1.1, 25.0), PlanOptions(), [0.0])
@settings(max_examples=40)
def test_the_largest_sums_bound_the_schedule_of_weights_that_go_through_operators(model, cluster, asked, drawn):
    """Of what is best at some multipliers with ever less memory: there are too many assignments to try them all."""
    built, memory = graph_of(model, cluster, asked)
    objective, whole = objective_of(built), step_problem(built)
    multipliers = tuple(tuple(drawn[k % len(drawn)] / size for k in range(size)) for size in objective.sizes)
    linear = at_multipliers(objective, multipliers)
    limit = None
    for _ in range(3):
        choices = solve(to_problem(built, memory, limit, linear)).choices
        if choices is None:
            break
        bound_s = evaluate(whole, choices).cost / PS_PER_S
        assert bound_s <= shortest_s(price(built, memory, choices, UNLIMITED_BYTES)) + slack_s(built)
        limit = int(0.7 * evaluate(whole, choices).peak_bytes)


@given(larger_models, clusters, options, st.data())
@settings(max_examples=10)
def test_sums_around_any_operator_bound_the_schedule_and_are_what_the_objective_says(model, cluster, asked, data):
    """The highest sums of an assignment are found for all operators at once, and here again term by term."""
    built, memory = graph_of(model, cluster, asked)
    objective = objective_of(built)
    plain = to_problem(built, memory, None, at_multipliers(objective, objective.usual_multipliers))
    factor = data.draw(st.sampled_from([1, 8]))
    choices = solve(replace(plain, costs=tuple(factor * one for one in plain.costs))).choices
    plane = plane_of(built, choices, objective)
    base, *others = (evaluate(to_problem(built, memory, None, one), choices).cost for one in single_sums(objective))
    assert abs(plane.cost - base) <= 100, "picoseconds: each table is rounded"
    assert all(abs(one + base - other) <= 200 for one, other in zip(plane.sums, others, strict=True))
    cuts = binding_cuts(built, choices, objective, -1.0)
    around = {phase.name for phase in objective.phases if any(one.cut >= 0 for one in phase.sums)}
    assert set(cuts) == around
    step_s = shortest_s(price(built, memory, choices, UNLIMITED_BYTES))
    for phase in objective.phases:
        for chosen in cuts.get(phase.name, ()):
            at_once = sums_around(chosen.side, chosen.level, phase, objective, work_of(built, choices))
            every = tuple(replace(chosen, cut=place) for place in range(len(built.operators)))
            phases = tuple(
                replace(one, sums=(one.sums[0], *every)[: 99 * (one is phase) + 1]) for one in objective.phases
            )
            sums = single_sums(replace(objective, phases=phases))
            values = np.array([evaluate(to_problem(built, memory, None, one), choices).cost for one in sums[1:]])
            assert np.ptp(values - phase.count * at_once) <= 100, "picoseconds: each table is rounded"
            assert values.max() / PS_PER_S <= step_s + slack_s(built)
            assert np.argmax(values) == chosen.cut or values.max() - values[chosen.cut] <= 100
    assert binding_cuts(built, choices, objective.with_cuts(cuts), 1e-9) == {}


@given(models, clusters, options)
@example((4096, (4096, 512), False), ("h100-dgx", "2x2", 1.1, 25.0), PlanOptions(microbatches=4))  # a gap of 12 %
@settings(max_examples=15)
def test_no_assignment_is_shorter_than_the_plan_by_more_than_its_gap(model, cluster, asked):
    asked = replace(asked, gap=0.0)
    built, memory = graph_of(model, cluster, asked)
    whole = step_problem(built)
    if count(whole) > MOST:
        return
    limit = built.cluster.device.usable_bytes
    plan = Planner(built.model, built.cluster, asked).plan()
    step_s, bound_s = plan.summary.step_ns / 1e9, plan.summary.step_bound_ns / 1e9
    shorter = every_assignment(whole).within(limit)
    best_s = step_s
    for choices, cost, _ in shorter:
        if cost / PS_PER_S > best_s:
            break  # by the law above its schedule is no shorter
        best_s = min(best_s, price(built, memory, choices, limit).step_s)
    assert bound_s == pytest.approx(shorter.cost[0] / PS_PER_S, abs=slack_s(built))
    assert bound_s <= best_s + slack_s(built)
    assert step_s <= best_s + plan.summary.gap * step_s + slack_s(built)


@given(st.one_of(models, larger_models), clusters, options)
@settings(max_examples=15)
def test_the_file_alone_gives_the_step(model, cluster, asked):
    built, _ = graph_of(model, cluster, asked)
    plan = Planner(built.model, built.cluster, asked).plan()
    again = loads(dumps(plan))
    assert timeline(again).seconds == pytest.approx(plan.summary.step_ns / 1e9, rel=1e-6, abs=1e-9)


@given(models, clusters, st.booleans())
@example((4096, (4096, 512), False), ("h100-dgx", "2x2", 1.1, 25.0), False)  # three plans
@settings(max_examples=8)
def test_looser_memory_is_never_slower(model, cluster, shard_optimizer):
    asked = PlanOptions(shard_optimizer=shard_optimizer, gap=0.0)
    built, _ = graph_of(model, cluster, asked)
    whole = step_problem(built)
    if count(whole) > MOST:
        return
    allowed = every_assignment(whole)
    least, most = int(allowed.peak.min()), int(1.5 * allowed.peak[allowed.cost.argmin()])
    steps = []
    for share in (0.0, 0.3, 1.0):
        limit = least + round(share * max(0, most - least))
        plan = Planner(built.model, built.cluster, replace(asked, memory_limit_bytes=limit)).plan()
        assert plan.summary.memory.total <= limit
        steps.append(plan.summary.step_ns)
    assert all(later <= 1.005 * earlier + 1 for earlier, later in itertools.pairwise(steps)), steps


@given(models, clusters)
@settings(max_examples=10)
def test_once_a_step_gradients_overlap_one_backward_whatever_the_microbatches(model, cluster):
    """Whole weights everywhere: what is reduced once a step is exposed but for what one backward computes."""
    for micro in (1, 2, 4, 8):
        built, memory = graph_of(model, cluster, PlanOptions(microbatches=micro))
        objective = objective_of(built)
        base = to_problem(built, memory, None, single_sums(objective)[0])
        choices = _replicated(built, base)
        if choices is None:
            continue
        priced = price(built, memory, choices, UNLIMITED_BYTES)
        once_s, computed_s = 0.0, 0.0
        for phase, item, _, numbers, _ in priced.scheduled.spans():
            if numbers and priced.moves[numbers[0]].phase == "backward" and priced.moves[numbers[0]].kind == "deferred":
                assert phase.name == "last backward"
                once_s += item.seconds
            computed_s += phase.count * item.seconds * (item.action == "compute")
        kappa = built.cluster.overlap.kappa
        (backward_s,) = {
            sum(item.seconds for item in phase.program if item.action == "compute")
            for phase in priced.scheduled.phases
            if phase.name == "last backward"
        }
        assert priced.step_s >= computed_s + max(0.0, once_s - kappa * backward_s) - slack_s(built)


def _replicated(built, base):
    """Choices of a data-parallel plan: rows over every device, weights whole; `None` where rows cannot be split."""
    chosen, shape = [], built.cluster.mesh.shape
    for node, cost in zip(built.graph.nodes, base.costs, strict=True):
        space = built.graph.nodes[node]["space"]
        kind, name = node
        if kind == "operator":
            reads = [space.strategies.layout("operands", 0, i) for i in range(len(space))]
            want = [i for i, read in enumerate(reads) if _is(read, "S(0)", shape) and math.isfinite(cost[i])]
        else:
            role = "R" if name in built.trainable else "S(0)"
            want = [i for i in range(len(space)) if _is(space.layout(i), role, shape)]
        if not want:
            return None
        chosen.append(want[0])
    choices = tuple(chosen)
    return choices if np.isfinite(evaluate(base, choices).cost) else None


def _is(layout, role, shape):
    return all(str(placement) == role for placement, size in zip(layout.placements, shape, strict=True) if size > 1)
