"""Placement, layout and the algebra of moves between layouts: pure values, no ONNX, no seconds."""
