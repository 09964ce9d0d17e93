"""Files that are no models: exact texts, and never anything but a `ShardplanError`."""

import contextlib
import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper, parser

from shardplan.errors import ShardplanError
from shardplan.model.protobuf_wire import WireError, without_payloads
from shardplan.model.read import read_model

MODELS = Path(__file__).parent.parent / "models"


def error_of(path) -> str:
    with pytest.raises(ShardplanError) as caught:
        read_model(path)
    assert caught.value.exit_code == 2
    return str(caught.value)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_missing_file_names_the_nearest():
    Path("llama.onnx").write_bytes(b"")
    assert error_of("lama.onnx") == (
        "lama.onnx: error[no-such-file]: there is no such file\nhint: did you mean 'llama.onnx'?"
    )


def test_missing_file_without_a_near_one_lists_what_is_there():
    Path("b.onnx").write_bytes(b"")
    Path("a.onnx").write_bytes(b"")
    assert error_of("transformer.onnx") == (
        "transformer.onnx: error[no-such-file]: there is no such file\nhint: ONNX files there: a.onnx, b.onnx"
    )


def test_missing_directory():
    assert error_of("no/model.onnx") == (
        "no/model.onnx: error[no-such-file]: there is no such file\nhint: there is no directory 'no' either"
    )


def test_directory():
    Path("m.onnx").mkdir()
    assert error_of("m.onnx") == ("m.onnx: error[not-a-file]: this is a directory\nhint: name the .onnx file inside it")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_unreadable_file():
    Path("m.onnx").write_bytes(b"x")
    Path("m.onnx").chmod(0)
    assert error_of("m.onnx") == "m.onnx: error[unreadable-file]: cannot read the file: Permission denied"


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "this is not an ONNX model: the file is empty"),
        (b"hello, this is a letter", "this is not an ONNX model: its bytes are no ONNX protobuf message"),
        (b'{"graph": {}}', "this is not an ONNX model: its bytes are no ONNX protobuf message"),
        (b"\x08\x0a", "this is not an ONNX model: it holds no graph"),
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n",
            (
                "this is not an ONNX model: it is a Git LFS pointer, not the file itself\n"
                "hint: fetch it with `git lfs pull`"
            ),
        ),
    ],
)
def test_not_onnx(data, text):
    Path("m.onnx").write_bytes(data)
    assert error_of("m.onnx") == f"m.onnx: error[not-onnx]: {text}"


def test_truncated_file():
    data = (MODELS / "gpt2_small.onnx").read_bytes()
    Path("m.onnx").write_bytes(data[:100_000])
    assert error_of("m.onnx") == (
        "m.onnx: error[truncated-file]: the file is truncated: it has 100,000 bytes and its contents go on to byte "
        "282,339\nhint: copy or download the file again"
    )


@settings(max_examples=60)
@given(st.data())
def test_no_damage_to_a_file_escapes_as_another_exception(data):
    model = parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 21]> g (float[n, 4] x) => (float[n, 4] z)'
        "<float[4] b = {1, 2, 3, 4}> { y = Add(x, b)  s = Shape(y)  z = Reshape(y, s) }"
    )
    content = bytearray(model.SerializeToString())
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    content = content[: data.draw(st.integers(0, len(content)))]
    Path("m.onnx").write_bytes(content)
    with contextlib.suppress(ShardplanError):
        read_model("m.onnx", {"n": 2})


def test_stripping_keeps_everything_but_big_payloads():
    small = numpy_helper.from_array(np.arange(4, dtype=np.int64), "small")
    big = helper.make_tensor("big", onnx.TensorProto.FLOAT, [100], bytes(400), raw=True)
    typed = helper.make_tensor("typed", onnx.TensorProto.FLOAT, [100], [0.5] * 100)
    constant = helper.make_node("Constant", [], ["c"], value=big)
    nested = helper.make_graph([constant], "then", [], [helper.make_tensor_value_info("c", 1, [100])])
    branch = helper.make_node("If", ["p"], ["y"], then_branch=nested, else_branch=nested)
    graph = helper.make_graph(
        [branch],
        "g",
        [helper.make_tensor_value_info("p", 9, [])],
        [helper.make_tensor_value_info("y", 1, [100])],
        initializer=[small, big, typed],
    )
    model = helper.make_model(graph)
    stripped = onnx.ModelProto.FromString(without_payloads(memoryview(model.SerializeToString()), 100))
    expected = onnx.ModelProto()
    expected.CopyFrom(model)
    for tensor in expected.graph.initializer[1:]:
        tensor.ClearField("raw_data")
        tensor.ClearField("float_data")
    for attribute in expected.graph.node[0].attribute:
        attribute.g.node[0].attribute[0].t.ClearField("raw_data")
    assert stripped == expected
    assert without_payloads(memoryview(model.SerializeToString())) == model.SerializeToString()


@given(st.binary(max_size=60))
def test_stripping_arbitrary_bytes_either_copies_or_refuses(data):
    with contextlib.suppress(WireError):
        assert without_payloads(memoryview(data)) == data


def test_a_file_beyond_two_gigabytes_is_read_without_its_weights():
    """A weight of 3 GB, embedded: a hole in a sparse file. protobuf itself stops at 2 GB."""
    size_bytes = 3 << 30
    model = parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 21]> g (float[2, 4] x) => (float[2, 201326592] y) { y = MatMul(x, w) }'
    )
    head = model.SerializeToString()
    tensor = onnx.TensorProto(
        name="w", dims=[4, size_bytes // 16], data_type=onnx.TensorProto.FLOAT
    ).SerializeToString()
    tensor += field(9, size_bytes)
    graph = model.graph.SerializeToString()
    assert head.endswith(field(7, len(graph)) + graph) or graph in head
    model.ClearField("graph")
    with Path("m.onnx").open("wb") as file:
        file.write(model.SerializeToString())
        file.write(field(7, len(graph) + len(field(5, len(tensor) + size_bytes)) + len(tensor) + size_bytes) + graph)
        file.write(field(5, len(tensor) + size_bytes) + tensor)
        file.truncate(file.tell() + size_bytes)
    parameter = read_model("m.onnx").parameters[0]
    assert (parameter.name, parameter.trainable) == ("w", True)
    assert read_model("m.onnx").tensors["w"].size_bytes == size_bytes


def field(number: int, length: int) -> bytes:
    out = bytearray()
    for value in (number << 3 | 2, length):
        rest = value
        while rest >= 0x80:
            out.append(rest & 0x7F | 0x80)
            rest >>= 7
        out.append(rest)
    return bytes(out)


def test_external_data_is_never_opened(monkeypatch):
    model = parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 21]> g (float[2, 4] x) => (float[2, 3] y) { y = MatMul(x, w) }'
    )
    tensor = onnx.TensorProto(name="w", dims=[4, 3], data_type=1, data_location=onnx.TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="../../../../etc/passwd")
    model.graph.initializer.append(tensor)
    Path("m.onnx").write_bytes(model.SerializeToString())
    opened = []
    real = os.open
    monkeypatch.setattr(os, "open", lambda path, *rest, **more: (opened.append(path), real(path, *rest, **more))[1])
    assert read_model("m.onnx").parameters[0].onnx == "w"
    assert not any("passwd" in str(path) for path in opened)
