"""edge-agent: cameras and sensors through INT8 models, results over MQTT.

Data flows one way, control the other, and they meet at a frame boundary::

    capture thread            lanes                                   paho's thread
    source --Sample--> [board: newest wins] --> model.infer --> wire --> link --> broker
                                  ^
    link --order--> deploy --> library.activate (swaps the model of a route)

Start reading at `edge_agent.daemon.agent.run`, then `pipeline` and `board`.
Imports point down only; `tests/test_architecture.py` holds the layers.
"""

import os
import sys
from datetime import UTC, datetime

# A box in a cupboard reports to its owner only. ONNX Runtime reads this when it is imported;
# OpenVINO, when it is imported, sends word by a package that it can do without.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
# NumPy's OpenBLAS else starts a thread for each core, and they spin while they wait: the second
# core would be taken from the load of a model (measured). Nothing here multiplies large matrices.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

__version__ = "0.1.0"

BUILD_DATE = datetime(2026, 11, 21, tzinfo=UTC)
"""When this version was made: a clock that shows an earlier time has not been set."""
