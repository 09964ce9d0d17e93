"""The models in tests/models and the ones in the onnx package: everything is known of them."""

from collections import Counter
from pathlib import Path

import onnx
import pytest

from shardplan.model.read import read_model, structure_digest

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"

COUNTS = {  # operators, tensors, parameters, trainable ones, millions of elements in parameters
    "gpt2_small": (410, 604, 148, 148, 124.4),
    "gpt2_small_dyn": (410, 603, 148, 148, 124.4),
    "llama3_8b": (1392, 1701, 292, 291, 8030.3),
    "gshard_moe": (449, 607, 143, 143, 13421.8),
    "resnet50": (175, 445, 267, 161, 25.6),
    "lstm_lm": (63, 84, 11, 11, 157.1),
}


@pytest.mark.parametrize("name", COUNTS)
def test_counts(zoo, name):
    model = zoo(name)
    elements = sum(model.tensors[parameter.tensor].elements for parameter in model.parameters)
    assert (
        len(model.operators),
        len(model.tensors),
        len(model.parameters),
        sum(parameter.trainable for parameter in model.parameters),
        round(elements / 1e6, 1),
    ) == COUNTS[name]


@pytest.mark.parametrize("name", COUNTS)
def test_models_are_consistent(zoo, name):
    check_consistent(zoo(name))


def check_consistent(model):
    """What every reader of a `Model` may rely on."""
    made = {tensor.name for tensor in model.tensors.values() if tensor.role != "activation"}
    names = [operator.name for operator in model.operators]
    assert len(set(names)) == len(names)
    for operator in model.operators:
        assert made.issuperset(filter(None, operator.inputs)), operator
        assert made.isdisjoint(filter(None, operator.outputs)), operator
        made.update(operator.outputs)
        assert any(operator.outputs)
    read = {name for operator in model.operators for name in operator.inputs} | set(model.outputs) | set(model.inputs)
    assert set(model.tensors) - read <= made
    assert set(model.outputs) <= set(model.tensors)
    assert set(model.inputs) <= set(model.tensors)
    for name, tensor in model.tensors.items():
        assert tensor.name == name
        assert all(isinstance(size, int) and size >= 0 for size in tensor.shape)
        assert tensor.size_bytes >= 0
    for name, value in model.constants.items():
        assert model.tensors[name].role == "constant"
        assert model.tensors[name].shape == value.shape
        assert value.size <= 1 << 16
        assert not value.flags.writeable
    assert {parameter.tensor for parameter in model.parameters} == {
        tensor.name for tensor in model.tensors.values() if tensor.role == "parameter"
    }
    assert len({parameter.name for parameter in model.parameters}) == len(model.parameters)
    for parameter in model.parameters:
        tensor = model.tensors[parameter.tensor]
        assert not parameter.trainable or tensor.is_float
        assert parameter.perm == () or sorted(parameter.perm) == list(range(len(tensor.shape)))
    placed = [index for block in model.blocks for copy in block.copies for index in copy]
    assert len(set(placed)) == len(placed)


def test_static_and_bound_graph_are_the_same_graph(zoo):
    static, bound = zoo("gpt2_small"), zoo("gpt2_small_dyn")
    assert bound.dims == {"batch": 8, "seq": 1024}

    def shapes(model):
        """The static export folded one GatherND index more; apart from its producers all operators agree."""
        return Counter(
            (operator.kind, *(model.tensors[name].shape for name in operator.outputs)) for operator in model.operators
        )

    difference = (shapes(static) - shapes(bound)) + (shapes(bound) - shapes(static))
    assert not difference


def test_checkpoint_names_of_llama(zoo):
    model = zoo("llama3_8b")
    by_name = {parameter.name: parameter for parameter in model.parameters}
    assert by_name["model.layers.7.mlp.down_proj.weight"].perm == (1, 0)
    assert model.tensors[by_name["model.layers.7.mlp.down_proj.weight"].tensor].shape == (14336, 4096)
    assert by_name["model.embed_tokens.weight"].perm == ()
    assert by_name["model.layers.0.input_layernorm.weight"].onnx == "model.layers.0.input_layernorm.weight"
    assert [name for name, parameter in by_name.items() if not parameter.trainable] == ["model.rotary_emb.inv_freq"]
    expected = {"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight", "model.rotary_emb.inv_freq"}
    parts = ["input_layernorm", "post_attention_layernorm", *(f"self_attn.{x}_proj" for x in "qkvo")]
    parts += [f"mlp.{x}_proj" for x in ("gate", "up", "down")]
    expected |= {f"model.layers.{layer}.{part}.weight" for layer in range(32) for part in parts}
    assert set(by_name) == expected


def test_tied_embedding_of_gpt2(zoo):
    parameter = zoo("gpt2_small").parameters[0]
    assert (parameter.name, parameter.aliases, parameter.perm) == ("lm_head.weight", ("transformer.wte.weight",), ())


def test_names_of_lstm_and_resnet(zoo):
    assert [parameter.name for parameter in zoo("lstm_lm").parameters][-2:] == ["h.weight", "h.bias"]
    frozen = [parameter.name for parameter in zoo("resnet50").parameters if not parameter.trainable]
    assert len(frozen) == 106
    assert {name.rpartition(".")[2] for name in frozen} == {"running_mean", "running_var"}


def test_modules(zoo):
    modules = {operator.name: operator.module for operator in zoo("llama3_8b").operators}
    assert modules["node_linear_3"] == "model.layers.0.self_attn.o_proj"
    assert modules["node_scaled_dot_product_attention"] == "model.layers.0.self_attn"


@pytest.mark.parametrize(
    ("name", "copies", "operators", "first"),
    [
        ("gpt2_small", 12, 33, "transformer.h.0"),
        ("gpt2_small_dyn", 12, 33, "transformer.h.0"),
        ("llama3_8b", 32, 43, "model.layers.0"),
        ("gshard_moe", 6, 74, "blocks.0+blocks.1"),
    ],
)
def test_layers_are_found(zoo, name, copies, operators, first):
    (block,) = zoo(name).blocks
    assert (len(block.copies), len(block.copies[0]), block.names[0]) == (copies, operators, first)


def test_stages_of_resnet(zoo):
    found = [(len(block.copies), len(block.copies[0]), block.names[0]) for block in zoo("resnet50").blocks]
    prefix = "m.resnet.encoder.stages"
    assert found == [(copies, 10, f"{prefix}.{stage}.layers.1") for stage, copies in enumerate((2, 3, 5, 2))]


@pytest.mark.parametrize(
    ("name", "operators", "parameters", "trainable", "millions"),
    [
        ("bvlc_alexnet", 24, 16, 16, 61.0),
        ("densenet121", 910, 848, 606, 8.1),
        ("inception_v1", 144, 116, 116, 7.0),
        ("inception_v2", 509, 485, 347, 11.2),
        ("resnet50", 176, 267, 161, 25.6),
        ("shufflenet", 203, 248, 150, 1.4),
        ("squeezenet", 66, 52, 52, 1.2),
        ("vgg19", 46, 38, 38, 143.7),
        ("zfnet512", 22, 16, 16, 87.3),
    ],
)
def test_weights_made_by_constant_nodes(name, operators, parameters, trainable, millions):
    """IR 3, opset 9, every weight a ConstantOfShape: weights all the same, and never computed."""
    model = read_model(LIGHT / f"light_{name}.onnx")
    check_consistent(model)
    elements = sum(model.tensors[parameter.tensor].elements for parameter in model.parameters)
    assert len(model.inputs) == 1
    assert (
        len(model.operators),
        len(model.parameters),
        sum(parameter.trainable for parameter in model.parameters),
        round(elements / 1e6, 1),
    ) == (operators, parameters, trainable, millions)


@pytest.mark.parametrize("folder", ["pytorch-operator", "pytorch-converted"])
def test_shapes_of_old_models_are_those_of_their_stored_results(folder):
    """117 models of opset 6 to 9, some without any stored shape but the inputs'."""
    paths = sorted((LIGHT.parent / folder).glob("*/model.onnx"))
    assert len(paths) > 30
    for path in paths:
        model = read_model(path)
        check_consistent(model)
        for place, name in enumerate(model.outputs):
            stored = onnx.TensorProto.FromString((path.parent / "test_data_set_0" / f"output_{place}.pb").read_bytes())
            assert model.tensors[name].shape == tuple(stored.dims), path


def test_reading_twice_gives_the_same(zoo):
    again = read_model(Path(__file__).parent.parent / "models" / "gshard_moe.onnx")
    assert again.operators[5:] == zoo("gshard_moe").operators[5:]
    assert structure_digest(again) == structure_digest(zoo("gshard_moe"))
