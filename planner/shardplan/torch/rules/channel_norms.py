"""Normalisations of channels (batch, group, instance). Statistics over a split dim combine all parts."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.nn import functional

from shardplan.torch.propagation.engine import Engine, Op
from shardplan.torch.propagation.plan_graph import Key
from shardplan.torch.propagation.signatures import CONSTANT
from shardplan.torch.propagation.values import Call, Dims, Site, Value
from shardplan.torch.rules.elementwise import as_value, elementwise
from shardplan.torch.rules.fallback import replicated
from shardplan.torch.rules.norms import is_split, known_as, mean_over, unknown
from shardplan.torch.rules.views import reshape

_RUNNING = ("running_mean", "running_var")
_AFFINE = ("weight", "bias")
_FUNCTIONAL = ("input", *_RUNNING, *_AFFINE, "training", "momentum", "eps")
_ATEN = ("input", *_AFFINE, *_RUNNING, "training", "momentum", "eps")
_GROUPS = ("input", "num_groups", *_AFFINE, "eps")


def batch_norm(engine: Engine, op: Op) -> Value:
    """`batch_norm`, by given statistics or by those of the whole batch, whose running averages are written."""
    given = _given(op, _FUNCTIONAL if op.func is functional.batch_norm else _ATEN)
    made, _, averages = _batch_norm(engine, given)
    for name, average in averages.items():
        engine.write(given[name], average)
    return made


def batch_norm_of_graphs(engine: Engine, op: Op) -> tuple[Value, ...]:
    """What graphs that change nothing in place have for it: statistics and running averages are further results."""
    given = _given(op, _ATEN)
    made, statistics, averages = _batch_norm(engine, given)
    mean, variance = statistics or tuple(as_value(engine, given[name]) for name in _RUNNING)
    spread = elementwise(engine, Op("add", torch.add, [variance, float(given.get("eps", 1e-5))]))
    running = (averages.get(name, as_value(engine, given[name])) for name in _RUNNING)
    return (made, mean, elementwise(engine, Op("rsqrt", torch.rsqrt, [spread])), *running)


def _batch_norm(engine: Engine, given: dict[str, Any]) -> tuple[Value, tuple[Value, Value] | None, dict[str, Value]]:
    """The result; mean and variance of the batch, if it goes by them; and what its running averages become."""
    named = {name: as_value(engine, given[name]) for name in _ATEN[:5] if given.get(name) is not None}
    shape = named["input"].shape
    key = Key(engine.graph.signatures.nonlinear([value.key.signature for value in named.values()]), shape)
    read = {name: engine.read(value, [key]) for name, value in named.items()}
    epsilon = float(given.get("eps", 1e-5))
    if not given.get("training") and _RUNNING[0] in read:
        return _by_given_statistics(engine, read, key, epsilon), None, {}
    apart = [dim for dim in range(len(shape)) if dim != 1]
    parts = _from_parts if is_split(read["input"], apart) else _by_kernel
    made, mean, variance = parts(engine, read, key, epsilon)
    count = math.prod(shape) // shape[1]
    unbiased = elementwise(engine, Op("mul", torch.mul, [variance, count / max(1, count - 1)]))
    share = float(given.get("momentum", 0.1))
    averages = {
        name: _average(engine, unknown(read[name]), statistic, share)
        for name, statistic in zip(_RUNNING, (mean, unbiased), strict=True)
        if name in read and given.get("training")
    }
    return made, (mean, variance), averages


def _given(op: Op, names: tuple[str, ...]) -> dict[str, Any]:
    return {**dict(zip(names, op.args, strict=False)), **op.kwargs}


def _average(engine: Engine, running: Value, now: Value, share: float) -> Value:
    old = elementwise(engine, Op("mul", torch.mul, [running, 1 - share]))
    return elementwise(engine, Op("add", torch.add, [old, elementwise(engine, Op("mul", torch.mul, [now, share]))]))


def _by_given_statistics(engine: Engine, read: dict[str, Value], key: Key, epsilon: float) -> Value:
    """A function of corresponding elements."""

    def run(locals_: list[Any], site: Site) -> Any:
        del site
        found = dict(zip(read, locals_, strict=True))
        return functional.batch_norm(**found, training=False, eps=epsilon)

    return engine.run(_of_channels(read, [key], run))[0]


def _of_channels(read: dict[str, Value], keys: list[Key], run: Any) -> Call:
    """A call of a value and of tensors of its channels; its results are the value and tensors of its channels."""
    shape = read["input"].shape
    whole: Dims = tuple((f"x{dim}",) for dim in range(len(shape)))
    dims: list[Dims] = [whole, *[(("x1",),)] * (len(read) - 1)]
    results: list[Dims] = [whole, *[(("x1",),)] * (len(keys) - 1)]
    shapes = [shape, *[(shape[1],)] * (len(keys) - 1)]
    sizes = {f"x{dim}": size for dim, size in enumerate(shape)}
    return Call(list(read.values()), dims, results, shapes, keys, sizes, run, ready=True)


def _by_kernel(engine: Engine, read: dict[str, Value], key: Key, epsilon: float) -> tuple[Value, Value, Value]:
    """By torch's kernel, where every process has whole channels: the result, the mean and the biased variance."""
    used = {name: value for name, value in read.items() if name not in _RUNNING}
    rank = read["input"].rank

    def run(locals_: list[Any], site: Site) -> Any:
        del site
        found = dict(zip(used, locals_, strict=True))
        dims = [dim for dim in range(rank) if dim != 1]
        variance, mean = torch.var_mean(found["input"].detach(), dims, correction=0)
        rest = {name: found.get(name) for name in _AFFINE}
        made = functional.batch_norm(found["input"], None, None, **rest, training=True, momentum=0.0, eps=epsilon)
        return made, mean, variance

    statistic = Key(CONSTANT, (read["input"].shape[1],))
    call = _of_channels(used, [key, statistic, statistic], run)
    call.whole = frozenset(f"x{dim}" for dim in range(rank) if dim != 1)
    made, mean, variance = engine.run(call)
    return made, mean, variance


def _from_parts(engine: Engine, read: dict[str, Value], key: Key, epsilon: float) -> tuple[Value, Value, Value]:
    """The same, where the batch or the space is split."""
    value = unknown(read["input"])
    dims = tuple(dim for dim in range(value.rank) if dim != 1)
    made, mean, variance = _normalised(engine, value, dims, epsilon)
    made = _scaled(engine, made, read)
    channels = (value.shape[1],)
    statistics = [
        reshape(engine, Op("reshape", torch.reshape, [_detached(engine, each), channels])) for each in (mean, variance)
    ]
    return known_as(engine, made, key), statistics[0], statistics[1]


def _normalised(engine: Engine, value: Value, dims: tuple[int, ...], epsilon: float) -> tuple[Value, Value, Value]:
    """A value less its mean, by its deviation; the mean and the variance. All over `dims`, which stay."""
    mean = mean_over(engine, value, dims)
    centred = elementwise(engine, Op("sub", torch.sub, [value, mean]))
    variance = mean_over(engine, elementwise(engine, Op("square", torch.square, [centred])), dims)
    scale = elementwise(engine, Op("rsqrt", lambda local: torch.rsqrt(local + epsilon), [variance]))
    return elementwise(engine, Op("mul", torch.mul, [centred, scale])), mean, variance


def _scaled(engine: Engine, value: Value, read: dict[str, Value]) -> Value:
    """Times the weight and plus the bias of each channel, where there are any."""
    shape = (1, value.shape[1], *[1] * (value.rank - 2))
    for name, action in (("weight", torch.mul), ("bias", torch.add)):
        if name in read:
            other = reshape(engine, Op("reshape", torch.reshape, [unknown(read[name]), shape]))
            value = elementwise(engine, Op(action.__name__, action, [value, other]))
    return value


def _detached(engine: Engine, value: Value) -> Value:
    return elementwise(engine, Op("detach", torch.detach, [value]))


def group_norm(engine: Engine, op: Op) -> Value:
    """`group_norm`: groups of channels, each on its own; in the steps of the plan, where it has it in steps."""
    given = _given(op, _GROUPS)
    groups = int(given["num_groups"])
    value = as_value(engine, given["input"])
    inner = (*value.shape[:1], groups, math.prod(value.shape[1:]) // groups)
    if value.shape[1] == groups or not engine.knows(_inner_key(engine, value, inner)):
        return _groups(engine, given, groups)
    apart = reshape(engine, Op("reshape", torch.reshape, [value, inner]))
    made = _groups(engine, {"input": apart, "eps": given.get("eps", 1e-5)}, groups)
    made = reshape(engine, Op("reshape", torch.reshape, [made, value.shape]))
    for name, action in zip(_AFFINE, (torch.mul, torch.add), strict=True):
        if given.get(name) is not None:
            shape = (value.shape[1], *[1] * (value.rank - 2))
            other = reshape(engine, Op("reshape", torch.reshape, [as_value(engine, given[name]), shape]))
            made = elementwise(engine, Op(action.__name__, action, [made, other]))
    return made


def _inner_key(engine: Engine, value: Value, shape: tuple[int, ...]) -> Key:
    """What exporters make of the groups before their weight and bias: instances of `shape`, normalised."""
    return Key(engine.graph.signatures.nonlinear([value.key.signature]), shape)


def instance_norm(engine: Engine, op: Op) -> Any:
    """`instance_norm` by the statistics of each sample: groups of one channel."""
    names = _FUNCTIONAL if op.func is functional.instance_norm else _ATEN
    given = _given(op, tuple("use_input_stats" if name == "training" else name for name in names))
    if given.get(_RUNNING[0]) is not None:
        return replicated(engine, op)
    return _groups(engine, given, given["input"].shape[1])


def _groups(engine: Engine, given: dict[str, Any], groups: int) -> Value:
    named = {name: as_value(engine, given[name]) for name in ("input", *_AFFINE) if given.get(name) is not None}
    shape, epsilon = named["input"].shape, float(given.get("eps", 1e-5))
    key = Key(engine.graph.signatures.nonlinear([value.key.signature for value in named.values()]), shape)
    read = {name: engine.read(value, [key]) for name, value in named.items()}
    if is_split(read["input"], range(2, len(shape))) or any(_splits_groups(engine, v, groups) for v in read.values()):
        value = unknown(read["input"])
        apart = reshape(
            engine, Op("reshape", torch.reshape, [value, (shape[0], groups, shape[1] // groups, *shape[2:])])
        )
        made, _, _ = _normalised(engine, apart, tuple(range(2, apart.rank)), epsilon)
        made = reshape(engine, Op("reshape", torch.reshape, [made, shape]))
        return known_as(engine, _scaled(engine, made, read), key)

    def run(locals_: list[Any], site: Site) -> Any:
        found = dict(zip(read, locals_, strict=True))
        return functional.group_norm(num_groups=groups // site.ways("g"), **found, eps=epsilon)

    space = tuple((f"y{dim}",) for dim in range(len(shape) - 2))
    whole: Dims = (("n",), ("g", "k"), *space)
    sizes = {"n": shape[0], "g": groups, "k": shape[1] // groups}
    sizes |= {f"y{dim}": size for dim, size in enumerate(shape[2:])}
    call = Call(
        list(read.values()), [whole, *[(("g", "k"),)] * (len(read) - 1)], [whole], [shape], [key], sizes, run,
        frozenset(("k", *(names[0] for names in space))), ready=True,
    )  # fmt: skip
    return engine.run(call)[0]


def _splits_groups(engine: Engine, value: Value, groups: int) -> bool:
    """Whether a process has a part of the channels of a group."""
    channels = min(1, value.rank - 1)
    shards = [(axis, p) for axis, p in enumerate(value.layout.placements) if p.is_shard and p.dim == channels]
    return groups % engine.groups.mesh.ways([axis for axis, _ in shards]) > 0 or any(p.segments for _, p in shards)
