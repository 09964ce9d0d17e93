"""`shardplan.jax.parallelize`: a function with sharding constraints on every value that the plan knows.

The function's jaxpr is run equation by equation. The inputs and results of equations have the names that planning gave
them, so each value is constrained to the layouts in which the plan makes, keeps and reads it. Functions with custom
derivatives, blocks under `jax.checkpoint`, loops and branches stay what they are.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
from jax._src.source_info_util import Transform
from jax.api_util import debug_info
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, jaxpr_as_fun
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from shardplan.errors import ShardplanError, error
from shardplan.jax.device_mesh import check_automatic
from shardplan.jax.partition_specs import partition_spec
from shardplan.jax.planning.arguments import in_order, inputs_of, mismatches, weights_of
from shardplan.jax.planning.draws import is_draw
from shardplan.jax.planning.gathers import by_batch
from shardplan.jax.planning.graph import Body, Graph, Step
from shardplan.jax.planning.jaxprs import CALLS, REMATS, called, operands_of_scan, traced
from shardplan.jax.planning.plan import written
from shardplan.jax.planning.rows import by_rows
from shardplan.jax.planning.strides import without_strides
from shardplan.jax.sharding_constraints import constrain_permuted
from shardplan.jax.value_layouts import is_partial, values_of
from shardplan.plan.orientation import graph_layout
from shardplan.plan.types import Plan


def parallelize(fn: Callable[..., Any], plan: Plan, mesh: Mesh) -> Callable[..., Any]:
    """`fn(params, *batch)`, constrained as `plan` says; `plan` is the result of `shardplan.jax.plan` for `fn`. The
    arguments must have the planned shapes and dtypes; the derivatives are those of `fn`.

    >>> step = jax.jit(jax.value_and_grad(shardplan.jax.parallelize(loss, plan, mesh)))

    Raises `ShardplanError`: `wrong-mesh`, `explicit-mesh`, and when it is called `missing-parameter`, `missing-input`,
    `wrong-shape` and `wrong-dtype` for other arguments than planned, `stale-plan` where the plan is not one of `fn`.
    """
    check_automatic(plan, mesh)

    @functools.wraps(fn)
    def constrained(*given: Any, **named: Any) -> Any:
        params, *batch = in_order(fn, given, named)
        weights = weights_of(params)
        inputs = inputs_of(fn, tuple(batch), weights)
        if faults := [*mismatches(plan, "parameter", weights), *mismatches(plan, "input", inputs)]:
            raise ShardplanError(*faults)
        closed, shape = traced(fn, params, *batch)
        arguments = [*weights, *inputs]
        graph = Graph(taken=frozenset(arguments))
        written(graph, closed, weights, inputs)
        layouts = _Layouts(plan, mesh, *_known(plan), frozenset(graph.drawn), graph.counting)
        _check_made_for(plan, graph, arguments)
        values = layouts.results(arguments, jax.tree.leaves((params, *batch)))
        results = _run(layouts, closed.jaxpr, closed.consts, values, graph.steps)
        return jax.tree.unflatten(jax.tree.structure(shape), results)

    return constrained


@dataclass(frozen=True)
class _Layouts:
    """The plan, the names of its tensors, and the pairs (tensor, reading operator). `drawn`: random numbers, which are
    not constrained: every device draws those that its readers need. `counting`: as of `Graph`. `within`: the prefix of
    names in a body of a loop or a choice."""

    plan: Plan
    mesh: Mesh
    tensors: frozenset[str]
    reads: frozenset[tuple[str, str]]
    drawn: frozenset[str]
    counting: Mapping[str, Mapping[int, int]]
    within: str = ""

    def inside(self, body: Body) -> _Layouts:
        """The same in a body."""
        return replace(self, within=f"{self.within}{body.within}{body.within and '/'}")

    def operands(self, step: Step, values: Sequence[Any]) -> list[Any]:
        """The inputs of a step, constrained as the plan's operators read them."""
        found = []
        for name, value in zip(step.reads, values, strict=True):
            readers = (f"{self.within}{node}" for node in step.nodes)
            reader = next((each for each in readers if (self._called(name), each) in self.reads), "")
            read = self._constrained(name, value, reader) if reader else value
            found.append(self._as_inside(step, name, read))
        return found

    def entering(self, names: Sequence[str], values: Sequence[Any], body: Body) -> list[Any]:
        """The values that a loop begins with, constrained as its body takes them."""
        readers = (f"{self.within}{body.within}/Enter:{name}" for name in body.takes)
        return [
            self._constrained(name, value, reader) if (self._called(name), reader) in self.reads else value
            for name, value, reader in zip(names, values, readers, strict=True)
        ]

    def results(self, names: Sequence[str], values: Sequence[Any]) -> list[Any]:
        """Values, constrained as the plan keeps them."""
        return [self._constrained(name, value) for name, value in zip(names, values, strict=True)]

    def results_of(self, step: Step, values: Sequence[Any]) -> list[Any]:
        """The results of a step, constrained as the plan keeps them."""
        inside = [self._as_inside(step, name, value) for name, value in zip(step.makes, values, strict=True)]
        return self.results(step.makes, inside)

    def made(self, step: Step, aval: Any) -> PartitionSpec | None:
        """How the first result of a step is split where it is made; None where nothing says so."""
        return self._spec(*step.permuted.get(step.makes[0], (step.makes[0], ())), aval.shape)

    def chosen(self, names: Sequence[str], values: Sequence[Any]) -> list[Any]:
        """The results of a branch, constrained as the choice makes them: XLA refuses branches that differ."""
        specs = [self._spec(name, (), value.shape) for name, value in zip(names, values, strict=True)]
        return [self._alike(value, spec) for value, spec in zip(values, specs, strict=True)]

    def choosing(self, values: Sequence[Any]) -> list[Any]:
        """The operands of a branch, which reads them as it likes: their gradients, results of the branches of another
        choice, leave all branches alike."""
        return [self._alike(value, None) for value in values]

    def _alike(self, value: Any, spec: PartitionSpec | None) -> Any:
        if not value.ndim:
            return value
        spec = PartitionSpec(*[PartitionSpec.UNCONSTRAINED] * value.ndim) if spec is None else spec
        return jax.lax.with_sharding_constraint(value, NamedSharding(self.mesh, spec))

    def _spec(self, name: str, perm: tuple[int, ...], shape: Sequence[int]) -> PartitionSpec | None:
        """How an array of the value `name`, permuted, is split where it is made; None where nothing says so."""
        _, layout = values_of(self.plan).made.get(self._called(name), (None, None))
        if layout is None or is_partial(layout):
            return None
        try:
            return partition_spec(graph_layout(layout, perm), self.plan.mesh, tuple((size,) for size in shape), name)
        except ShardplanError:  # segments
            return None

    def _as_inside(self, step: Step, name: str, value: Any) -> Any:
        """An operand or a result of a step, constrained as the value inside of which it is a permutation: the plan may
        move that one."""
        if name not in step.permuted:
            return value
        inside, perm = step.permuted[name]
        return self._constrained(inside, value, perm=perm)

    def _called(self, name: str) -> str:
        return f"{self.within}{name}" if f"{self.within}{name}" in self.tensors else name

    def _constrained(self, name: str, value: Any, reader: str = "", perm: tuple[int, ...] = ()) -> Any:
        called_so = self._called(name)
        if called_so not in self.tensors or name in self.drawn or not getattr(value, "ndim", 0):
            return value
        stored = values_of(self.plan).tensors[called_so].perm  # a weight that is transposed is the weight in a plan
        if stored:
            perm = tuple(stored[dim] for dim in perm or range(len(stored)))
        try:
            return constrain_permuted(self.plan, self.mesh, called_so, value, reader=reader, perm=perm)
        except ShardplanError:  # segments, or partial sums for several readers: the next values tell XLA
            return value


def _known(plan: Plan) -> tuple[frozenset[str], frozenset[tuple[str, str]]]:
    names = frozenset(tensor.name for tensor in plan.tensors)
    return names, frozenset((name, operator.name) for operator in plan.operators for name in operator.inputs)


def _check_made_for(plan: Plan, graph: Graph, arguments: Sequence[str]) -> None:
    """Refuse a function that does not have the plan's operators."""
    names = {node.name for node in graph.nodes} | set(arguments)
    strange = [one.name for one in plan.operators if one.name.split("/Enter:")[0].split("/")[0] not in _firsts(names)]
    if strange:
        summary = f"the plan was made of another function: it has no '{strange[0]}'"
        raise ShardplanError(error("stale-plan", summary, hint="plan again: shardplan.jax.plan(fn, params, batch)"))


def _firsts(names: set[str]) -> set[str]:
    return {name.split("/")[0] for name in names}


def _run(
    layouts: _Layouts, jaxpr: Any, consts: Sequence[Any], values: Sequence[Any], steps: Sequence[Step]
) -> list[Any]:
    """The results of a jaxpr, its values constrained."""
    known: dict[Any, Any] = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *values), strict=True))
    for equation, step in zip(jaxpr.eqns, steps, strict=True):
        given = [each.val if isinstance(each, Literal) else known[each] for each in equation.invars]
        made = _evaluated(layouts, equation, given, step)
        known.update(zip(equation.outvars, made, strict=True))
    return [each.val if isinstance(each, Literal) else known[each] for each in jaxpr.outvars]


def _evaluated(layouts: _Layouts, equation: Any, given: list[Any], step: Step) -> list[Any]:
    name = equation.primitive.name
    if name in _WITH_BODIES and not equation.params.get("branches_platforms"):
        return _WITH_BODIES[name](layouts, equation, given, step)
    if name in CALLS | REMATS and not is_draw(equation):
        jaxpr, consts = called(equation)
        if name in CALLS:
            return _run(layouts, jaxpr, consts, given, step.inner)
        settings = {key: equation.params[key] for key in ("policy", "prevent_cse") if key in equation.params}
        again = jax.checkpoint(lambda *values: _run(layouts, jaxpr, consts, values, step.inner), **settings)
        return list(again(*given))
    return layouts.results_of(step, _by_rows(layouts, equation, layouts.operands(step, given), step))


def _by_rows(layouts: _Layouts, equation: Any, given: list[Any], step: Step) -> list[Any]:
    """The results of one equation, by each device for its own rows where XLA would gather the operands."""
    if step.makes and step.makes[0] in layouts.counting:
        return [by_batch(equation, layouts.counting[step.makes[0]], *given)]
    if equation.primitive.name == "slice" and any(stride > 1 for stride in equation.params["strides"] or ()):
        return [without_strides(given[0], **equation.params)]
    spec = layouts.made(step, equation.outvars[0].aval) if step.makes else None
    run = None if spec is None else by_rows(layouts.mesh, equation, spec)
    if run is None:
        return _alone(equation, given)
    return list(jax.tree.leaves(run(*given)))


def _alone(equation: Any, given: Sequence[Any]) -> list[Any]:
    """The results of one equation. Where it came from a gradient inside of the function (`transpose(jvp())`), it keeps
    no sign of that: what is left of such signs in a compiled step are the derivatives of the function."""
    stack = equation.source_info.name_stack
    scopes = tuple(each for each in stack.stack if not isinstance(each, Transform))
    equation = equation.replace(source_info=equation.source_info.replace(name_stack=replace(stack, stack=scopes)))
    values = {each: value for each, value in zip(equation.invars, given, strict=True) if not isinstance(each, Literal)}
    told = debug_info("shardplan.jax.parallelize", lambda *each: each, tuple(values.values()), {})
    told = told._replace(result_paths=tuple("" for _ in equation.outvars))
    alone = Jaxpr((), list(values), equation.outvars, [equation], equation.effects, debug_info=told)
    return list(jaxpr_as_fun(ClosedJaxpr(alone, ()))(*values.values()))


def _scanned(layouts: _Layouts, equation: Any, given: list[Any], step: Step) -> list[Any]:
    settings, inner = equation.params, step.bodies[0]
    fixed, carried = operands_of_scan(equation)
    begins = layouts.entering(step.reads[fixed : fixed + carried], given[fixed : fixed + carried], inner)

    def body(carry: Any, entries: Any) -> Any:
        made = _turned(layouts, settings["jaxpr"], given[:fixed], carry, inner, entries)
        return made[:carried], made[carried:]

    last, stacked = jax.lax.scan(
        body, begins, given[fixed + carried :], length=settings["length"],
        reverse=settings["reverse"], unroll=settings["unroll"],
    )  # fmt: skip
    return layouts.results(step.makes, [*last, *stacked])


def _looped(layouts: _Layouts, equation: Any, given: list[Any], step: Step) -> list[Any]:
    settings, inner = equation.params, step.bodies[0]
    condition, of_condition, fixed = settings["cond_jaxpr"], settings["cond_nconsts"], len(given) - len(step.makes)

    def goes_on(carry: Any) -> Any:
        values = [*given[:of_condition], *carry]
        return _run(layouts.inside(inner), condition.jaxpr, condition.consts, values, step.bodies[1].steps)[0]

    def body(carry: Any) -> Any:
        return _turned(layouts, settings["body_jaxpr"], given[of_condition:fixed], carry, inner)

    begins = layouts.entering(step.reads[fixed:], given[fixed:], inner)
    return layouts.results(step.makes, jax.lax.while_loop(goes_on, body, begins))


def _turned(
    layouts: _Layouts, closed: Any, fixed: Sequence[Any], carry: Sequence[Any], body: Body, entries: Sequence[Any] = ()
) -> list[Any]:
    """The results of an iteration. What it carries is constrained to one layout, where it begins and where it ends."""
    inside = layouts.inside(body)
    values = [*fixed, *inside.results(body.takes, carry), *entries]
    made = _run(inside, closed.jaxpr, closed.consts, values, body.steps)
    return [*inside.results(body.gives, made[: len(carry)]), *made[len(carry) :]]


def _chosen(layouts: _Layouts, equation: Any, given: list[Any], step: Step) -> list[Any]:
    def branch(number: int) -> Callable[..., Any]:
        body, closed = step.bodies[number], equation.params["branches"][number]
        inside = layouts.inside(body)
        return lambda *values: layouts.chosen(
            step.makes, _run(inside, closed.jaxpr, closed.consts, layouts.choosing(values), body.steps)
        )

    branches = [branch(number) for number in sorted(step.bodies)]  # one where its number is known
    made = branches[0](*given[1:]) if len(branches) == 1 else jax.lax.switch(given[0], branches, *given[1:])
    return layouts.results(step.makes, made)


_WITH_BODIES: Mapping[str, Callable[[_Layouts, Any, list[Any], Step], list[Any]]] = {
    "scan": _scanned,
    "while": _looped,
    "cond": _chosen,
}
"""Equations with bodies in which values are constrained, by the name of the primitive."""
