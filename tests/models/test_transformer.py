"""Models from descriptions: published parameter counts and FLOPs, what the planner finds in them, and bad words."""

import numpy as np
import onnx
import pytest
from onnx import helper, shape_inference

from shardplan.errors import ShardplanError
from shardplan.model.types import Model
from shardplan.models import NAMED, build, described, title_of, transformer
from shardplan.rules import model_rules

SMALL = {"layers": 2, "hidden": 64, "heads": 4, "vocab": 96, "seq": 32, "batch": 2}
FORMS = [
    {"style": "llama"},
    {"style": "llama", "kv_heads": 2, "attention": "decomposed"},
    {"style": "llama", "experts": 4, "moe_every": 2},
    {"style": "gpt", "dropout": True, "attention": "decomposed"},
    {"style": "gpt", "experts": 4, "top_k": 1},
    {"style": "bert", "head_size": 8},
]


def parameters(model: Model) -> int:
    return sum(model.tensor(parameter.tensor).elements for parameter in model.parameters)


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("llama3-8b", 8.030), ("llama3-70b", 70.55), ("llama3-405b", 405.9), ("llama2-7b", 6.738),
        ("mixtral-8x7b", 46.70), ("gpt-1.7b", 1.7), ("gpt-7.5b", 7.5), ("gpt-39b", 39.1), ("gpt-175b", 174.6),
        ("gpt-530b", 529.6), ("gpt-1t", 1008.0), ("alpa-2.6b", 2.65), ("bert-large", 0.334),
    ],
)  # fmt: skip
def test_the_named_models_have_their_published_number_of_parameters(name: str, billions: float) -> None:
    assert parameters(described(f"transformer:{name},batch=1,seq=128")) == pytest.approx(billions * 1e9, rel=0.035)


def test_the_flops_are_those_of_the_published_formula() -> None:
    """Forward, Narayanan et al. 2021: 24 b s l h^2 (1 + s / 6h) + 2 b s h V, with the whole square of scores."""
    model = described("transformer:gpt-7.5b,batch=4,attention=decomposed")
    flops = sum(rule.flops for rule in model_rules(model) if rule.gemm)
    b, s, h, layers, vocab = 4, 2048, 4096, 36, 51200
    assert flops == pytest.approx(24 * b * s * layers * h**2 * (1 + s / (6 * h)) + 2 * b * s * h * vocab, rel=1e-6)


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_every_operator_has_a_rule_and_layers_repeat(form: dict[str, object]) -> None:
    model = transformer(**{**SMALL, "layers": 4}, **form)
    assert not [o.name for o, rule in zip(model.operators, model_rules(model), strict=True) if rule.fallback]
    (block,) = model.blocks
    assert len(block.copies) == 4 // int(form.get("moe_every", 1))


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_shapes_and_types_are_those_that_onnx_infers(form: dict[str, object]) -> None:
    model = transformer(**SMALL, **form)
    inferred = shape_inference.infer_shapes(_to_onnx(model), strict_mode=True, data_prop=True)
    found = {value.name: value.type.tensor_type for value in [*inferred.graph.value_info, *inferred.graph.output]}
    for operator in model.operators:
        for name in operator.outputs:
            tensor, seen = model.tensor(name), found[name]
            assert helper.tensor_dtype_to_string(seen.elem_type) == f"TensorProto.{tensor.dtype.upper()}", name
            assert tuple(dim.dim_value for dim in seen.shape.dim) == tensor.shape, name


def test_checkpoint_names_and_orientation_are_those_of_the_reference_implementations() -> None:
    llama = {p.name: p for p in transformer(**SMALL).parameters}
    assert llama["model.layers.1.self_attn.q_proj.weight"].perm == (1, 0)
    assert llama["model.embed_tokens.weight"].perm == ()
    assert "lm_head.weight" in llama
    gpt = {p.name: p for p in transformer(**SMALL, style="gpt").parameters}
    assert gpt["transformer.h.0.attn.c_attn.weight"].perm == ()
    assert "lm_head.weight" not in gpt, "GPT's output matrix is its embedding"


def test_a_size_may_be_given_in_the_text_and_beside_it() -> None:
    model = described("transformer:llama3-8b,layers=2,batch=3", {"seq": 64})
    assert model.dims == {"batch": 3, "seq": 64}
    assert model.tensor(model.outputs[0]).shape == (3, 64, 128256)
    assert model.name == "llama3-8b"
    assert title_of("transformer:layers=3") == "transformer"


def test_nothing_depends_on_the_process() -> None:
    once, again = (described("transformer:gpt-1.7b,layers=2") for _ in range(2))
    assert once.operators == again.operators
    assert once.tensors == again.tensors


def test_everything_wrong_with_a_description_is_said_at_once() -> None:
    with pytest.raises(ShardplanError) as caught:
        described("transformer:lama3-8b,batsh=3,seq=long", {"hiden": 4})
    assert str(caught.value) == (
        "error[unknown-model]: there is no transformer called 'lama3-8b'\n"
        "hint: did you mean 'llama3-8b'?\n"
        "error[bad-description]: transformer: 'batsh' is no size of a transformer\n"
        "hint: did you mean 'batch'?\n"
        "error[bad-description]: transformer: 'seq=long' should be seq=N\n"
        "error[bad-description]: transformer: 'hiden' is no size of a transformer\n"
        "hint: did you mean 'hidden'?"
    )


def test_a_size_is_given_once() -> None:
    with pytest.raises(ShardplanError) as caught:
        described("transformer:llama3-8b,layers=1,batch=8,layers=2")
    assert str(caught.value) == "error[bad-description]: transformer: 'layers' is given twice"


def test_sizes_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ShardplanError) as caught:
        transformer(heads=7, kv_heads=3)
    assert str(caught.value) == (
        "error[bad-description]: transformer: hidden (768) is no multiple of heads (7)\n"
        "hint: give head_size as well\n"
        "error[bad-description]: transformer: heads (7) is no multiple of kv_heads (3)\n"
        "error[bad-description]: transformer: the size of a head (109) is odd, so it cannot be rotated\n"
        "hint: choose even head sizes"
    )
    with pytest.raises(ShardplanError, match=r"layers is 0, it must be at least 1"):
        transformer(layers=0)
    with pytest.raises(ShardplanError, match=r"top_k \(2\) is more than experts \(1\)"):
        transformer(experts=1)


def test_places_of_a_billion_tokens_are_not_written_out() -> None:
    """They took gigabytes before anything was refused."""
    sizes = {"layers": 1, "hidden": 8, "heads": 1, "vocab": 8, "batch": 1, "style": "gpt"}
    long, short = transformer(**sizes, seq=10**9), transformer(**sizes, seq=64)
    assert long.tensor("positions").shape == (10**9,)
    assert "positions" not in long.constants
    assert short.constants["positions"].tolist() == list(range(64))


def test_every_named_model_can_be_built() -> None:
    for spec in NAMED.values():
        assert build(spec).operators


def _to_onnx(model: Model) -> onnx.ModelProto:
    """The graph as ONNX, parameters as inputs."""

    def info(name: str) -> onnx.ValueInfoProto:
        tensor = model.tensor(name)
        return helper.make_tensor_value_info(name, getattr(onnx.TensorProto, tensor.dtype.upper()), tensor.shape)

    read = dict.fromkeys(name for operator in model.operators for name in operator.inputs)
    given = [name for name in read if model.tensor(name).role != "activation" and name not in model.constants]
    nodes = [
        helper.make_node(o.op_type, o.inputs, o.outputs, o.name, **{k: _plain(v) for k, v in o.attributes.items()})
        for o in model.operators
    ]
    constants = []
    for name, value in model.constants.items():
        kind = getattr(onnx.TensorProto, model.tensor(name).dtype.upper())
        constants.append(helper.make_tensor(name, kind, value.shape, np.asarray(value).ravel().tolist()))
    graph = helper.make_graph(nodes, "t", [info(n) for n in given], [info(n) for n in model.outputs], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", model.opset)])


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value
