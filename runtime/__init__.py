"""From an `.om` artefact to tokens; imports no torch and no onnx."""
