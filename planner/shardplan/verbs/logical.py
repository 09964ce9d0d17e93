"""`solve --mesh auto`: the best logical mesh over the devices asked for."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from shardplan.errors import InfeasibleError
from shardplan.verbs.session import Session, Verb, option

if TYPE_CHECKING:
    from shardplan.cluster.types import Cluster
    from shardplan.graph.options import PlanOptions
    from shardplan.model.types import Model
    from shardplan.stages.meshes import MeshTrial

AUTO = "auto"
_MOST_PROCESSES = 4

devices_option = option(
    "--devices",
    metavar="SIZES",
    help="With --mesh auto: the devices to lay a mesh over, such as 4x8.  [default: the profile's]",
)


def mesh_options(function: Verb) -> Verb:
    """Add `--devices`."""
    return devices_option(function)


def physical(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """`given` with the devices as the mesh, where that is left to us."""
    if given["mesh"] == AUTO:
        return {**given, "mesh": given["devices"]}
    if given["devices"] is not None:
        raise click.UsageError("--devices goes with --mesh auto; otherwise --mesh says which devices there are")
    return given


def search_meshes(session: Session, model: Model, cluster: Cluster, options: PlanOptions) -> tuple[MeshTrial, ...]:
    """What came of every logical mesh over the devices of `cluster`.

    Raises `InfeasibleError` when no plan fits on any of them.
    """
    from shardplan.cluster.build import profile_from_resolved  # noqa: PLC0415
    from shardplan.render.meshes import meshes_record  # noqa: PLC0415
    from shardplan.stages.meshes import best_of, logical_meshes, try_meshes  # noqa: PLC0415

    profile = profile_from_resolved(cluster.resolved)
    meshes = logical_meshes(profile)
    deep = max(len(text.split(",")) for text in meshes) > 2  # small ones are solved before a process has begun
    processes = min(os.cpu_count() or 1, _MOST_PROCESSES) if deep else 1
    trials = try_meshes(model, profile, options, meshes, processes=processes)
    if best_of(trials) is None:
        session.failure = {"plan": None, "meshes": meshes_record(trials)}
        raise InfeasibleError(*next(trial.diagnostics for trial in trials if trial.diagnostics))
    return trials
