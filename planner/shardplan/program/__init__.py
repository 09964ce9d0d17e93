"""The program one device runs, written once: a machine of numpy runs it, the ONNX export writes it."""
