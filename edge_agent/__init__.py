"""edge-agent: cameras and sensors through INT8 models, results over MQTT.

Start reading at `daemon/agent.py`. The packages, and the ways of a frame, a push and a setting, are
in `docs/architecture.md`.
"""

import os
import sys
from datetime import UTC, datetime

# No telemetry: the box reports to its owner only. ONNX Runtime reads the variable when it is
# imported; OpenVINO sends its telemetry by a package that it can do without.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
# NumPy's OpenBLAS would start a thread per core; they spin while they wait and take the second core
# from the load of a model (measured). Nothing here multiplies large matrices.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

__version__ = "0.2.0"

BUILD_DATE = datetime(2026, 11, 25, tzinfo=UTC)
"""Build date: a clock that shows an earlier time has not been set."""
