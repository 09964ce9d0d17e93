"""Make the graphs beside this file: the twins of `torch_twins` as torch's own exporter writes them, without weights.

PYTHONPATH=planner:tests/support python tests/torch/models/make.py     (takes torch and onnxscript)
"""

from pathlib import Path

import onnx
import torch
from tiny_models import tiny_gpt, tiny_llama
from torch_idioms import seeded
from torch_twins import twin


def export_twin(tiny, path):
    export(twin(tiny), torch.tensor(tiny.inputs["input_ids"]), "input_ids", path)


def export(module, given, name, path):
    program = torch.onnx.export(
        module.eval(), (given,), dynamo=True, optimize=False, input_names=[name], opset_version=20
    )
    program.save(path)
    model = onnx.load(path)
    kept = {"pkg.torch.onnx.name_scopes", "pkg.onnxscript.optimizer.folded_from"}
    for node in model.graph.node:
        entries = [(entry.key, entry.value) for entry in node.metadata_props if entry.key in kept]
        del node.metadata_props[:]
        for key, value in entries:
            node.metadata_props.add(key=key, value=value)
    for tensor in model.graph.initializer:
        if tensor.name in module.state_dict():
            tensor.ClearField("raw_data")
            tensor.data_location = onnx.TensorProto.EXTERNAL
            tensor.external_data.add(key="location", value="absent.bin")
    onnx.save(model, path)


if __name__ == "__main__":
    folder = Path(__file__).parent
    export_twin(tiny_gpt(), folder / "gpt.onnx")
    export_twin(tiny_llama(tied=True), folder / "llama_tied.onnx")
    export(*seeded(), "pixels", folder / "vision.onnx")
