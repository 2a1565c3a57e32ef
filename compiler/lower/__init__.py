"""Lowering passes from ONNX with pagedom operators to a target: one pass a file."""
