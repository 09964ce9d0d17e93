"""Plans as ONNX: annotations in the model's own file, and the program of every rank."""
