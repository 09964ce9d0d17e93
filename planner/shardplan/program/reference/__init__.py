"""Single operators on whole values: ONNX's reference evaluator, and definitions where it has none."""
