"""OpenVINO and ONNX Runtime behind one protocol."""
