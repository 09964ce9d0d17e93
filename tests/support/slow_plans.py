"""Plans whose communication takes about as long as their compute: a device and a network of small, round numbers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.profile import load_profile
from shardplan.cluster.types import Cluster, Coalesce
from shardplan.graph.options import PlanOptions
from shardplan.model.types import Model
from shardplan.plan.types import Plan
from shardplan.plan.views.timeline import parts_of, serial_schedule, step_schedule
from shardplan.planning import Planner
from shardplan.planning.recipes import recipes_for

GENERIC = Path(__file__).parents[2] / "cluster_profiles" / "generic.yaml"
_SLOWER = {
    "name: generic\n": "name: slow\n",
    "fp32: 50, tf32: 50,": "fp32: 0.08, tf32: 0.08,",
    "link_gbps: 100": "link_gbps: 4",
    "base_us: 10": "base_us: 0.5",
    "node_gbit: 640 ": "node_gbit: 64 ",
    "base_us: 20": "base_us: 1",
}


def slow_cluster(folder: Path, mesh: str = "2x2", bucket_bytes: float = 20_000) -> Cluster:
    """0.08 TFLOP/s per device; 4 GB/s and 0.5 us inside a machine, 1 GB/s and 1 us between machines; compute beside
    communication is as fast as alone."""
    text = GENERIC.read_text()
    for old, new in _SLOWER.items():
        assert old in text
        text = text.replace(old, new)
    path = folder / "slow.yaml"
    path.write_text(text + "overlap: {kappa: 1}\n")
    return replace(make_cluster(load_profile(str(path)), mesh), coalesce=Coalesce(bucket_bytes))


def slow_plan(model: Model, cluster: Cluster, recipe: str = "", **options: object) -> Plan:
    """The best plan of a recipe, or of all."""
    asked = PlanOptions(**options)
    planner = Planner(model, cluster, asked)
    return planner.plan(recipes_for(asked)[recipe] if recipe else None)


def serial_seconds(plan: Plan) -> float:
    """What the step takes when nothing runs beside anything else."""
    return serial_schedule(parts_of(plan)).seconds


def scheduled_seconds(plan: Plan) -> float:
    """What it takes in its schedule."""
    return step_schedule(plan).seconds
