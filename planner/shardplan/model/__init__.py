"""ONNX file -> `Model`: operators, tensors, parameters; every shape known; names of the checkpoint."""
