"""The custom operators of ONNX domain `pagedom`: one file an operator."""
