"""From a module to a plan in one call; with its loss; from a factory on the command line."""

import json
import warnings
from pathlib import Path

import pytest

pytest.importorskip("torch")

import onnx
import torch
from forced_plans import forced_plan
from onnx.reference import ReferenceEvaluator
from tiny_models import tiny_gpt
from torch import nn
from torch.nn import functional
from torch_layers import SHAPE, Numbers
from torch_with_loss import classes

import shardplan
import shardplan.torch
from shardplan.cli import main
from shardplan.errors import ShardplanError
from shardplan.model.read import read_model, read_model_bytes
from shardplan.plan.format.encode import dumps
from shardplan.planning import PlanOptions
from shardplan.torch.planning.factory import read_factory
from shardplan.torch.planning.onnx_program import onnx_bytes
from shardplan.torch.planning.plan import read_module
from shardplan.torch.planning.refusals import refusal
from shardplan.torch.with_loss import argument_names, with_loss

FOLDER = Path(__file__).parent / "models"


class Net(nn.Module):
    """Tied, with dropout, a table that no checkpoint has, and a result that holds more than tensors."""

    def __init__(self, hidden=32):
        super().__init__()
        self.table, self.drop = nn.Embedding(64, hidden), nn.Dropout(0.5)
        self.norm, self.head = nn.BatchNorm1d(hidden), nn.Linear(hidden, 64, bias=False)
        self.head.weight = self.table.weight
        self.register_buffer("scale", torch.ones(hidden), persistent=False)

    def forward(self, ids, weight=None):
        x = self.norm((self.table(ids) * self.scale).transpose(1, 2)).transpose(1, 2)
        x = self.drop(x if weight is None else x * weight[..., None])
        return {"logits": self.head(x), "cache": object(), "other": [x.sum(), None]}


def loss(made, targets):
    return functional.cross_entropy(made["logits"].flatten(0, 1), targets.flatten())


IDS = torch.zeros(8, 16, dtype=torch.long)


@pytest.mark.parametrize(("recipe", "called"), [("Megatron", "place"), ("ZeRO-3", "name")])
def test_a_plan_has_the_loss_too(four, recipe, called):
    plan = forced_plan(read_model(FOLDER / "gpt_with_loss.onnx"), "2x2", recipe=recipe)
    for loss_error, gradient_error, strange, differences in four.run("torch_with_loss", "step", plan, called):
        assert max(loss_error, gradient_error) < 1e-5
        assert not strange
        assert not differences


@pytest.mark.parametrize("called", ["whole", "one"])
def test_the_example_of_a_graph_is_a_batch_or_a_microbatch(four, called):
    read = read_model(FOLDER / "gpt_with_loss.onnx")
    plan = forced_plan(read, "2x2", PlanOptions(microbatches=2), recipe="ZeRO-3")
    for errors in four.run("torch_with_loss", "in_microbatches", plan, called):
        assert max(errors) < 1e-5


@pytest.mark.parametrize("called", ["eager", "graph"])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_the_operands_of_a_loss_are_gathered_as_planned(four, reduction, called):
    model, batch = classes()
    split = {"axes": {"machine": {"inputs": 0}, "gpu": {"inputs": 0}}, "parameters": {"*": "replicate"}}

    def loss(logits, target):
        return functional.cross_entropy(logits, target, reduction=reduction)

    plan = shardplan.torch.plan(
        model, batch, "2x2", loss=loss, cluster="generic", constraints=[split], pins=["linear=replicate"]
    )
    moved = {move.tensor for move in plan.moves if move.phase == "forward" and move.reader == plan.operators[-1].name}
    assert moved == {"target" if reduction == "mean" else "linear"}
    for loss_error, gradient_error, forward, _ in four.run("torch_with_loss", "strict_step", plan, reduction, called):
        assert max(loss_error, gradient_error) < 1e-5
        assert not forward


@pytest.mark.parametrize("called", ["eager", "graph"])
def test_the_gradient_of_a_loss_of_split_rows_is_not_reduced(four, called):
    """It is the same on all processes; forward the sum of the losses and their number are sent inside of the loss."""
    model, batch = classes()
    split = {"axes": {"machine": {"inputs": 0}, "gpu": {"inputs": 0}}, "parameters": {"*": "replicate"}}
    asked = {"cluster": "generic", "constraints": [split], "pins": ["linear=S(0)@machine,gpu"]}
    plan = shardplan.torch.plan(model, batch, "2x2", loss=functional.cross_entropy, **asked)
    assert plan.operators[-1].split == ("n", "n")
    for *errors, forward, backward in four.run("torch_with_loss", "strict_step", plan, "mean", called):
        assert max(errors) < 1e-5
        assert (forward, backward) == (1, 0)


@pytest.mark.parametrize("how", ["mean", "sum"])
@pytest.mark.parametrize("mode", ["eager", "exported"])
def test_a_number_of_all_elements_is_added_up_as_planned(four, mode, how):
    """Exporters write a mean with all dims kept; what the plan then moves had no place in the model."""
    split = {"axes": {"machine": {"inputs": 0}, "gpu": {"inputs": 0}}, "parameters": {"*": "replicate"}}
    asked = {"cluster": "generic", "constraints": [split], "pins": ["pow_1=[[machine, gpu], null]"]}
    plan = shardplan.torch.plan(Numbers(how), (torch.ones(SHAPE),), "2x2", **asked)
    added = next(each for each in plan.operators if each.op_type in ("ReduceMean", "ReduceSum")).outputs[0]
    assert [move.steps[0].collective.kind for move in plan.moves if move.tensor == added] == ["all_reduce"]
    for result, gradient, differences in four.run("torch_layers", "number", plan, mode, how):
        assert max(result, gradient) < 1e-5
        assert differences == []


@pytest.mark.parametrize("microbatches", [1, 2])
def test_steps_are_measured_with_targets(four, tmp_path, microbatches):
    options = PlanOptions(microbatches=microbatches)
    plan = forced_plan(tiny_gpt().model(tmp_path), "2x2", options, recipe="Megatron")
    for found in four.run("torch_with_loss", "timed", plan):
        assert found == [["forward", "backward", "update", "0.000"]] * (3 - microbatches)


def test_training_under_a_plan_for_inference_is_warned_of(four, tmp_path):
    plan = forced_plan(tiny_gpt().model(tmp_path), "2x2", PlanOptions(mode="inference"), recipe="Megatron")
    assert four.run("torch_with_loss", "warned", plan) == [[1, 0, 0] * 2] * 4


CANNOT = "error[wrong-inputs]: the model cannot be called with the example inputs: "
FORGOTTEN = "hint: targets of a loss outside of the model follow its arguments: give that loss as loss="
MISSING = f"{CANNOT}missing a required argument: 'ids'\n  Net.forward takes ids, weight"
FOLLOWS = "hint: give the model's arguments and then the targets of the loss, or a mapping of names"
CALLS = {
    "targets without a loss": (
        (IDS, IDS, IDS), None, f"{CANNOT}too many positional arguments\n  Net.forward takes ids, weight\n{FORGOTTEN}",
    ),
    "another name": ({"idz": IDS}, None, f"{MISSING}\n{FORGOTTEN}"),
    "a loss without targets": ((IDS,), loss, f"{MISSING}; the loss takes targets\n{FOLLOWS}"),
}  # fmt: skip


@pytest.mark.parametrize("call", CALLS)
def test_a_call_that_the_model_does_not_take_is_refused(call):
    given, outside, wanted = CALLS[call]
    with pytest.raises(ShardplanError) as said:
        read_module(Net(), given, loss=outside)
    assert str(said.value) == wanted


def test_arguments_of_a_loss_follow_those_of_the_model():
    step = with_loss(Net(), loss)
    assert argument_names(step, (IDS, IDS), {}) == ["ids", "targets"]
    assert argument_names(step, (IDS, IDS, IDS), {}) == ["ids", "weight", "targets"]
    assert argument_names(step, (IDS,), {"targets": IDS}) == ["ids"]
    assert with_loss(Net(), nn.CrossEntropyLoss()).targets == ("target",)
    assert with_loss(Net(), functional.mse_loss).targets == ("target",)
    assert torch.equal(step.eval()(IDS, targets=IDS), loss(step.model(IDS), IDS))
    with pytest.raises(ShardplanError, match="missing-target"):
        step()
    with pytest.raises(ShardplanError, match="loss-parameters"):
        with_loss(Net(), nn.PReLU())


def test_a_module_is_planned_under_its_own_names_and_left_as_it_was():
    pytest.importorskip("onnxscript")
    model = Net().train()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plan = shardplan.torch.plan(model, (IDS, IDS), "2x2", loss=loss, cluster="generic")
    assert model.training
    assert model.norm.training
    assert "forward" not in vars(model)
    assert [t.name for t in plan.tensors if t.role == "input"] == ["ids", "targets"]
    known = dict([*model.named_parameters(remove_duplicate=False), *model.named_buffers()])
    planned = [(t.checkpoint, *t.aliases) for t in plan.tensors if t.role == "parameter"]
    assert {name for names in planned for name in names} <= set(known)
    assert {"table.weight", "head.weight", "norm.weight"} <= {name for names in planned for name in names}
    with torch.device("meta"):
        light, ids = Net(), torch.zeros(8, 16, dtype=torch.long)
    assert dumps(shardplan.torch.plan(light, (ids, ids), "2x2", loss=loss, cluster="generic")) == dumps(plan)
    by_name = shardplan.torch.plan(model, {"ids": IDS, "targets": IDS}, "2x2", loss=loss, cluster="generic")
    assert dumps(by_name) == dumps(plan)


class Sized(nn.Module):
    def forward(self, x):
        return torch.stack([x] * int(x.sum()))


def test_what_cannot_be_exported_is_said_in_words(capfd):
    pytest.importorskip("onnxscript")
    with pytest.raises(ShardplanError) as caught:
        shardplan.torch.plan(Sized(), torch.ones(4, 4, device="meta"), "2x2", cluster="generic")
    (said,) = caught.value.diagnostics
    assert said.code == "cannot-export"
    assert "depends on the values of tensors" in said.summary
    assert "torch.where" in said.hint
    assert capfd.readouterr() == ("", "")
    with pytest.raises(ShardplanError, match="bad-argument"):
        shardplan.torch.plan(Net(), IDS, "2x2", cluster="generic", mode="trainin")


def test_causes_of_refusals():
    inner = RuntimeError("No ONNX function found for <OpOverload(op='aten._grouped_mm', overload='default')>")
    outer = RuntimeError("Failed to convert")
    outer.__cause__ = inner
    said = refusal(outer)
    assert said.detail == "torch has no ONNX form of aten._grouped_mm"
    assert "batched_mm" in said.hint
    assert "eager" in refusal(RuntimeError("flex_attention is not supported")).hint
    unknown = "No ONNX function found for <OpOverload(op='aten.mul', overload='Tensor')>. complex64"
    assert "complex numbers" in refusal(RuntimeError(unknown)).summary
    assert refusal(KeyError("strange")).detail == "'strange'"


class Running(nn.Module):
    def forward(self, x):
        best, least = torch.cummax(x, 1), torch.cummin(x.round(), -1)
        middle = [*torch.median(x, 1), *torch.median(x, -1, keepdim=True), x.median(), *torch.kthvalue(x, 2, 1)]
        clipped, rows = x.clone(), x.clone()
        clipped[x < 0] = 0.5
        rows[x[..., 0] > 0] = x[0, 1]
        added = x.index_put((x > 1,), x[0, 0, :1], accumulate=True)
        return *best, *least, *middle, torch.cumprod(x, 1), torch.logcumsumexp(x, 0), clipped, rows, added


def test_running_values_medians_and_what_masks_set_have_onnx_forms():
    """Which the exporter has not."""
    pytest.importorskip("onnxscript")
    x = torch.randn(3, 7, 5, generator=torch.Generator().manual_seed(0))
    model = onnx.load_from_string(onnx_bytes(Running(), (x,), {}))
    found = ReferenceEvaluator(model).run(None, {model.graph.input[0].name: x.numpy()})
    for mine, theirs in zip(found, Running()(x), strict=True):
        torch.testing.assert_close(torch.from_numpy(mine), theirs)


@torch.library.custom_op("tests::rows_added", mutates_args=())
def rows_added(x: torch.Tensor, times: float) -> tuple[torch.Tensor, torch.Tensor]:
    return x + times, x.sum(0)


@rows_added.register_fake
def _(x, times):
    return torch.empty_like(x), x.new_empty(x.shape[1:])


class Strange(nn.Linear):
    """Functions of which torch's exporter knows no form: elementwise ones, and an operator of a library; `t` is the
    name of an input, and of an operator."""

    def forward(self, x, t):
        h, total = rows_added(super().forward(x), 2.0)
        h = torch.special.i0e(h.digamma()) + torch.special.xlog1py(h, t @ self.weight.t()).igamma(h)
        return h.amax() + h.sum() + total.mean()


def test_operators_without_an_onnx_form_are_elementwise_or_whole():
    pytest.importorskip("onnxscript")
    model = read_module(Strange(8, 16), (torch.randn(8, 8), torch.randn(8, 8)))
    (whole,) = [each for each in model.operators if each.domain]
    assert (whole.domain, whole.op_type) == ("tests", "rows_added")
    assert [model.tensors[name].shape for name in whole.outputs] == [(8, 16), (16,)]
    assert set(model.inputs) >= {"x", "t"}
    with pytest.warns(UserWarning, match="1 operator has no sharding rule and will be replicated") as said:
        shardplan.make_plan(model, "1x2")
    assert {each.filename for each in said} == {__file__}


def test_a_buffer_may_have_the_name_of_something_of_a_graph_module():
    """torch fails there."""
    pytest.importorskip("onnxscript")
    module = nn.Linear(4, 4)
    module.register_buffer("code", torch.ones(4))
    module.code_ = nn.Parameter(torch.ones(4))
    module.forward = lambda x: nn.functional.linear(x, module.weight, module.bias) * module.code + module.code_
    model = onnx.load_from_string(onnx_bytes(module, (torch.randn(2, 4),), {}))
    assert {each.name for each in model.graph.initializer} >= {"weight", "bias", "code", "code_"}


def test_a_module_may_have_a_keyword_of_python_for_its_name():
    """Torch writes it into a program of Python."""
    pytest.importorskip("onnxscript")
    heads = nn.ModuleDict({"class": nn.Linear(4, 4), "class_": nn.Linear(4, 4)})
    heads.forward = lambda x: heads["class_"](heads["class"](x))
    model = onnx.load_from_string(onnx_bytes(heads, (torch.randn(2, 4),), {}))
    assert {each.name for each in model.graph.initializer} >= {"class.weight", "class.bias", "class_.weight"}


FACTORIES = """
import torch
from torch import nn

def build(batch=8, hidden=32):
    return nn.Linear(hidden, 64), torch.zeros(batch, hidden)

def alone():
    return nn.Linear(2, 2)

def failing():
    raise RuntimeError("no data here")

def program():
    raise SystemExit(3)
"""
FAULTS = {
    "nets.somewhere:build": "error[no-factory]: 'nets.somewhere:build': there is no module 'nets'\nhint: MODEL is an "
    "ONNX file, transformer:..., or package.module:function, found from here",
    "nets_of_mine:buld": "error[no-factory]: 'nets_of_mine:buld': nets_of_mine has no function 'buld'\n"
    "hint: did you mean 'build'?",
    "nets_of_mine:alone": "error[bad-factory]: 'nets_of_mine:alone' returned (Linear)\n"
    "hint: return (module, example_inputs) or (module, example_inputs, loss)",
    "nets_of_mine:failing": "error[bad-factory]: 'nets_of_mine:failing': it failed\n  RuntimeError: no data here",
    "nets_of_mine:program": "error[bad-factory]: 'nets_of_mine:program': it failed\n  SystemExit: 3\n"
    "hint: keep what only a program does under if __name__ == '__main__'",
}


@pytest.fixture
def nets(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("nets_of_mine.py").write_text(FACTORIES)
    return tmp_path


@pytest.mark.parametrize("given", FAULTS)
def test_faults_of_factories(nets, capsys, given):
    assert main(["solve", given, "--mesh", "2x2"]) == 2
    assert capsys.readouterr().err.strip() == FAULTS[given]


def test_sizes_of_a_factory(nets):
    with pytest.raises(ShardplanError) as caught:
        read_factory("nets_of_mine", "build", {"bach": 3})
    assert str(caught.value) == "error[unknown-dim]: 'nets_of_mine:build' takes no 'bach'\nhint: did you mean 'batch'?"


def test_a_factory_is_a_model_on_the_command_line(nets, capsys):
    pytest.importorskip("onnxscript")
    given = ["nets_of_mine:build", "--dim", "batch=16", "--mesh", "2x2", "-c", "generic"]
    assert main(["solve", *given, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["result"]["plan"] == "plans/nets_of_mine.build.2x2.plan.json"
    plan = shardplan.load("plans/nets_of_mine.build.2x2.plan.json")
    assert next(t.shape for t in plan.tensors if t.role == "input") == (16, 32)
    assert main(["check", "--model", "nets_of_mine:build", "plans/nets_of_mine.build.2x2.plan.json"]) == 0


def test_a_model_is_read_from_bytes_as_from_its_file():
    path = FOLDER / "gpt_with_loss.onnx"
    found, expected = read_model_bytes(path.read_bytes(), "gpt_with_loss"), read_model(path)
    assert (found.name, found.operators, found.parameters) == (expected.name, expected.operators, expected.parameters)


class Apart(nn.Module):
    """Distances, of which ONNX knows nothing, and a squeeze that torch lets drop nothing."""

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(4, 8)

    def forward(self, x):
        return torch.cdist(self.out(x).squeeze(1), x.repeat(1, 1, 2)).sum()


def test_what_onnx_has_no_form_of_is_written_in_others():
    before = torch.cdist
    model = read_module(Apart(), (torch.zeros(4, 16, 4),), name="apart")
    kinds = [operator.op_type for operator in model.operators]
    assert "Squeeze" not in kinds
    assert {"Sub", "ReduceL2"} <= set(kinds)
    assert torch.cdist is before
