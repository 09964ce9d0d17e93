"""Models written as ONNX text in the tests themselves, and the ones in tests/models."""

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from onnx import parser

from shardplan.errors import ShardplanError
from shardplan.model.read import read_model
from shardplan.model.types import Model

MODELS = Path(__file__).parent.parent / "models"


@pytest.fixture
def proto() -> Callable[..., onnx.ModelProto]:
    """`proto("g (float[4] x) => (float[4] y) { y = Relu(x) }")`, without ONNX's checks."""

    def make(text: str, opset: int = 21, ir_version: int = 10, domains: str = "") -> onnx.ModelProto:
        return parser.parse_model(f'<ir_version: {ir_version}, opset_import: ["" : {opset}{domains}]>\n{text}')

    return make


@pytest.fixture
def read(tmp_path, monkeypatch, proto) -> Callable[..., Model]:
    """Reads a model given as text, bytes or proto; the file is called `m.onnx` in the working directory."""
    monkeypatch.chdir(tmp_path)

    def reader(model, dims=None, **options) -> Model:
        made = proto(model, **options) if isinstance(model, str) else model
        Path("m.onnx").write_bytes(made if isinstance(made, bytes) else made.SerializeToString())
        return read_model("m.onnx", dims or {})

    return reader


@pytest.fixture
def refuse(read) -> Callable[..., str]:
    """The text of the error with which a model is refused; its exit code is 2."""

    def reader(*args, **options) -> str:
        with pytest.raises(ShardplanError) as caught:
            read(*args, **options)
        assert caught.value.exit_code == 2
        return str(caught.value)

    return reader


@pytest.fixture(scope="session")
def zoo() -> Callable[..., Model]:
    """A model of tests/models, read once per session."""
    cache: dict[str, Model] = {}

    def get(name: str) -> Model:
        if name not in cache:
            dims = {"batch": 8, "seq": 1024} if name.endswith("_dyn") else {}
            cache[name] = read_model(MODELS / f"{name}.onnx", dims)
        return cache[name]

    return get
