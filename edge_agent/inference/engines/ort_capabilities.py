"""What ONNX Runtime can do as an engine; loads it only when asked for its devices."""

from __future__ import annotations

from collections.abc import Mapping

from .capabilities import Capabilities


def _survey() -> tuple[str, Mapping[str, str]]:
    import onnxruntime as ort

    # What this build brings; whether a provider comes up is only seen when a session is made.
    names = ort.get_available_providers()
    return ort.__version__, {name.removesuffix("ExecutionProvider"): name for name in names}


CAPABILITIES = Capabilities(
    title="ONNX Runtime",
    module="edge_agent.inference.engines.ort",
    package="onnxruntime",
    # Builds that bring other providers install the same package under these names.
    distributions=(
        "onnxruntime",
        "onnxruntime-gpu",
        "onnxruntime-openvino",
        "onnxruntime-migraphx",
    ),
    formats={".onnx": "ONNX"},
    survey=_survey,
    drivers={"CUDA": "nvidia", "TENSORRT": "nvidia", "NVTENSORRTRTX": "nvidia", "MIGRAPHX": "amd"},
    plain={"graph_optimization_level": "none"},
    open_batch=True,
    prepared="graph",
    prepared_module="edge_agent.inference.prepared.engine",
    maker_module="edge_agent.inference.prepared.compile.onnx_graph",
    runs_arriving=True,
    quick_module="edge_agent.inference.engines.ort_quick",
    quick_check_module="edge_agent.inference.engines.ort_quick_check",
)
