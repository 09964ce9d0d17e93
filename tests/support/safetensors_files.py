"""Write safetensors files without the library, well-formed or not."""

import json
from pathlib import Path

import numpy as np

NAMES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8",
    "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8", "bool": "BOOL",
}  # fmt: skip


def write_safetensors(path: Path, arrays: dict[str, np.ndarray], dtypes: dict[str, str] | None = None, metadata=None):
    """`dtypes`: names of types that numpy does not have, whose bits the arrays carry."""
    table = {"__metadata__": metadata} if metadata else {}
    offset = 0
    for name, array in arrays.items():
        dtype = (dtypes or {}).get(name, NAMES[array.dtype.name])
        table[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [offset, offset + array.nbytes]}
        offset += array.nbytes
    write_raw(path, json.dumps(table), b"".join(np.ascontiguousarray(array).tobytes() for array in arrays.values()))
    return path


def write_raw(path: Path, header: str, data: bytes = b""):
    """A file with any text for a header."""
    text = header.encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def write_indexed(folder: Path, parts: dict[str, dict[str, np.ndarray]], **changes: str):
    """A folder of several files with an index; `changes`: tensor -> file that the index names for it."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {}
    for file, arrays in parts.items():
        write_safetensors(folder / file, arrays)
        weights |= dict.fromkeys(arrays, file)
    index = {"metadata": {"total_size": 0}, "weight_map": weights | changes}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder
