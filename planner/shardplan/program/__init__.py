"""The program that one device runs: numpy runs it on a simulated mesh, and the ONNX export writes it."""
