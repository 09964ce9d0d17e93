"""`--to torchtitan`: the file is run against the classes that it imports, and what has no boundary to be written at."""

import inspect
import re
import sys
from dataclasses import dataclass, field, replace
from enum import Enum, StrEnum
from pathlib import Path
from types import ModuleType

import pytest
from example_plans import example_plan
from forced_plans import cluster_of
from tensor_parallel import LLAMA, planned, solved
from tiny_models import Sizes, megatron, tiny_gpt

from shardplan.constraints.parse import parse_constraints
from shardplan.export.titan import export_titan
from shardplan.export.titan_axes import titan_axes
from shardplan.export.tp_plan import constraints_from_tp_plan
from shardplan.layout.layout import Layout
from shardplan.layout.placement import RP, P, R, S
from shardplan.plan.file import read_plan
from shardplan.planning import PlanOptions, plan_model

ROOT = Path(__file__).parents[2]
SMALL_LLAMA = "transformer:llama3-8b,layers=2,vocab=4096"


class Axis(StrEnum):
    DP, CP, TP = "dp", "cp", "tp"


class Type(Enum):
    R, I, V, P = "R", "I", "V", "P"


@dataclass(frozen=True)
class Shard:
    dim: int


@dataclass(frozen=True)
class SpmdLayout:
    """torchtitan's, with what it checks: one axis for a dim, or V on all that shard and a partition spec."""

    axis_types: dict
    partition_spec: tuple | None = None

    def __post_init__(self):
        dims = [kind.dim for kind in self.axis_types.values() if isinstance(kind, Shard)]
        assert set(self.axis_types) == set(Axis)
        assert len(dims) == len(set(dims))
        assert not dims or self.partition_spec is None
        assert (Type.V in self.axis_types.values()) == (self.partition_spec is not None)

    def __repr__(self):
        written = {axis: f"S{t.dim}" if isinstance(t, Shard) else t.value for axis, t in self.axis_types.items()}
        if self.partition_spec is not None:
            entries = (entry if isinstance(entry, tuple) else (entry,) for entry in self.partition_spec)
            dims = {axis: dim for dim, entry in enumerate(entries) for axis in entry if axis}
            written |= {axis: f"S{dim}" for axis, dim in dims.items()}
        return " ".join(written[axis] for axis in Axis)


@dataclass(kw_only=True)
class LocalMapConfig:
    in_grad_placements: tuple | None


@dataclass(kw_only=True)
class ShardingConfig:
    state_shardings: dict = field(default_factory=dict)
    in_src_shardings: dict | None = None
    in_dst_shardings: dict | None = None
    out_src_shardings: SpmdLayout | tuple | None = None
    out_dst_shardings: SpmdLayout | None = None
    local_map: LocalMapConfig | None = None


class Layer:
    """As much of a module as the file looks at: parameters, buffers and the arguments of forward."""

    def __init__(self, *parameters, buffers=(), **children):
        self.own, self.buffers, self.children, self._sharding_config = parameters, buffers, children, None

    def forward(self, input):  # noqa: A002
        raise NotImplementedError

    def named_parameters(self, recurse):
        assert not recurse
        return [(name, None) for name in self.own]

    def named_buffers(self, recurse):
        assert not recurse
        return [(name, None) for name in self.buffers]

    def named_modules(self, prefix=""):
        yield prefix, self
        for name, child in self.children.items():
            yield from child.named_modules(f"{prefix}.{name}" if prefix else name)


@pytest.fixture
def run(monkeypatch):
    """The file as a module, imported beside stand-ins for torchtitan and spmd_types."""
    spmd, axes, sharding = (ModuleType(name) for name in ("spmd_types", "parallel_dims", "sharding"))
    spmd.__dict__.update(Type.__members__, S=Shard)
    axes.MeshAxisName = Axis
    sharding.__dict__.update(SpmdLayout=SpmdLayout, ShardingConfig=ShardingConfig, LocalMapConfig=LocalMapConfig)
    monkeypatch.setitem(sys.modules, "spmd_types", spmd)
    for name in ("torchtitan", "torchtitan.distributed", "torchtitan.protocols"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "torchtitan.distributed.parallel_dims", axes)
    monkeypatch.setitem(sys.modules, "torchtitan.protocols.sharding", sharding)

    def execute(text):
        module = ModuleType("shardings")
        exec(compile(text, "shardings.py", "exec"), module.__dict__)
        return module

    return execute


def texts(config):
    """(in source, in target, out source, out target) of a module with one input, as `DP CP TP`."""
    (source,), (target,) = config.in_src_shardings.values(), config.in_dst_shardings.values()
    return tuple(map(repr, (source, target, config.out_src_shardings, config.out_dst_shardings)))


def test_columns_and_rows(tmp_path, run):
    plan = planned(SMALL_LLAMA, tmp_path, LLAMA, "--mode", "inference")
    exported = export_titan(plan)
    assert exported.refused == ()
    assert "The parallelism that the plan is for: tensor_parallel_degree=4.\n" in exported.text
    config = run(exported.text).sharding_config
    column, row = config("model.layers.1.self_attn.q_proj"), config("model.layers.0.self_attn.o_proj")
    assert repr(column.state_shardings) == "{'weight': R R S0}"
    assert texts(column) == ("R R R", "R R R", "R R S2", "R R S2")
    assert repr(row.state_shardings) == "{'weight': R R S1}"
    assert texts(row) == ("R R S2", "R R S2", "R R P", "R R R")
    table = config("model.embed_tokens")
    assert repr(table.state_shardings) == "{'weight': R R S0}"
    assert table.local_map == LocalMapConfig(in_grad_placements=None)
    assert column.local_map is None
    assert config("model.layers.x.self_attn.q_proj") is None
    assert config("model.layers.0.self_attn.q_projector") is None


def test_gradients_are_said_in_training(tmp_path, run):
    """What a column reads is whole with a partial gradient; a row's result, and its gradient, are whole."""
    config = run(export_titan(planned(SMALL_LLAMA, tmp_path, LLAMA)).text).sharding_config
    column, row = config("model.layers.0.self_attn.q_proj"), config("model.layers.0.self_attn.o_proj")
    assert texts(column)[1] == "R R R"
    assert texts(row)[2:] == ("R R P", "R R I")
    assert repr(config("model.norm").state_shardings["weight"]) == "R R I"


def test_sequence_parallelism_is_said(tmp_path, run):
    """Sums are reduced to slices of the sequence behind a row; what a norm makes is gathered once for its readers."""
    constraints = constraints_from_tp_plan(LLAMA, "gpu").replace("forbid: [reduce_scatter, all_to_all]", "forbid: []")
    constraints = constraints.replace("operators:", 'operators:\n  "*layernorm": {gpu: x1}')
    kept_in_slices = ("model.layers.[01]", "*.o_proj", "*.down_proj", "*layernorm")
    sums = ", ".join(f'"{name}": [null, gpu, null]' for name in kept_in_slices)
    plan = solved(SMALL_LLAMA, tmp_path, f"{constraints}tensors: {{{sums}}}\n")
    config = run(export_titan(plan).text).sharding_config
    assert repr(config("model.layers.0.self_attn.o_proj").out_dst_shardings) == "R R S1"
    norm = config("model.layers.1.post_attention_layernorm")
    assert texts(norm) == ("R R S1", "R R S1", "R R S1", "R R R")
    assert repr(norm.state_shardings["weight"]) == "R R R"  # its gradient is a sum over slices of the sequence


def test_arguments_and_buffers(tmp_path, run):
    shardings = run(export_titan(planned(SMALL_LLAMA, tmp_path, LLAMA)).text)
    config = shardings.sharding_config("model.layers.0.mlp.up_proj", ["x_BLD", "scale"], ["table"])
    assert list(config.in_src_shardings) == list(config.in_dst_shardings) == ["x_BLD"]
    assert repr(config.state_shardings["table"]) == "R R R"
    with pytest.raises(ValueError, match=r"^model.norm: the plan has 1 inputs, forward takes \[\]$"):
        shardings.sharding_config("model.norm", [])


def test_a_model_gets_its_configs(run):
    """Every module with parameters or buffers; renamed where the model has other names than the plan."""
    text = export_titan(two_norms()).text
    model = Layer(top=Layer(ln=Layer("weight")), end=Layer("weight"), rope=Layer(buffers=["table"]))
    run(text).set_sharding_configs(model)
    assert list(model.children["end"]._sharding_config.in_src_shardings) == ["input"]
    assert repr(model.children["rope"]._sharding_config.state_shardings) == "{'table': R R R}"
    assert model.children["top"]._sharding_config is None
    renamed = Layer(up=Layer(ln=Layer("weight")), end=Layer("weight"))
    run(text).set_sharding_configs(renamed, lambda path: path.replace("up", "top"))
    assert renamed.children["up"].children["ln"]._sharding_config is not None
    with pytest.raises(
        ValueError, match=r"^not in the plan: \['other.weight', 'end.bias'\]; not in the model: \['top.ln'\]$"
    ):
        run(text).set_sharding_configs(Layer(other=Layer("weight"), end=Layer("weight", "bias")))


def two_norms():
    """A plan of two modules with a weight each, over a mesh that splits the batch and something else."""
    plan = example_plan()
    weight = next(tensor for tensor in plan.tensors if tensor.role == "parameter")
    value = next(tensor for tensor in plan.tensors if tensor.role == "activation")
    whole, batch = Layout.of(R, R), Layout.of(S(0), R)
    value = replace(value, layout=batch, served=batch)
    tensors, operators = [], []
    for name, read, made in (("top.ln", "ids", "x"), ("end", "x", "y")):
        kept = {"layout": whole, "served": whole, "shape": (16,), "perm": (), "aliases": ()}
        tensors.append(replace(weight, name=f"{name}.w", checkpoint=f"{name}.weight", **kept))
        tensors.append(replace(value, name=made))
        reads = (batch, Layout.of(RP, R))
        operator = replace(plan.operators[0], name=f"node_{made}", module=name, op_type="Mul", makes=(batch,))
        operators.append(replace(operator, inputs=(read, f"{name}.w"), outputs=(made,), reads=reads))
    tensors.append(replace(value, name="ids", role="input"))
    return replace(plan, tensors=tuple(tensors), operators=tuple(operators), moves=())


def test_axes_are_found_by_what_they_split():
    plan = two_norms()
    assert dict(titan_axes(plan).members) == {"dp": (0,), "cp": (), "tp": (1,)}
    sequence = Layout.of(S(0), S(1))
    inputs = [replace(t, layout=sequence) if t.role == "input" else t for t in plan.tensors]
    assert dict(titan_axes(replace(plan, tensors=tuple(inputs))).members) == {"dp": (0,), "cp": (1,), "tp": ()}


def test_axes_that_split_one_dim_have_an_order():
    axes = titan_axes(two_norms())
    assert (
        axes.text(Layout.of(S(0), S(0)), 3, gradients=True)
        == "SpmdLayout({DP: V, CP: R, TP: V}, ((DP, TP), None, None))"
    )
    assert axes.text(Layout.of(S(0), S(1)), 2, gradients=True) == "SpmdLayout({DP: S(0), CP: R, TP: S(1)})"
    assert axes.text(Layout.of(S(0), P()), 2, gradients=True) == "SpmdLayout({DP: S(0), CP: R, TP: P})"
    assert axes.text(Layout.of(S(0), S(0)), 1, gradients=True) == "SpmdLayout({DP: V, CP: R, TP: V}, ((DP, TP),))"
    assert axes.text(Layout.of(RP, R), 1, gradients=True) == "SpmdLayout({DP: R, CP: R, TP: I})"
    assert list(axes.unlike("x", Layout.of(S(0), S(0), order=(1, 0)))) == [
        "'x' is sharded by axes in another order than the mesh's"
    ]
    assert list(axes.unlike("x", Layout.of(P("max"), R))) == [
        "'x' is partial by max, and partial values are sums in torchtitan"
    ]


def test_axes_that_are_one_in_torchtitan():
    """Two axes that cut the batch are its one axis of data parallelism, if they do alike."""
    plan = two_norms()
    both = [replace(t, layout=Layout.of(S(0), S(0))) if t.role == "input" else t for t in plan.tensors]
    axes = titan_axes(replace(plan, tensors=tuple(both)))
    assert (dict(axes.members), axes.size("dp")) == ({"dp": (0, 1), "cp": (), "tp": ()}, 16)
    assert axes.text(Layout.of(S(0), S(0)), 2, gradients=True) == "SpmdLayout({DP: S(0), CP: R, TP: R})"
    assert list(axes.unlike("x", Layout.of(S(0), R))) == [
        "machine and gpu are both dp in torchtitan, which has one such axis, and differ in 'x'"
    ]
    assert list(axes.disordered()) == []
    turned = replace(axes, members={"dp": (1,), "cp": (), "tp": (0,)})
    assert list(turned.disordered()) == [
        "torchtitan's ranks are counted by dp, cp, tp, here gpu, machine: the mesh has another order"
    ]


def test_weights_in_pieces_over_the_batch_are_left_to_fsdp(run):
    plan = two_norms()
    pieces = Layout.of(S(0), R)
    sharded = [replace(t, layout=pieces) if t.role == "parameter" else t for t in plan.tensors]
    exported = export_titan(replace(plan, tensors=tuple(sharded)))
    assert exported.refused == ()
    assert "data_parallel_shard_degree=4" in exported.text
    assert repr(run(exported.text).sharding_config("end").state_shardings) == "{'weight': R R I}"
    mixed = export_titan(replace(plan, tensors=(sharded[0], *plan.tensors[1:])))
    assert [str(warning) for warning in mixed.refused] == [
        "warning[not-said]: end.weight: whole on every replica in the plan; torchtitan's FSDP cuts all weights"
    ]


def test_a_row_adds_its_bias_before_its_sums_are_reduced(tmp_path, run):
    """As torch's Linear does; the plan reduces and then adds. Other moves between a module's operators are refused."""
    tiny = tiny_gpt(Sizes(hidden=256, ffn=1024))
    constraints = parse_constraints(megatron(tiny), "megatron.yaml")
    plan = plan_model(tiny.model(tmp_path), cluster_of("2x2"), PlanOptions(effort="quick", constraints=constraints))
    exported = export_titan(plan)
    assert exported.refused == ()
    assert "data_parallel_replicate_degree=2, tensor_parallel_degree=2" in exported.text
    config = run(exported.text).sharding_config
    row = config("transformer.h.0.mlp.c_proj")
    assert texts(row)[2:] == ("S0 R P", "S0 R I")
    assert repr(row.state_shardings["weight"]) == "R R S1"
    assert texts(config("transformer.h.0.mlp.c_fc"))[2:] == ("S0 R S2", "S0 R S2")
    whole = Layout.of(S(0), R)
    moved = [
        replace(op, reads=(whole, op.reads[1]))
        if op.module == "transformer.h.1.mlp.c_fc" and op.op_type == "Add"
        else op
        for op in plan.operators
    ]
    (name,) = (op.inputs[0] for op, before in zip(moved, plan.operators, strict=True) if op is not before)
    assert export_titan(replace(plan, operators=tuple(moved))).refused[0].detail == (
        f"'{name}' is moved inside of 'transformer.h.1.mlp.c_fc'"
    )


def test_what_has_no_boundary():
    exported = export_titan(read_plan(ROOT / "plans/llama3_8b.4x8.plan.json"))
    said = "error[cannot-say]: a ShardingConfig cannot express what this plan does\n"
    assert str(exported.refused[0]).startswith(said)
    told = r"'transpose_\d+' is moved between operators that are in no module with parameters"
    assert re.search(told, exported.refused[0].detail)
    detail = export_titan(example_plan()).refused[0].detail
    assert "'layers.0.attention.qkv.weight' is cut by segments (a fused dim) (and 1 more like this)" in detail


def test_every_committed_plan_is_python(run):
    for path in sorted((ROOT / "plans").glob("*.json")):
        run(export_titan(read_plan(path)).text)


def test_the_stand_ins_are_as_torchtitan_has_them():
    """What the file uses of torchtitan 0.3.0; compared with it where it is installed."""
    sharding = pytest.importorskip("torchtitan.protocols.sharding")
    for mine in (ShardingConfig, SpmdLayout, LocalMapConfig):
        theirs = getattr(sharding, mine.__name__)
        assert list(inspect.signature(theirs).parameters) == list(inspect.signature(mine).parameters)
