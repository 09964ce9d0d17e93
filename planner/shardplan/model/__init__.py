"""Models: from an ONNX file to a `Model` of operators, tensors and parameters with known shapes and checkpoint
names."""
