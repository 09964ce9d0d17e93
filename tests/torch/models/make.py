"""Make the graphs beside this file: the twins of `torch_twins` as torch's own exporter writes them, without weights.

PYTHONPATH=planner:tests/support python tests/torch/models/make.py     (takes torch and onnxscript)
"""

from pathlib import Path

import onnx
import torch
import torch_families
import torch_vision
import torch_with_loss
from tiny_models import tiny_gpt, tiny_llama
from torch_twins import twin

from shardplan.torch.planning.onnx_program import onnx_bytes
from shardplan.torch.with_loss import with_loss


def export_twin(tiny, path):
    export(twin(tiny), {"input_ids": torch.tensor(tiny.inputs["input_ids"])}, path)


def export(module, batch, path):
    program = torch.onnx.export(
        module.eval(), tuple(batch.values()), dynamo=True, optimize=False, input_names=list(batch), opset_version=20
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
    vision, pixels = torch_vision.seeded()
    export(vision, {"pixels": pixels}, folder / "vision.onnx")
    for family in ("encoder", "attentive", "residual", "upsampling", "recurrent", "assembled"):
        export(*torch_families.seeded(family), folder / f"{family}.onnx")
    model, ids = torch_with_loss.seeded()
    step = with_loss(model, torch_with_loss.next_token)
    (folder / "gpt_with_loss.onnx").write_bytes(onnx_bytes(step, (ids, ids), {}))
