"""The checkpoint tensor of each weight of a plan."""

from __future__ import annotations

from collections.abc import Iterable

from shardplan.errors import Diagnostic, ShardplanError, did_you_mean, error
from shardplan.loading.checkpoint import Checkpoint
from shardplan.loading.header import Entry
from shardplan.plan.orientation import checkpoint_shape
from shardplan.plan.types import TensorDecision


def sources_of(checkpoint: Checkpoint, parameters: Iterable[TensorDecision]) -> dict[str, Entry]:
    """Checkpoint name -> where its data is; tied weights may be there under any of their names.

    Raises `ShardplanError` with everything that is missing or of another shape: `missing-weight`, `wrong-weight-shape`.
    """
    found: dict[str, Entry] = {}
    faults: list[Diagnostic] = []
    for decision in {parameter.checkpoint: parameter for parameter in parameters}.values():
        names = (decision.checkpoint, *decision.aliases)
        entry = next((checkpoint.entries[name] for name in names if name in checkpoint.entries), None)
        shape = checkpoint_shape(decision.shape, decision.perm)
        if entry is None:
            hint = did_you_mean(decision.checkpoint, checkpoint.entries)
            summary = f"the checkpoint has no tensor '{decision.checkpoint}'"
            faults.append(error("missing-weight", summary, file=str(checkpoint.path), hint=hint))
        elif entry.shape != shape:
            summary = f"'{entry.name}' has shape {list(entry.shape)} in the checkpoint, the plan has {list(shape)}"
            faults.append(error("wrong-weight-shape", summary, file=str(entry.file)))
        else:
            found[decision.checkpoint] = entry
    if faults:
        raise ShardplanError(*faults)
    return found
