"""The public cost graph: what it says is what plans cost, and what GraphML makes of it can be read back."""

import doctest
import io
import re
from pathlib import Path
from xml.etree import ElementTree as ET

import networkx as nx
import numpy as np
import onnx
import pytest
from small_models import proto_of

import shardplan
from shardplan.cli import main
from shardplan.layout.text import to_text
from shardplan.render.graphml import graphml, plan_graphml

ROOT = Path(__file__).resolve().parents[2]
MLP = """mlp (float[64,64] x) => (float[64,64] y) <float[64,256] up, float[256,64] down> {
  h = MatMul (x, up)
  a = Relu (h)
  y = MatMul (a, down)
}"""


@pytest.fixture
def mlp(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    onnx.save(proto_of(MLP), "mlp.onnx")
    return tmp_path


def chosen(graph, plan):
    """Number of the choice that `plan` makes at every node."""
    tensors = {tensor.name: tensor for tensor in plan.tensors}
    layouts = {
        "kept": lambda tensor: tensor.layout,
        "served": lambda tensor: tensor.served,
        "updated": lambda tensor: tensor.optimizer or tensor.layout,
    }
    operators = {operator.name: operator for operator in plan.operators}
    found = {}
    for node, about in graph.nodes(data=True):
        if about["kind"] == "operator":
            split = zip(operators[about["name"]].split, plan.mesh.names, strict=True)
            text = " ".join(f"{label}@{axis}" for label, axis in split if label != "-") or "-"
        else:
            text = to_text(layouts[about["kind"]](tensors[about["name"]]), plan.mesh)
        found[node] = about["choices"].index(text)
    return found


@pytest.mark.parametrize("shard_optimizer", [False, True])
@pytest.mark.parametrize("mesh", ["1x4", "2x2"])
def test_a_plan_costs_what_its_choices_and_their_edges_do(mlp, mesh, shard_optimizer):
    plan = shardplan.make_plan("mlp.onnx", mesh, shard_optimizer=shard_optimizer, gap=0.0, effort="quick")
    graph = shardplan.cost_graph("mlp.onnx", mesh, shard_optimizer=shard_optimizer)
    choice = chosen(graph, plan)
    nodes = sum(about["cost_s"][choice[node]] for node, about in graph.nodes(data=True))
    edges = sum(about["table_s"][choice[u], choice[v]] for u, v, about in graph.edges(data=True))
    spent_ns = plan.summary.compute_ns + plan.summary.communication_ns + plan.summary.hidden_ns
    assert 1e9 * (nodes + edges) == pytest.approx(spent_ns, abs=len(plan.operators) + len(plan.moves))


def test_attributes_are_as_documented(mlp):
    graph = shardplan.cost_graph("mlp.onnx", "2x2", shard_optimizer=True)
    assert graph.graph == {"model": "mlp", "mesh": "machine=2 x gpu=2", "cluster": "h100-dgx", "mode": "training"}
    assert nx.is_directed_acyclic_graph(graph)
    for node, about in graph.nodes(data=True):
        assert node == f"{about['kind']}:{about['name']}"
        size = len(about["choices"])
        assert len(set(about["choices"])) == size
        assert about["cost_s"].shape == about["memory_bytes"].shape == (size,)
        if about["kind"] == "operator":
            assert about["cost_s"] == pytest.approx(about["compute_s"] + about["communication_s"])
    for source, target, about in graph.edges(data=True):
        shape = len(graph.nodes[source]["choices"]), len(graph.nodes[target]["choices"])
        assert about["table_s"].shape == shape
        assert (about["table_s"] >= 0).all()
        assert f"kept:{about['tensor']}" in graph
    kinds = {(graph.nodes[u]["kind"], about["kind"], graph.nodes[v]["kind"]) for u, v, about in graph.edges(data=True)}
    assert kinds == {("kept", "read", "operator"), ("operator", "made", "kept"), ("kept", "updated", "updated")}
    up = graph.nodes["kept:up"]
    assert (up["role"], up["dtype"], up["shape"]) == ("parameter", "float", (64, 256))
    replicated, sharded = up["choices"].index("R"), up["choices"].index("S(0)@gpu")
    assert up["memory_bytes"][replicated] == 2 * up["memory_bytes"][sharded]
    assert graph.nodes["operator:" + next(iter(_operators(graph, "MatMul")))]["flops"] == 2 * 64 * 64 * 256


def _operators(graph, op_type):
    return [about["name"] for _, about in graph.nodes(data=True) if about.get("op_type") == op_type]


def test_what_is_wrong_is_said_at_once(mlp):
    with pytest.raises(shardplan.ShardplanError) as caught:
        shardplan.cost_graph("nowhere.onnx", "4y4", mode="inferense")
    assert {diagnostic.code for diagnostic in caught.value.diagnostics} >= {"bad-argument"}
    assert len(caught.value.diagnostics) == 3


def test_graphml_is_read_back(mlp):
    graph = shardplan.cost_graph("mlp.onnx", "2x2")
    text = graphml(graph)
    assert text == graphml(shardplan.cost_graph("mlp.onnx", "2x2"))
    read = nx.read_graphml(io.BytesIO(text.encode()), force_multigraph=True)
    assert list(read.nodes) == list(graph.nodes)
    assert sorted(read.edges()) == sorted((u, v) for u, v, _ in graph.edges)
    for node, about in graph.nodes(data=True):
        got = read.nodes[node]
        assert got["choices"] == len(about["choices"])
        assert got["cheapest"] == about["choices"][int(np.argmin(about["cost_s"]))]
        assert got["least_cost_s"] == about["cost_s"].min()
        assert got["most_memory_bytes"] == about["memory_bytes"].max()
    assert read.nodes["kept:up"]["shape"] == "64x256"
    ids = [edge.get("id") for edge in ET.fromstring(text).iter("{http://graphml.graphdrawing.org/xmlns}edge")]
    assert len(set(ids)) == len(ids)


def test_any_name_is_escaped():
    graph = nx.MultiDiGraph(model="a<b>&\"c'\x01\ud800")
    graph.add_node("operator:<x>\x00", kind="operator", name="<x>\x00", module="]]>&amp;", shape=(2, 3))
    graph.add_edge("operator:<x>\x00", "operator:<x>\x00", table_s=np.array([[np.inf, np.inf]]))
    read = nx.read_graphml(io.BytesIO(graphml(graph).encode()))
    assert read.graph["model"] == "a<b>&\"c'\\x01\\ud800"
    assert dict(read.nodes) == {
        "operator:<x>\\x00": {"kind": "operator", "name": "<x>\\x00", "module": "]]>&amp;", "shape": "2x3"}
    }
    assert [set(about) - {"id"} for _, _, about in read.edges(data=True)] == [set()]


def test_a_plan_as_graphml(mlp):
    plan = shardplan.make_plan("mlp.onnx", "2x2", pins=["up=[null, gpu]"], effort="quick")
    read = nx.read_graphml(io.BytesIO(plan_graphml(plan).encode()))
    assert read.graph["step_s"] == plan.summary.step_ns / 1e9
    assert set(read.nodes) <= set(shardplan.cost_graph("mlp.onnx", "2x2").nodes)
    assert read.nodes["kept:up"]["choice"] == "S(1)@gpu"
    moved = [about.get("moves_s", 0.0) for _, about in read.nodes(data=True)]
    moved += [about.get("moves_s", 0.0) for _, _, about in read.edges(data=True)]
    assert sum(moved) == pytest.approx(sum(move.time_ns for move in plan.moves) / 1e9)


def test_the_command_writes_both(mlp, capsys):
    assert main(["inspect", "mlp.onnx", "--mesh", "2x2", "--format", "graphml", "-o", "mlp.graphml"]) == 0
    assert Path("mlp.graphml").read_text(encoding="utf-8") == graphml(shardplan.cost_graph("mlp.onnx", "2x2"))
    capsys.readouterr()
    assert main(["inspect", "mlp.onnx", "-m", "2x2", "--format", "graphml"]) == 0
    assert capsys.readouterr().out == Path("mlp.graphml").read_text(encoding="utf-8")
    assert main(["inspect", "mlp.onnx", "--format", "graphml", "-o", "mlp.onnx"]) == 2
    assert "this file exists and is not a graph" in capsys.readouterr().err
    assert main(["inspect", "mlp.onnx", "-o", "x.graphml"]) == 2
    shardplan.save(shardplan.make_plan("mlp.onnx", "2x2", effort="quick"), "mlp.plan.json")
    capsys.readouterr()
    assert main(["show", "mlp.plan.json", "--format", "graphml"]) == 0
    assert capsys.readouterr().out == plan_graphml(shardplan.load("mlp.plan.json"))


def test_the_documented_questions(monkeypatch):
    """Every line of `docs/cost-graph.md` that has a result."""
    monkeypatch.chdir(ROOT)
    page = (ROOT / "docs" / "cost-graph.md").read_text(encoding="utf-8")
    session = "\n".join(re.findall(r"```pycon\n(.*?)```", page, re.DOTALL))
    examples = doctest.DocTestParser().get_doctest(session, {}, "cost-graph.md", None, 0)
    assert doctest.DocTestRunner().run(examples).failed == 0
