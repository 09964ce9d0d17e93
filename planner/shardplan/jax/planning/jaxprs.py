"""From a jaxpr to ONNX nodes: calls are inlined, scans become `Scan`, other primitives follow the table of primitives.

Control flow that depends on data is planned in part: all branches of a conditional (`If`), one iteration of a `while`
loop.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax._src import source_info_util
from jax._src.interpreters import partial_eval
from jax.extend.core import ClosedJaxpr, Literal
from onnx import ValueInfoProto, helper

from shardplan.errors import Diagnostic, ShardplanError, error, warn
from shardplan.jax.planning.complex_numbers import (
    all_parts,
    has_complex,
    joined,
    real_avals,
    rows_of_complex,
)
from shardplan.jax.planning.draws import drawn, is_draw
from shardplan.jax.planning.graph import Body, Graph, Step, onnx_type, value_info
from shardplan.jax.planning.primitives import ROWS

_CALLS = ("jaxpr", "call_jaxpr", "fun_jaxpr")
"""Under what names equations that are calls hold what they call."""
CALLS = frozenset(("pjit", "jit", "closed_call", "core_call"))
REMATS = frozenset(("checkpoint", "remat", "remat2"))
_HIGH = "call_hi_primitive"
"""A primitive that JAX expands to others before it compiles (since JAX 0.12: `searchsorted`)."""
CUSTOM = frozenset(("custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr", _HIGH))
DEBUGS = frozenset(("debug_callback", "debug_print"))
"""What `jax.debug` does: nothing is made, and nothing planned."""
COMPLEX = rows_of_complex(ROWS)
_NO_NUMBERS = "OSUmM"
"""Kinds of dtypes that numpy has and JAX has not: objects, texts, times."""
_REFUSED: Mapping[str, str] = {
    "shard_map": "plan the function as it is for one device: the plan says how it is split",
    "pure_callback": "leave callbacks out of what is planned",
    "io_callback": "leave callbacks out of what is planned",
}


def traced(fn: Callable[..., Any], *arguments: Any) -> tuple[ClosedJaxpr, Any]:
    """The jaxpr of a function, without the equations that its results do not need, and the shapes of the results. Only
    the shapes and dtypes of the arguments count."""
    closed, shape = jax.make_jaxpr(fn, return_shape=True)(*jax.tree.map(abstract, arguments))
    needed, _ = partial_eval.dce_jaxpr(closed.jaxpr, [True] * len(closed.jaxpr.outvars), instantiate=True)
    return ClosedJaxpr(needed, closed.consts), shape


def abstract(leaf: Any) -> jax.ShapeDtypeStruct:
    """Shape and dtype that an array, or a value that becomes one, has in a function: of 64 bits only under
    `jax_enable_x64`. Raises `TypeError` for anything else."""
    dtype = getattr(leaf, "dtype", None) or jnp.result_type(leaf)
    if isinstance(dtype, np.dtype) and dtype.kind in _NO_NUMBERS:
        raise TypeError(f"arrays of {dtype} are none of JAX")
    return jax.ShapeDtypeStruct(jnp.shape(leaf), jax.dtypes.canonicalize_dtype(dtype, allow_extended_dtype=True))


def write(graph: Graph, jaxpr: Any, consts: Sequence[str], arguments: Sequence[str]) -> list[str]:
    """Write the nodes of `jaxpr` into `graph`, for constants and arguments of these names; returns the names of its
    results.

    Raises `ShardplanError` (`cannot-export`) for a primitive without an ONNX form, with the line of the program.
    """
    names: dict[Any, str] = {
        **dict(zip(jaxpr.constvars, consts, strict=True)),
        **dict(zip(jaxpr.invars, arguments, strict=True)),
    }

    def read(variable: Any) -> str:
        if isinstance(variable, Literal):
            return graph.constant(np.asarray(variable.val, dtype=variable.aval.dtype))
        return names[variable]

    outer = graph.scope
    for equation in jaxpr.eqns:
        stack = str(equation.source_info.name_stack)
        graph.scope = "/".join(filter(None, (outer, stack)))
        graph.line = _line(equation) or graph.line
        inputs = [read(variable) for variable in equation.invars]
        step, first = Step(inputs), len(graph.nodes)
        made = step.makes = _written(graph, equation, inputs, step)
        step.nodes = [node.name for node in graph.nodes[first:]]
        step.permuted = graph.permuted_inside(first, inputs, made)
        graph.steps.append(step)
        names.update(zip(equation.outvars, made, strict=True))
    graph.scope = outer
    return [read(variable) for variable in jaxpr.outvars]


def _written(graph: Graph, equation: Any, inputs: list[str], step: Step) -> list[str]:
    name = equation.primitive.name
    if name in CALLS | REMATS | CUSTOM and not is_draw(equation):
        return _call(graph, equation, inputs, step)
    if name in _COMPOSED:
        return _COMPOSED[name](graph, equation, inputs, step)
    if name == "optimization_barrier":
        return inputs
    if name in DEBUGS:
        return []
    of_complex = has_complex(equation)
    row = drawn if is_draw(equation) else (COMPLEX if of_complex else ROWS).get(name)
    if row is None and of_complex:
        hint = "plan it as a function of the real and the imaginary part"
        raise ShardplanError(_no_form(graph, f"there is no form for '{name}' of complex numbers", hint))
    if row is None:
        raise ShardplanError(_no_form(graph, f"there is no form for the primitive '{name}'", _REFUSED.get(name)))
    try:
        made = row(graph, equation, inputs)
    except (NotImplementedError, TypeError, ValueError) as problem:
        raise ShardplanError(_no_form(graph, f"there is no form for this '{name}': {problem}", None)) from problem
    return [made] if isinstance(made, str) else list(made)


def _no_form(graph: Graph, summary: str, hint: str | None) -> Diagnostic:
    return error("cannot-export", summary, hint=hint or "write it with other functions of jax.numpy", **graph.line)


def _line(equation: Any) -> dict[str, Any]:
    """The line of the user's program that wrote an equation; empty for equations that JAX wrote itself."""
    frame = source_info_util.user_frame(equation.source_info.traceback)
    return {"file": str(frame.file_name), "line": int(frame.start_line)} if frame else {}


def _call(graph: Graph, equation: Any, inputs: list[str], step: Step) -> list[str]:
    jaxpr, consts = called(equation)
    outer, graph.steps = graph.steps, step.inner
    made = write(graph, jaxpr, [graph.constant(const) for const in consts], inputs)
    graph.steps = outer
    return made


def _solved(graph: Graph, equation: Any, inputs: list[str], step: Step) -> list[str]:
    """The solution of linear equations, by the function of the program that solves them."""
    lengths, inner = equation.params["const_lengths"], equation.params["jaxprs"].solve
    first = lengths.matvec + lengths.vecmat
    given = [*inputs[first : first + lengths.solve], *inputs[sum(lengths) :]]
    outer, graph.steps = graph.steps, step.inner
    made = write(graph, inner.jaxpr, [graph.constant(const) for const in inner.consts], given)
    graph.steps = outer
    return made


def called(equation: Any) -> tuple[Any, Sequence[Any]]:
    """The jaxpr that an equation calls, and its constants."""
    if equation.primitive.name == _HIGH:
        expanded = functools.partial(equation.primitive.to_lojax, **equation.params)
        closed = jax.make_jaxpr(expanded)(*(abstract(each.aval) for each in equation.invars))
        return closed.jaxpr, closed.consts
    inner = next(equation.params[name] for name in _CALLS if equation.params.get(name) is not None)
    return (inner.jaxpr, inner.consts) if isinstance(inner, ClosedJaxpr) else (inner, ())


def operands_of_scan(equation: Any) -> tuple[int, int]:
    """How many operands of a scan are the same in every iteration, and how many it carries: they come in this order."""
    given = equation.params
    if "ft_in" in given:  # since JAX 0.12
        fixed, carried, _ = given["ft_in"].unpack()
        return len(list(fixed)), len(list(carried))
    return given["num_consts"], given["num_carry"]


def _scan(graph: Graph, equation: Any, inputs: list[str], step: Step) -> list[str]:
    """A `Scan` node. Its inputs are the carried values, then the scanned ones; its outputs the carried values, then the
    stacked ones. The body reads values that are the same in every iteration from the outer graph."""
    given = equation.params
    fixed, carried = operands_of_scan(equation)
    inner = given["jaxpr"]
    body = graph.body()
    avals = [each.aval for each in inner.jaxpr.invars[fixed:]]
    given_to = all_parts(graph, inputs[fixed:], avals)
    taken = [value_info(body.name("in"), aval) for aval in real_avals(avals)]
    arguments = joined(graph, [each.name for each in taken], avals)
    consts = [graph.constant(const) for const in inner.consts]
    results = write(body, inner.jaxpr, consts, [*inputs[:fixed], *arguments])
    made = _results(body, results, inner.out_avals)
    gives = joined(graph, [each.name for each in made], inner.out_avals)
    written = Body(body.steps, "", arguments[:carried], gives[:carried])
    carried, scanned, stacked = (
        len(real_avals(group)) for group in (avals[:carried], avals[carried:], inner.out_avals[carried:])
    )
    if not scanned:  # ONNX counts the iterations by what is scanned
        given_to.append(graph.constant(np.arange(given["length"], dtype=np.int32)))
        taken.append(helper.make_tensor_value_info(body.name("turn"), onnx_type(np.int32), []))
        scanned = 1
    back = int(given["reverse"])
    directions = {"scan_input_directions": [back] * scanned, "scan_output_directions": [back] * stacked}
    nodes = helper.make_graph(body.nodes, "body", taken, made, initializer=body.constants)
    found = graph.add(
        "Scan", given_to, results=carried + stacked, body=nodes, num_scan_inputs=scanned,
        **{name: each for name, each in directions.items() if each and back},
    )  # fmt: skip
    step.bodies = {0: replace(written, within=graph.nodes[-1].name)}
    return joined(graph, [found] if carried + stacked == 1 else list(found), inner.out_avals)


def _results(body: Graph, names: Sequence[str], avals: Sequence[Any]) -> list[ValueInfoProto]:
    """The results of a body, of which each has a name of its own."""
    copies = [body.add("Identity", [part]) for part in all_parts(body, names, avals)]
    return [value_info(*each) for each in zip(copies, real_avals(avals), strict=True)]


def _branch(graph: Graph, equation: Any, inputs: list[str], step: Step) -> list[str]:
    """One branch where its number is known (as for branches by platform), else an `If` of all branches."""
    branches, which = equation.params["branches"], graph.value(inputs[0])
    if which is None and len(branches) > 1:
        made, step.bodies = _chosen(graph, inputs[0], branches, inputs[1:])
        return made
    number = 0 if which is None else min(max(int(which), 0), len(branches) - 1)
    inner = branches[number]
    outer, graph.steps = graph.steps, []
    made = write(graph, inner.jaxpr, [graph.constant(const) for const in inner.consts], inputs[1:])
    step.bodies = {number: Body(graph.steps, "")}
    graph.steps = outer
    return made


def _chosen(
    graph: Graph, which: str, branches: Sequence[Any], inputs: Sequence[str], first: int = 0
) -> tuple[list[str], dict[int, Body]]:
    """The results of the branch with that number, counted from `first`, and all branches, which are planned; a number
    beyond either end chooses the branch at that end."""
    if len(branches) == 1:
        inner = branches[0]
        made = write(graph, inner.jaxpr, [graph.constant(const) for const in inner.consts], inputs)
        return made, {first: Body(graph.steps, "", gives=made)}
    sides, inside, avals = [], [], branches[0].out_avals
    for rest, number in ((branches[:1], first), (branches[1:], first + 1)):
        body = graph.body()
        made, found = _chosen(body, which, rest, inputs, number)
        results = _results(body, made, avals)
        sides.append(helper.make_graph(body.nodes, "branch", [], results, initializer=body.constants))
        inside.append(found)
    is_first = graph.add("LessOrEqual", [which, graph.constant(np.asarray(first, dtype=np.int32))])
    chosen = graph.add("If", [is_first], results=len(results), then_branch=sides[0], else_branch=sides[1])
    bodies = {
        number: replace(body, within=f"{graph.nodes[-1].name}/{side}{body.within and '/'}{body.within}")
        for side, found in zip(("then_branch", "else_branch"), inside, strict=True)
        for number, body in found.items()
    }
    return joined(graph, [chosen] if isinstance(chosen, str) else list(chosen), avals), bodies


_ONE_TURN = "how often a while loop turns depends on data: one turn of it is planned"


def _one_turn(graph: Graph, equation: Any, inputs: list[str], step: Step) -> list[str]:
    """A `Loop` of one iteration, after which its condition is computed; the number of iterations is not known."""
    warn(_ONE_TURN)
    inner, condition, of_condition = (equation.params[name] for name in ("body_jaxpr", "cond_jaxpr", "cond_nconsts"))
    avals, fixed = inner.out_avals, len(inputs) - len(equation.outvars)
    body = graph.body()
    taken = [value_info(body.name("in"), aval) for aval in real_avals(avals)]
    arguments = joined(graph, [each.name for each in taken], avals)
    consts = [graph.constant(const) for const in inner.consts]
    results = write(body, inner.jaxpr, consts, [*inputs[of_condition:fixed], *arguments])
    steps, body.steps = body.steps, []
    consts = [graph.constant(const) for const in condition.consts]
    goes_on = write(body, condition.jaxpr, consts, [*inputs[:of_condition], *results])
    made = [*_results(body, goes_on, condition.out_avals), *_results(body, results, avals)]
    gives = joined(graph, [each.name for each in made[1:]], avals)
    begins = [
        helper.make_tensor_value_info(body.name("turn"), Graph.INT64, []),
        helper.make_tensor_value_info(body.name("begins"), onnx_type(np.bool_), []),
    ]
    nodes = helper.make_graph(body.nodes, "body", [*begins, *taken], made, initializer=body.constants)
    given_to = [graph.ints0(1), "", *all_parts(graph, inputs[fixed:], avals)]
    found = graph.add("Loop", given_to, results=len(taken), body=nodes)
    name = graph.nodes[-1].name
    step.bodies = {0: Body(steps, name, arguments, gives), 1: Body(body.steps, name)}
    return joined(graph, [found] if len(taken) == 1 else list(found), avals)


_COMPOSED: Mapping[str, Callable[[Graph, Any, list[str], Step], list[str]]] = {
    "scan": _scan,
    "cond": _branch,
    "while": _one_turn,
    "custom_linear_solve": _solved,
}
"""Equations with jaxprs of their own that are no plain calls, by the name of the primitive."""
