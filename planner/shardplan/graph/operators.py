"""Seconds and bytes of every strategy of an operator."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardplan.cluster.types import Cluster
from shardplan.cost.compute import GROUPED
from shardplan.cost.moves import Index, Seconds
from shardplan.cost.recipes import optimizer_seconds
from shardplan.graph.experts import RANK_OF_EXPERTS
from shardplan.graph.options import PlanOptions
from shardplan.graph.precision import Cast
from shardplan.graph.pricing import Pricing
from shardplan.graph.strategies import StrategySpace, best_of_equals
from shardplan.graph.tensors import TensorSpace
from shardplan.rules.types import Rule
from shardplan.schedule.terms import Priced, Segment, Term, priced
from shardplan.units import PS_PER_S

_CAST_FROM = 2.0
"""Bytes of an element before it is cast to a narrow type."""
KernelTraffic = tuple[tuple[int, ...], tuple[int, ...], bool]
"""Positions of the operands and of the results whose bytes the operator reads and writes; whether it launches a
kernel."""


@dataclass(frozen=True)
class Kernel:
    """One pass of an operator: `flops`, of all devices and microbatches; `passes` over its bytes; `product`: which of
    the forward product's m, n and k are the rows, the columns and the summed dim."""

    flops: float
    passes: int = 1
    product: tuple[str, str, str] = ("m", "n", "k")


@dataclass(frozen=True)
class OperatorSpace:
    """The strategies of operators of one kind with their prices.

    `priced`: its terms. `compute_s`: local work in seconds per step, of which `backward_s` after the forward pass.
    `inner_s`: collectives inside in seconds per step, by phase (forward, later) and mesh axis: (2, axes, choices).
    `forward_bytes`, `backward_bytes`: what one device holds while a microbatch's forward (backward) of it runs.
    """

    strategies: StrategySpace
    priced: Priced
    compute_s: Seconds
    backward_s: Seconds
    inner_s: Seconds
    forward_bytes: Index
    backward_bytes: Index

    def __len__(self) -> int:
        return len(self.strategies)


class OperatorPricer:
    """Makes operator spaces; operators that are equal in everything that matters share one."""

    def __init__(self, cluster: Cluster, pricing: Pricing, options: PlanOptions) -> None:
        self.cluster = cluster
        self.collectives = pricing.collectives
        self.moves = pricing.moves
        self.options = options
        self.compute = pricing.compute
        self._prices_optimizer = pricing.optimizer
        self._spaces: dict[tuple[object, ...], OperatorSpace] = {}
        self._optimizer: dict[tuple[int, str], tuple[Index, Seconds]] = {}
        """With the array itself: spaces come and go, and another one may get the number of one that is gone."""

    def space(
        self,
        rule: Rule,
        operands: Sequence[TensorSpace | None],
        results: Sequence[TensorSpace | None],
        *,
        traffic: KernelTraffic,
        dtype: str,
        forwards: int,
        iterations: int = 1,
        cast: Cast | None = None,
    ) -> OperatorSpace:
        """The space of an operator with these planned operands and results; `forwards`: 2 if it is recomputed.

        `iterations`: iterations of the loops around it. `cast`: what is cast to `dtype` first.
        """
        key = (
            id(rule),
            tuple(map(id, operands)),
            tuple(map(id, results)),
            traffic,
            dtype,
            forwards,
            iterations,
            cast,
        )
        if key not in self._spaces:
            self._spaces[key] = self._price(
                rule, operands, results, traffic, dtype, forwards, iterations=iterations, cast=cast
            )
        return self._spaces[key]

    def optimizer_seconds(self, kept: TensorSpace, dtype: str) -> Seconds:
        """Time of the optimizer step on a parameter, per kept layout."""
        key = (id(kept.forward), dtype)
        if key not in self._optimizer:
            elements = np.prod(kept.kind.shape, dtype=np.float64) / kept.space.tiles.prod(axis=1)[kept.forward]
            seconds = optimizer_seconds(self.options.optimizer, elements, self.cluster.device, dtype)
            self._optimizer[key] = kept.forward, seconds if self._prices_optimizer else np.zeros(len(elements))
        return self._optimizer[key][1]

    def _price(
        self,
        rule: Rule,
        operands: Sequence[TensorSpace | None],
        results: Sequence[TensorSpace | None],
        traffic: KernelTraffic,
        dtype: str,
        forwards: int,
        *,
        iterations: int,
        cast: Cast | None,
    ) -> OperatorSpace:
        strategies = StrategySpace(rule, operands, results, self.cluster.mesh)
        backward = any(space is not None and space.kind.has_gradient for space in results)
        micro = self.options.microbatches
        forward_s = micro * self._kernel(strategies, Kernel(rule.flops), traffic, dtype)
        if cast:
            forward_s = forward_s + self._cast(strategies, cast, "forward")
        compute_s = forwards * forward_s
        if backward and cast:
            compute_s = compute_s + self._cast(strategies, cast, "backward")
        if backward:
            for kernel in _backward_kernels(rule, operands):
                compute_s = compute_s + micro * self._kernel(strategies, kernel, traffic, dtype)
        inner = self._inner(strategies, forwards=forwards, backward=backward)
        keep = best_of_equals(strategies, compute_s, inner.sum(axis=(0, 1)))
        strategies.keep(keep)
        held = _held_bytes(strategies, rule, micro)
        inner = iterations * inner[:, :, keep]
        compute_s, later_s = (iterations * part[keep] for part in (compute_s, compute_s - forward_s))
        terms = self._terms((compute_s - later_s, later_s), inner)
        return OperatorSpace(strategies, terms, compute_s, later_s, inner, held, 2 * held)

    def _terms(self, compute_s: tuple[Seconds, Seconds], inner_s: Seconds) -> Priced:
        """Terms of one microbatch from seconds per step; both by phase: forward, later."""
        phases: tuple[Segment, Segment] = ("forward", "backward")
        scale = PS_PER_S / self.options.microbatches
        closed: NDArray[np.bool_] = np.asarray(np.isinf(inner_s).any(axis=(0, 1)))
        terms = {Term(phase, "compute"): np.rint(scale * each) for phase, each in zip(phases, compute_s, strict=True)}
        for phase, by_axis in zip(phases, np.where(closed, 0.0, inner_s), strict=True):
            for axis, each in enumerate(by_axis):
                term = Term(phase, "blocking", self.moves.levels_of((axis,)))
                terms[term] = terms.get(term, 0.0) + np.rint(scale * each)
        return priced(terms, closed)

    def _kernel(self, strategies: StrategySpace, kernel: Kernel, traffic: KernelTraffic, dtype: str) -> Seconds:
        """Seconds of one microbatch on the busiest device."""
        rule, micro = strategies.rule, self.options.microbatches
        moved = np.zeros(len(strategies))
        for positions, spaces, states in (
            (traffic[0], strategies.operands, strategies.reads),
            (traffic[1], strategies.results, strategies.makes),
        ):
            for position in positions:
                space, pair = spaces[position], states[position]
                if space is not None and pair is not None:
                    moved += kernel.passes * space.state_bytes[pair[0]]
        busiest = 1.0 if self.options.dealt_sequence else 2 - 1 / strategies.splits_of(rule.triangular)
        local_flops = busiest * kernel.flops / (strategies.work * micro)
        cut = micro if _rows_hold_batch(strategies) else 1
        roles = _roles(rule, kernel.product[2])
        local = {role: _local_size(strategies, factors, cut if role == "m" else 1) for role, factors in roles}
        if rule.cost == "attention" and self.cluster.device.attention and "n" in local:
            local["n"] = _seen(rule) * local["n"]
        launches = kernel.passes if traffic[2] or rule.cost != "pointwise" else 0
        sizes = [local.get(role) for role in kernel.product]
        alone = self.compute.seconds(rule.cost, dtype, local_flops, moved, *sizes, launches=launches)
        if self.cluster.device.gemm.grouped == 1.0 or not _is_grouped(strategies):
            return alone
        together = self.compute.seconds(GROUPED, dtype, local_flops, moved, *sizes, launches=launches)
        return np.where(_has_one_matrix(strategies), alone, together)

    def _cast(self, strategies: StrategySpace, cast: Cast, phase: Segment) -> Seconds:
        """Seconds per step of the casts for a product: activations and weights in forward, weights once per step, and
        the gradient of the result in backward."""
        micro, moved = self.options.microbatches, np.zeros(len(strategies))
        of_operands = [(strategies.operands[at], strategies.reads[at]) for at in cast.operands]
        of_results = zip(strategies.results, strategies.makes, strict=True)
        for space, pair in of_operands if phase == "forward" else of_results:
            if space is not None and pair is not None:
                times = 1 if space.kind.traffic == "weight" else micro
                moved += times * cast.bytes * space.state_bytes[pair[0]] / _CAST_FROM
        return self.compute.seconds("memory", "", moved, moved, launches=micro)

    def _inner(self, strategies: StrategySpace, *, forwards: int, backward: bool) -> Seconds:
        """Seconds per step of the collectives inside the operator that splitting a factor causes, by phase (forward,
        later) and mesh axis: shape (2, axes, strategies)."""
        micro, sizes = self.options.microbatches, self.cluster.mesh.shape
        seconds = np.zeros((2, len(sizes), len(strategies)))
        for number, choice in enumerate(strategies.axis_choices):
            for inner in choice.inner:
                if inner.phase == "backward" and not backward:
                    continue
                times = micro * inner.count * np.array([1.0, forwards - 1] if inner.phase == "forward" else [0.0, 1.0])
                for axis, size in enumerate(sizes):
                    rows = np.flatnonzero(strategies.choices[:, axis] == number)
                    payloads = inner.payload_bytes * size / (strategies.work[rows] * micro)
                    for row, payload in zip(rows.tolist(), payloads.tolist(), strict=True):
                        once = self.collectives.seconds(inner.kind, (axis,), payload)
                        seconds[:, axis, row] += times * once if np.isfinite(once) else np.inf
        return seconds


def _backward_kernels(rule: Rule, operands: Sequence[TensorSpace | None]) -> list[Kernel]:
    """The kernels of an operator's backward.

    The backward of C[m, n] = sum over k of A[m, k] B[k, n] is two products, each with as many operations as C: dA is m
    x k and sums over n, dB is k x n and sums over m; only the required ones are computed. Everything else, including
    attention with its fused products, takes twice the passes over its bytes.
    """
    wanted = [space is not None and space.kind.has_gradient for space in operands]
    if rule.gemm is None:
        return [Kernel(rule.backward_flops, passes=2)]
    if rule.cost == "attention":
        floats = max(1, sum(space is not None for space in operands))
        return [Kernel(rule.backward_flops * sum(wanted) / floats, passes=2)]
    products = (("m", "k", "n"), ("k", "n", "m"))
    made = [
        Kernel(rule.backward_flops / 2, product=product)
        for product, want in zip(products, wanted, strict=False)
        if want
    ]
    return made or [Kernel(0.0)]


def _roles(rule: Rule, summed: str) -> list[tuple[str, tuple[str, ...]]]:
    """The factors of m, n and k; what is `summed` takes in the iterations that the forward product is repeated for."""
    if rule.gemm is None:
        return []
    roles = (("m", rule.gemm.m), ("n", rule.gemm.n), ("k", rule.gemm.k))
    return [(role, (*rule.gemm.repeats, *factors) if role == summed == "m" else factors) for role, factors in roles]


def _seen(rule: Rule) -> float:
    """Of the keys of attention, the share that a query sees on average: what causal masks and windows leave."""
    assert rule.gemm is not None
    factors = (*rule.gemm.m, *rule.gemm.n, *rule.gemm.k, *rule.gemm.batch)
    products = 2 * 2 * math.prod(rule.sizes[factor] for factor in factors)
    return min(1.0, rule.flops / products)


def _rows_hold_batch(strategies: StrategySpace) -> bool:
    """Whether microbatches cut the rows of the matrix product: with a weight they do; products of two activations
    (inside attention) have the batch outside, and each of them is as large in a microbatch."""
    gemm = strategies.rule.gemm
    weights = [space.kind.traffic == "weight" for space in strategies.operands[:2] if space is not None]
    return gemm is None or not gemm.batch or any(weights)


def _is_grouped(strategies: StrategySpace) -> bool:
    """Whether it is a grouped matrix product with one matrix per expert."""
    operands = [space for space in strategies.operands[:2] if space is not None]
    return strategies.rule.cost == "gemm" and any(
        space.kind.traffic == "weight" and len(space.kind.shape) == RANK_OF_EXPERTS for space in operands
    )


def _has_one_matrix(strategies: StrategySpace) -> NDArray[np.bool_]:
    """Where a device has one expert, whose product is a plain one."""
    gemm = strategies.rule.gemm
    assert gemm is not None
    return _local_size(strategies, gemm.batch, 1) <= 1.0


def _local_size(strategies: StrategySpace, factors: tuple[str, ...], microbatches: int) -> Seconds:
    whole = float(np.prod([strategies.rule.sizes[factor] for factor in factors])) if factors else 1.0
    return np.maximum(whole / (strategies.splits_of(factors) * microbatches), 1.0)


def _held_bytes(strategies: StrategySpace, rule: Rule, microbatches: int) -> Index:
    """Operands as read, results as made, and workspace."""
    held = -(-rule.temporary_bytes // (strategies.work * microbatches))
    for spaces, states in ((strategies.operands, strategies.reads), (strategies.results, strategies.makes)):
        for space, pair in zip(spaces, states, strict=True):
            if space is not None and pair is not None:
                held = held + space.state_bytes[pair[0]]
    return held
