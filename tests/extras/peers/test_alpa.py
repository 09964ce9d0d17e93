"""Alpa's pure-solver table: the objectives of its MLP rows, with Alpa's prices on our graph and solver.

Source: alpa-projects/alpa, playground/auto_sharding_solver (tests, run with CBC); fp32, alpha 1, tolerance 0.1 %.
"""

import pytest
from peer_chain import mlp
from step_problems import serial_problem

from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.profile import load_profile
from shardplan.cost.named import parse_cost_model
from shardplan.extras.peers.restrictions import alpa_products
from shardplan.graph.build import build_cost_graph
from shardplan.graph.options import PlanOptions
from shardplan.graph.pricing import Pricing
from shardplan.planning.reduction import restrict
from shardplan.rules import model_rules
from shardplan.solve import solve

PICOSECONDS_PER_UNIT = 1e6


def priced(cluster, beta):
    """Alpa's prices with alpha 1 and `beta` for every axis."""
    return Pricing.named(parse_cost_model(f"alpa:alpha=1,beta={'x'.join(map(str, beta))}"), cluster, 4)


def objective(model, sizes, beta):
    """The optimum in Alpa's units."""
    mesh_text = "x".join(map(str, sizes))
    cluster = make_cluster(load_profile("generic"), mesh_text)
    pricing = priced(cluster, beta)
    built = build_cost_graph(model, model_rules(model), cluster, PlanOptions(optimizer="none"), pricing=pricing)
    problem = restrict(serial_problem(built), built, alpa_products(built))
    solution = solve(problem)
    assert solution.outcome == "optimal"
    return solution.cost / PICOSECONDS_PER_UNIT


@pytest.mark.parametrize("sizes", [(4, 1), (1, 4)])
@pytest.mark.parametrize(
    ("layers", "batch", "hidden", "published"),
    [(2, 1024, 128, 196614.02), (2, 128, 1024, 786437.0), (12, 1024, 128, 1179684.1), (12, 128, 1024, 8650767.0)],
)
def test_mlp_on_one_axis(sizes, layers, batch, hidden, published):
    """Large batch: data parallel, one all-reduce a weight. Large weights: column then row, one all-reduce a pair."""
    assert objective(mlp(layers, batch, hidden), sizes, (1.0, 1.0)) == pytest.approx(published, rel=1e-3)


@pytest.mark.parametrize(
    ("layers", "sizes", "published"),
    [
        (2, (4, 8), 26872.03),
        (2, (8, 4), 58330.03),
        (12, (4, 8), 172702.23),
        (12, (8, 4), 354900.22),
        (12, (4, 4), 316561.23),
        (24, (4, 4), 635089.47),
        (48, (4, 4), 1272145.94),
    ],
)
def test_mlp_on_two_axes(layers, sizes, published):
    """Data parallel on the slow axis, column and row on the fast one.

    The published mesh (3, 4) is left out: 3 divides none of these dims, and our shards are even.
    """
    assert objective(mlp(layers, 1024, 128), sizes, (1.0, 0.01)) == pytest.approx(published, rel=1e-3)


@pytest.mark.parametrize(("sizes", "published"), [((4, 1), 198156.05), ((1, 4), 198156.05)])
def test_mlp_with_bias(sizes, published):
    """Two more all-reduces, of the biases' gradients."""
    assert objective(mlp(2, 1024, 128, bias=True), sizes, (1.0, 1.0)) == pytest.approx(published, rel=1e-3)


def test_our_own_space_is_larger_than_alpas():
    """With two axes on one dim and gradients reduced in stages there are better plans than Alpa's best."""
    model, sizes = mlp(12, 1024, 128), (4, 4)
    cluster = make_cluster(load_profile("generic"), "4x4")
    pricing = priced(cluster, (1.0, 0.01))
    built = build_cost_graph(model, model_rules(model), cluster, PlanOptions(optimizer="none"), pricing=pricing)
    divided = {
        ("operator", operator.name): space.strategies.work == cluster.mesh.size
        for operator, space in zip(model.operators, built.operators, strict=True)
    }
    free = solve(restrict(serial_problem(built), built, divided))
    assert free.cost / PICOSECONDS_PER_UNIT < 0.99 * objective(model, sizes, (1.0, 0.01))
