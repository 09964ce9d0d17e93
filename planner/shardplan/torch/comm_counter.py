"""Counts the collectives that a program issues and compares them with the plan's prediction.

Counting happens at the lowest level: every collective that torch issues to a process group, whoever requested it, with
the bytes of its tensors.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from shardplan.layout.collective import CollectiveKind
from shardplan.plan.types import Phase, Plan
from shardplan.runtime.predicted import Key, Total, sent_together, total
from shardplan.torch.applied_plan import applied_to
from shardplan.torch.pipelines.run import Pipeline
from shardplan.torch.process_groups import ProcessGroups

OTHER = ("other",)
"""The axes of a group that is none of the mesh's."""


@dataclass(frozen=True, slots=True)
class Sent:
    """One collective that was issued. `payload_bytes` as in `shardplan.layout.collective.Collective`."""

    phase: Phase
    kind: CollectiveKind
    axes: tuple[str, ...]
    payload_bytes: int
    wire_bytes: int


@dataclass
class Comms:
    """What was sent while the context was open, in order, and the plans' prediction of one step (in a pipeline, of the
    plans of this process's stages)."""

    plans: tuple[Plan, ...]
    sent: list[Sent] = field(default_factory=list)

    @property
    def actual(self) -> Mapping[Key, Total]:
        """Sums by phase, kind and axes."""
        sums: dict[Key, Total] = {}
        for item in self.sent:
            key = (item.phase, item.kind, item.axes)
            before = sums.get(key, Total())
            sums[key] = Total(
                before.count + 1, before.payload_bytes + item.payload_bytes, before.wire_bytes + item.wire_bytes
            )
        return dict(sorted(sums.items()))

    @property
    def predicted(self) -> Mapping[Key, Total]:
        """The sums of one step of the plan."""
        return total(row for plan in self.plans for row in sent_together(plan))

    @property
    def differences(self) -> Mapping[Key, tuple[Total, Total]]:
        """The differences: key -> (predicted, actual)."""
        predicted, actual = self.predicted, self.actual
        keys = sorted({*predicted, *actual})
        both = {key: (predicted.get(key, Total()), actual.get(key, Total())) for key in keys}
        return {key: pair for key, pair in both.items() if pair[0] != pair[1]}

    def wire_bytes(self, phase: Phase | None = None) -> int:
        """Bytes that this process has sent in bandwidth-optimal algorithms."""
        return sum(item.wire_bytes for item in self.sent if phase in {None, item.phase})

    def __str__(self) -> str:
        """A table of the plan's prediction and of what was sent."""
        predicted, actual = self.predicted, self.actual
        lines = [f"{'phase':9} {'collective':15} {'axes':18} {'plan':>6} {'bytes':>14} {'sent':>6} {'bytes':>14}"]
        for key in sorted({*predicted, *actual}):
            phase, kind, axes = key
            told, seen = predicted.get(key, Total()), actual.get(key, Total())
            line = f"{phase:9} {kind:15} {','.join(axes):18} {told.count:6} {told.wire_bytes:14,}"
            lines.append(f"{line} {seen.count:6} {seen.wire_bytes:14,}{'' if told == seen else '  differs'}")
        return "\n".join(lines)


@contextlib.contextmanager
def count_comms(model: nn.Module | Pipeline) -> Iterator[Comms]:
    """Counts everything that is sent inside of the context, except inter-stage send/receive, for a model that a plan
    has been applied to.

    Bytes are those of one device (see `shardplan.runtime.predicted`). Raises `ShardplanError` (`not-parallel`).
    """
    applied = [applied_to(module) for module in (model.modules if isinstance(model, Pipeline) else (model,))]
    found = Comms(tuple(each.sent_plan for each in applied))
    with _Counting(applied[0].groups, found.sent.append):
        yield found


class _Counting(TorchDispatchMode):  # type: ignore[misc]
    """Sees every operation that reaches a backend."""

    def __init__(self, groups: ProcessGroups, sink: Callable[[Sent], None]) -> None:
        super().__init__()
        self.groups, self.sink = groups, sink
        self.axes_of_ranks = {
            tuple(groups.first + rank for rank in ranks): axes for axes, ranks in _ranks_by_axes(groups).items()
        }

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(not issubclass(kind, Tensor) or (kind is not Tensor and hasattr(kind, "to_local")) for kind in types):
            return NotImplemented  # a DTensor: its operations come again on local tensors
        counted = _COUNTED.get(func._schema.name)  # noqa: SLF001 - there is no public name
        if counted is not None:
            self._count(counted, args)
        return func(*args, **(kwargs or {}))

    def _count(self, counted: tuple[CollectiveKind, int], args: Sequence[Any]) -> None:
        purpose = self.groups.purpose
        if purpose in {"p2p", "check"}:
            return
        kind, position = counted
        tensor = args[position][0] if isinstance(args[position], (list, tuple)) else args[position]
        payload = tensor.numel() * tensor.element_size()
        ranks = _ranks(args)
        axes = self.axes_of_ranks.get(ranks)
        if kind == "all_to_all" and _is_permute(args):
            kind = "permute"
        in_backward = torch._C._current_graph_task_id() != -1  # noqa: SLF001 - no other way
        phase: Phase = "backward" if in_backward or purpose == "backward" else "forward"
        phase = "update" if purpose == "update" else phase
        names = OTHER if axes is None else tuple(self.groups.mesh.names[axis] for axis in axes)
        ways = len(ranks)
        rounds = 2 if kind == "all_reduce" else 1
        wire = payload if kind == "permute" else -(-payload * rounds * (ways - 1) // ways)
        self.sink(Sent(phase, kind, names, payload, wire))


_COUNTED: Mapping[str, tuple[CollectiveKind, int]] = {
    "c10d::allreduce_": ("all_reduce", 0),
    "c10d::allreduce_coalesced_": ("all_reduce", 0),
    "c10d::_allgather_base_": ("all_gather", 0),
    "c10d::allgather_": ("all_gather", 0),
    "c10d::_reduce_scatter_base_": ("reduce_scatter", 1),
    "c10d::reduce_scatter_": ("reduce_scatter", 1),
    "c10d::alltoall_base_": ("all_to_all", 1),
    "_c10d_functional::all_reduce": ("all_reduce", 0),
    "_c10d_functional::all_gather_into_tensor": ("all_gather", 0),
    "_c10d_functional::reduce_scatter_tensor": ("reduce_scatter", 0),
    "_c10d_functional::all_to_all_single": ("all_to_all", 0),
}
"""Operation -> kind, and which argument is the payload (the gathered result, else what goes in)."""


def _ranks_by_axes(groups: ProcessGroups) -> dict[tuple[int, ...], tuple[int, ...]]:
    """Mesh axes -> ranks of this process's group, for every set of axes of size above 1."""
    found: dict[tuple[int, ...], tuple[int, ...]] = {}
    real = groups.mesh.real_axes
    for mask in range(1, 1 << len(real)):
        axes = tuple(axis for place, axis in enumerate(real) if mask >> place & 1)
        found[axes] = next(ranks for ranks in groups.mesh.groups(axes) if groups.rank in ranks)
    return found


def _ranks(args: Sequence[Any]) -> tuple[int, ...]:
    """Ranks of the group that a collective was issued to: boxed, or by its name."""
    for argument in args:
        if isinstance(argument, torch.ScriptObject):
            with contextlib.suppress(RuntimeError, TypeError):
                return tuple(sorted(dist.get_process_group_ranks(dist.ProcessGroup.unbox(argument))))
        if isinstance(argument, str) and argument not in {"sum", "avg", "max", "min", "product"}:
            group = dist.distributed_c10d._resolve_process_group(argument)  # noqa: SLF001 - no public way
            return tuple(sorted(dist.get_process_group_ranks(group)))
    return ()


def _is_permute(args: Sequence[Any]) -> bool:
    splits = [argument for argument in args if isinstance(argument, (list, tuple))]
    return bool(splits) and all(sum(size > 0 for size in sizes) == 1 for sizes in splits)
