"""What OpenVINO can do as an engine; loads it only when asked for its devices."""

from __future__ import annotations

from collections.abc import Mapping

from .capabilities import Capabilities


def _survey() -> tuple[str, Mapping[str, str]]:
    import openvino as ov

    core = ov.Core()
    devices = {
        device: str(core.get_property(device, "FULL_DEVICE_NAME"))
        for device in core.available_devices
    }
    return ov.__version__, devices


CAPABILITIES = Capabilities(
    title="OpenVINO",
    module="edge_agent.inference.engines.ov",
    package="openvino",
    distributions=("openvino",),
    formats={".onnx": "ONNX", ".xml": "OpenVINO IR", ".tflite": "TensorFlow Lite"},
    survey=_survey,
    drivers={"GPU": "intel", "NPU": "npu"},
    virtual_devices=frozenset({"AUTO", "MULTI", "HETERO", "BATCH"}),
    plain={"LP_TRANSFORMS_MODE": "NO"},
    prepared="blob",
    prepared_module="edge_agent.inference.prepared.ov_engine",
    maker_module="edge_agent.inference.prepared.compile.ov_blob",
)
