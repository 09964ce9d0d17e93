"""Tests of the tests: what is wrong on purpose must be found, and named."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest
from control_models import COUNTED
from forced_plans import INFERENCE, TRAINING, forced_plan
from microsoft_cases import CASES
from operator_cases import CASES as OPERATOR_CASES
from operator_cases import values_of
from rule_cases import Case, f, index
from small_models import proto_of, small_model
from strategies import strategy_plan, strategy_plans

from shardplan.errors import ShardplanError
from shardplan.layout.layout import Layout
from shardplan.layout.mesh import Mesh
from shardplan.layout.placement import P, R, S
from shardplan.model.read import read_model
from shardplan.program import collectives, localise
from shardplan.program.lower import lower_program
from shardplan.program.machine.interpreter import Interpreter
from shardplan.program.machine.run import Machine
from shardplan.program.machine.values import random_values
from shardplan.program.machine.verify import verify_plan
from shardplan.program.operators import lookups, losses, registry
from shardplan.program.operators.losses import _log_softmax as log_softmax
from shardplan.program.operators.recurrent import _Layer
from shardplan.program.operators.windows import _Halo
from shardplan.program.reference.experts import experts
from shardplan.rules import model_rules

gathered = _Layer._gathered
carried_out = Interpreter._collective


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return {name: small_model(name, folder) for name in ("mlp", "gpt", "conv", "moe")}


@pytest.fixture(scope="module")
def moved(models):
    """A random plan of the multilayer perceptron, with many moves."""
    return forced_plan(models["mlp"], "2x2", TRAINING, seed=1)


def forward(plan):
    return [place for place, move in enumerate(plan.moves) if move.phase == "forward"]


def without(items, place):
    return (*items[:place], *items[place + 1 :])


def test_the_plan_is_right_as_it_is(models, moved):
    report = verify_plan(models["mlp"], moved)
    assert report.verified
    assert len(forward(moved)) > 5


def test_a_dropped_move_is_found(models, moved):
    for place in forward(moved):
        report = verify_plan(models["mlp"], replace(moved, moves=without(moved.moves, place)))
        assert report.mismatch is not None
        assert report.mismatch.tensor == moved.moves[place].tensor
        assert report.mismatch.why.startswith("the plan has no move from")


def test_a_dropped_collective_is_found(models, moved):
    for place in forward(moved):
        move = moved.moves[place]
        for dropped in range(len(move.steps)):
            shorter = replace(move, steps=without(move.steps, dropped))
            moves = (*moved.moves[:place], shorter, *moved.moves[place + 1 :])
            report = verify_plan(models["mlp"], replace(moved, moves=moves))
            assert report.mismatch is not None
            assert "do not lead from" in report.mismatch.why


def test_another_payload_is_found(models, moved):
    place = next(place for place in forward(moved) if any(step.payload_bytes for step in moved.moves[place].steps))
    move = moved.moves[place]
    wrong = tuple(replace(step, payload_bytes=step.payload_bytes // 2) for step in move.steps)
    moves = (*moved.moves[:place], replace(move, steps=wrong), *moved.moves[place + 1 :])
    report = verify_plan(models["mlp"], replace(moved, moves=moves))
    assert report.mismatch is None
    assert not report.verified
    assert f"'{move.tensor}'" in report.mispriced[0]


def plan_and_rule(model, index, factor, **changes):
    """The operator alone, split by `factor` with a changed rule, as a plan; and the changed rule."""
    operator = model.operators[index]
    used = {*operator.inputs, *operator.outputs}
    alone = replace(
        model,
        operators=(operator,),
        inputs=tuple(name for name in model.inputs if name in used),
        parameters=(),
        outputs=operator.outputs,
        blocks=(),
        tensors={name: model.tensors[name] for name in model.tensors if name in used},
    )
    rule = model_rules(model)[index]
    options = tuple(replace(o, **changes) if o.factor == factor else o for o in rule.options)
    changed = replace(rule, options=options)
    option = next(o for o in options if o.factor == factor)
    return alone, strategy_plan(alone, changed, Mesh.of(a=2), (option,)), changed


def run_alone(alone, plan, rule):
    generator = np.random.default_rng(0)
    values = {d.name: generator.standard_normal(d.shape) for d in plan.tensors}
    values |= {name: np.asarray(array) for name, array in alone.constants.items()}
    return Machine(lower_program(alone, plan, [rule]), values).run()


def test_a_wrong_rule_is_found(models):
    model = models["mlp"]
    right = plan_and_rule(model, 0, "k")
    assert run_alone(*right).verified
    for changes in (
        {"results": (R,)},  # a partial sum that is taken for the whole
        {"operands": (S(1), S(0), R)},  # a bias that is added on every device
    ):
        report = run_alone(*plan_and_rule(model, 0, "k", **changes))
        assert report.mismatch is not None
        assert (report.mismatch.operator, report.mismatch.kind) == (model.operators[0].name, "Gemm")
    swapped = plan_and_rule(model, 0, "m", results=(S(1),))
    assert not run_alone(*swapped).verified


def test_a_mean_without_its_share_is_found(models):
    model = models["conv"]
    index = next(i for i, operator in enumerate(model.operators) if operator.op_type == "GlobalAveragePool")
    rule = model_rules(model)[index]
    factor = next(option.factor for option in rule.options if option.averaged)
    assert run_alone(*plan_and_rule(model, index, factor)).verified
    assert run_alone(*plan_and_rule(model, index, factor, averaged=False)).mismatch.why == "its elements differ"


def test_a_wrong_offset_into_a_table_is_found(models, monkeypatch):
    model = models["gpt"]
    index = next(i for i, operator in enumerate(model.operators) if operator.op_type == "Gather")
    alone, plan, rule = plan_and_rule(model, index, "v")
    values = random_values(alone, rules=[rule])
    assert Machine(lower_program(alone, plan, [rule]), values).run().verified
    monkeypatch.setattr(lookups, "index_axes", lambda *_: ())
    report = Machine(lower_program(alone, plan, [rule]), values).run()
    assert report.mismatch.why == "its elements differ"
    assert report.mismatch.error > 0.1


def test_a_wrong_halo_is_found(models, monkeypatch):
    model = models["conv"]
    alone, plan, rule = plan_and_rule(model, 0, "y0")
    assert run_alone(alone, plan, rule).verified
    extended = _Halo.extended

    def stale(halo, data, dim, axes, rows, size):
        """Rows as they should be, each one place too far."""
        made, count = extended(halo, data, dim, axes, rows, size), size + max(rows[0], 0) + rows[1]
        return halo.graph.take(made, [count - 1, *range(count - 1)], dim)

    monkeypatch.setattr(_Halo, "extended", stale)
    assert run_alone(alone, plan, rule).mismatch is not None


def test_a_shape_that_is_not_localised_is_found(models, monkeypatch):
    model = models["gpt"]
    plan = forced_plan(model, "2x2", INFERENCE)
    assert verify_plan(model, plan).verified
    assert any(set(d.split) != {"-"} for d in plan.operators if d.op_type == "Reshape")
    monkeypatch.setattr(localise, "LOCALISERS", {})
    report = verify_plan(model, plan)
    assert report.mismatch.kind in {"Reshape", "Split"}


def test_replicas_that_differ_are_found(models, moved):
    """A result that is said to be replicated while every device has its own."""
    program = lower_program(models["mlp"], moved)
    machine = Machine(program, random_values(models["mlp"]))
    value = program.loads[0]
    shape = models["mlp"].tensors[value.tensor].shape
    layout = Layout.of(R, R)
    machine.held[value] = [np.full(shape, float(rank)) for rank in range(4)]
    machine._check(program.instructions[0], replace(value, layout=layout), machine.held[value])
    assert "holds other values than the devices it should be a copy of" in machine.report.mismatch.why


def test_a_plan_of_another_model_is_refused(models, moved):
    with pytest.raises(ShardplanError) as caught:
        verify_plan(models["gpt"], moved)
    assert str(caught.value) == (
        "error[stale-plan]: the plan was made for another model than 'gpt': operators or shapes differ\n"
        "hint: solve again, or give the model and dims of the plan"
    )


def test_a_plan_that_contradicts_itself_is_refused(models, moved):
    decision = moved.operators[1]
    for changes, words in (
        ({"split": ("nonsense", "-")}, "it splits factor 'nonsense'; the operator has x0, x1"),
        ({"reads": (Layout.of(S(0), P()),), "split": ("-", "-")}, "the plan gives 'h' the layout"),
        ({"reads": ()}, "it has 1 operands, the plan lists 0"),
    ):
        edited = replace(decision, **changes)
        plan = replace(moved, operators=(moved.operators[0], edited, *moved.operators[2:]))
        with pytest.raises(ShardplanError) as caught:
            verify_plan(models["mlp"], plan)
        assert f"the plan contradicts itself at operator '{decision.name}' (Relu): {words}" in str(caught.value)
        assert caught.value.diagnostics[0].code == "inconsistent-plan"


def test_too_many_devices_are_refused(models, moved):
    with pytest.raises(ShardplanError, match="the plan is for 128 devices; at most 64 are simulated"):
        verify_plan(models["mlp"], replace(moved, mesh=Mesh.of(a=128)))


def alone(case, factor):
    """An operator split by `factor` on two devices: the program, and the values it reads."""
    model, rule = case.model(), case.rule()
    option = next(option for option in rule.options if option.factor == factor)
    plan = strategy_plan(model, rule, Mesh.of(a=2), (option,))
    values = {f"i{place}": array for place, array in enumerate(case.operands) if array is not None}
    return lower_program(model, plan, [rule]), values


@pytest.mark.parametrize(
    ("case", "factor", "module", "name", "wrong"),
    [
        pytest.param(
            Case("RandomNormalLike", (f(4, 8),)),
            "x0",
            registry,
            "part",
            lambda whole, layout, mesh, _: collectives.part(whole, layout, mesh, (0,)),
            id="every device draws the same",
        ),
        pytest.param(
            Case("GRU", (f(3, 4, 4), f(1, 12, 4), f(1, 12, 4)), {"hidden_size": 4}, outputs=2),
            "h",
            _Layer,
            "_gathered",
            lambda layer, body, state, dim: gathered(layer, body, body.op("Sub", state, state), dim),
            id="a state that is not handed on",
        ),
        pytest.param(
            CASES["MoE"][0], "e", registry, "experts", lambda *given: experts(*given[:3], 0), id="others' experts"
        ),
        pytest.param(
            Case("SoftmaxCrossEntropyLoss", (f(4, 8), index(8, 4))),
            "c",
            losses,
            "_log_softmax",
            lambda graph, scores, _, wide: log_softmax(graph, scores, (), wide),
            id="a row that each device has for itself",
        ),
    ],
)
def test_a_wrong_kernel_is_found(case, factor, module, name, wrong, monkeypatch):
    program, values = alone(case, factor)
    assert Machine(program, values, 1e-4).run().verified
    monkeypatch.setattr(module, name, wrong)
    assert not Machine(program, values, 1e-4).run().verified


def run_without(program, values, monkeypatch, dropped: str = "") -> tuple[list[str], bool]:
    """Names of the collectives inside the operator, and whether a run finds nothing wrong in which a device has only
    what it gave itself to the one called `dropped`."""
    seen: dict[str, None] = {}

    def collective(interpreter, node, held):
        seen[node.name] = None
        own = [values[node.inputs[0]] for values in held]
        carried_out(interpreter, node, held)
        for mine, values in zip(own, held, strict=True) if node.name == dropped else ():
            times = [got // had for got, had in zip(values[node.outputs[0]].shape, mine.shape, strict=True)]
            values[node.outputs[0]] = np.tile(mine, times)

    monkeypatch.setattr(Interpreter, "_collective", collective)
    verified = Machine(program, values, 1e-4).run().verified
    return list(seen), verified


@pytest.mark.parametrize("name", [name for name, case in OPERATOR_CASES.items() if case.kind in registry.OPERATORS])
def test_every_collective_inside_an_operator_is_needed(name, monkeypatch):
    case = OPERATOR_CASES[name]
    model, rule = case.model(), case.rule()
    for plan in strategy_plans(model, rule, Mesh.of(a=2)):
        program = lower_program(model, plan, [rule])
        values = values_of(case)
        floats = {key: array for key, array in values.items() if array.dtype.kind == "f"}
        reversed_, equal = (
            values | {key: change(array) for key, array in floats.items()} for change in (np.flip, np.ones_like)
        )
        names, verified = run_without(program, values, monkeypatch)
        assert verified
        for dropped in names:  # extrema may be a device's own; of equal ones the first counts
            found = (not run_without(program, given, monkeypatch, dropped)[1] for given in (values, reversed_, equal))
            assert any(found), (plan.operators[0].split, dropped)


def test_a_dropped_collective_inside_a_loop_is_found(tmp_path):
    onnx.save(proto_of(COUNTED, 21), tmp_path / "m.onnx")
    model = read_model(tmp_path / "m.onnx")
    plan = forced_plan(model, "2x2", INFERENCE, seed=2)
    assert verify_plan(model, plan).verified
    shorter = [replace(move, steps=move.steps[:-1]) for move in plan.moves if move.tensor.startswith("Loop_2/")]
    kept = [move for move in plan.moves if not move.tensor.startswith("Loop_2/")]
    report = verify_plan(model, replace(plan, moves=(*kept, *shorter)))
    assert report.mismatch.tensor.startswith("Loop_2/")
