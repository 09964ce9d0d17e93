"""Constraint files and pins as text: what they say, and what is said when they say nothing."""

import pytest

from shardplan.constraints.parse import parse_constraints, parse_pin, read_constraints
from shardplan.constraints.types import AxisUse, Dims, Split
from shardplan.errors import ShardplanError


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("[null, gpu]", Dims(((), ("gpu",)))),
        ("[[machine, gpu], free]", Dims((("machine", "gpu"), None))),
        ("S(1)@gpu", Dims(((), ("gpu",)))),
        ("S(0)@machine,gpu", Dims((("machine", "gpu"),))),
        ("S(1)@machine, S(0)@gpu", Dims((("gpu",), ("machine",)))),
        ("S(1;2x8,16)@gpu", Dims(((), ("gpu",)), segments=((), (8, 8, 16)))),
        ("replicate", Dims(())),
        ("R", Dims(())),
        ("null", Dims(())),
        ("free", Dims((), rest_open=True)),
        ("{gpu: n, machine: not m}", (Split("gpu", "n"), Split("machine", "m", wanted=False))),
        ("{gpu: none}", (Split("gpu", ""),)),
    ],
)
def test_specs(text, spec):
    constraint = parse_pin(f"*.up.weight={text}")
    assert (constraint.pattern, constraint.spec, constraint.is_exact) == ("*.up.weight", spec, False)
    assert constraint.section == ("operators" if isinstance(spec, tuple) else "any")


def test_a_file():
    found = parse_constraints(
        "mesh_axis_names: [data, model]\n"
        "inputs: {x: [data]}\n"
        "outputs: [[data, null], null]\n"
        'parameters:\n  "*.up.weight": {dims: [null, model], cost: 3 us}\n'
        "axes: {data: {inputs: 0, parameters: replicate, forbid: [all_to_all]}}\n",
        "f.yaml",
    )
    assert [(c.section, c.pattern, c.cost_us, c.mark.line, c.mark.column) for c in found] == [
        ("inputs", "x", None, 2, 13),
        ("outputs", "#0", None, 3, 11),
        ("outputs", "#1", None, 3, 25),
        ("parameters", "*.up.weight", 3.0, 5, 18),
        ("axes", "data", None, 6, 14),
    ]
    assert found[-1].spec == AxisUse(0, whole_parameters=True, forbidden=("all_to_all",))
    assert {c.aliases for c in found} == {("data", "model")}
    assert str(found[3]) == "parameters: *.up.weight: {dims: [null, model], cost: 3 us}"


def test_one_spec_for_a_whole_list():
    (constraint,) = parse_constraints("inputs: replicate\n", "f.yaml")
    assert (constraint.pattern, constraint.spec) == ("*", Dims(()))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "input: {x: replicate}",
            ("f.yaml:1:1: error[unknown-key]: unknown key 'input' in a constraint file\n"
            "  allowed: inputs, outputs, parameters, tensors, operators, axes, stages, pipeline_intermediate_axes, "
            "mesh_axis_names\n"
            "hint: did you mean 'inputs'?"),
        ),
        (
            "inputs: [data, null]",
            ("f.yaml:1:9: error[bad-constraint]: inputs: a list has one entry for each of them, each a list itself\n"
            'hint: for every one of the inputs, write inputs: {"*": …}; for one, its name'),
        ),
        (
            "tensors: {x: whole}",
            ("f.yaml:1:14: error[bad-constraint]: 'whole' is not how a tensor is sharded\n"
            "hint: write [machine, null], replicate, free, or S(0)@machine"),
        ),
        (
            "tensors: {x: S(0)@a, x: replicate}",
            "f.yaml:1:22: error[duplicate-key]: 'x' is given twice",
        ),
        (
            "tensors: {x: {dims: [a], cost: 3 apples}}",
            ("f.yaml:1:32: error[bad-constraint]: cost: expected the unit of a time such as 4.5 us, found 'apples' in "
            "'3 apples'"),
        ),
        (
            "tensors: {x: {cost: 3 us}}",
            "f.yaml:1:14: error[bad-constraint]: 'x' has a cost but nothing that it is the cost of",
        ),
        (
            "operators: {x: {gpu: not}}",
            None,
        ),
        (
            "operators: {x: {gpu: maybe n}}",
            ("f.yaml:1:22: error[bad-constraint]: 'maybe n' is not what an axis does to an operator\n"
            "hint: write a factor such as n, not n, or none"),
        ),
        (
            "axes: {gpu: {forbid: [all_to_al]}}",
            ("f.yaml:1:22: error[bad-constraint]: forbid: there is no collective 'all_to_al'\n"
            "  there are all_gather, reduce_scatter, all_reduce, all_to_all, permute\n"
            "hint: did you mean 'all_to_all'?"),
        ),
        ("axes: {gpu: {inputs: first}}", ("f.yaml:1:22: error[bad-constraint]: inputs: 'first' is not a dim\n"
         "hint: write the number of a dim, such as 0")),
        ("[]", "f.yaml:1:1: error[bad-constraint]: a constraint file is a mapping, found '[]'"),
        ("a: ]", "f.yaml:1:4: error[yaml-syntax]: not valid YAML: did not find expected node content"),
    ],
)  # fmt: skip
def test_refusals(text, said):
    if said is None:
        assert parse_constraints(text, "f.yaml")[0].spec == (Split("gpu", "not"),)
        return
    with pytest.raises(ShardplanError) as caught:
        parse_constraints(text, "f.yaml")
    assert str(caught.value) == said


def test_every_fault_is_said_at_once():
    with pytest.raises(ShardplanError) as caught:
        parse_constraints("tensors: {x: whole, y: part}\naxes: {gpu: {forbid: [none]}}\n", "f.yaml")
    assert [d.line for d in caught.value.diagnostics] == [1, 1, 2]


def test_pins_that_are_none():
    for pin in ("x", "=replicate", "x="):
        with pytest.raises(ShardplanError) as caught:
            parse_pin(pin)
        assert str(caught.value) == (
            f"error[bad-constraint]: --pin '{pin}' is not PATTERN=SPEC\n"
            "hint: write for example --pin '*.up.weight=[null, gpu]' or --pin 'embed.weight=replicate'"
        )


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(ShardplanError, match=r"cannot read constraints: no such file or directory"):
        read_constraints(tmp_path / "absent.yaml")
