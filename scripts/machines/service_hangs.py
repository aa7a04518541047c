"""A service that hangs: the whole process, or an engine deep in native code."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from nspawn import expect, say, wait
from service_box import DEVICE, PYTHON, UNIT, Box, turns

# Sums its one input, and counts to as many thousand millions before it answers.
WEDGE = """\
import pathlib
import numpy as np, onnx
from onnx import TensorProto, helper, numpy_helper
folder = pathlib.Path("/opt/models/wedge")
folder.mkdir(parents=True, exist_ok=True)
node, value = helper.make_node, helper.make_tensor_value_info
body = helper.make_graph(
    [node("Identity", ["go"], ["go_on"]), node("Sin", ["state"], ["next"])],
    "body",
    [value("count", TensorProto.INT64, []), value("go", TensorProto.BOOL, []),
     value("state", TensorProto.FLOAT, [1, 1, 1])],
    [value("go_on", TensorProto.BOOL, []), value("next", TensorProto.FLOAT, [1, 1, 1])],
)
graph = helper.make_graph(
    [node("Squeeze", ["x"], ["load"]), node("Mul", ["load", "billion"], ["many"]),
     node("Cast", ["many"], ["trips"], to=TensorProto.INT64),
     node("Loop", ["trips", "true", "x"], ["y"], body=body)],
    "wedge",
    [value("x", TensorProto.FLOAT, [1, 1, 1])],
    [value("y", TensorProto.FLOAT, [1, 1, 1])],
    [numpy_helper.from_array(np.float32(1e9), "billion"),
     numpy_helper.from_array(np.array(True), "true")],
)
opset = [helper.make_opsetid("", 17)]
onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), folder / "model.onnx")
(folder / "model.toml").write_text('''
name = "wedge"
version = "1"
task = "raw"
file = "model.onnx"
[input]
channels = ["load"]
window = 1
hop = 1
[output]
decoder = "raw"
''')
"""
LOADS = "/opt/models/loads.csv"
WEDGED = f"""\
[[pipelines]]
name = "wedge"
source = "csv:{LOADS}?loop=1&rate=20"
model = "wedge"
"""


@contextlib.contextmanager
def _watchdog_bites(box: Box, what: str, cause: Callable[[], None]) -> Iterator[None]:
    """See a service that hangs killed, and its status say the truth throughout.

    Meanwhile the cause may be taken away.
    """
    session = box.wait_status("online")["session"]
    restarts = int(box.property("NRestarts"))
    with box.recording(f"edge/{DEVICE}/status") as heard:
        wait("the status now", lambda: turns(heard), 30)
        cause()
        took = wait("the watchdog", lambda: int(box.property("NRestarts")) > restarts, 120)
        yield
        status = box.wait_status("online", session)
        wait("the status to be heard", lambda: len(turns(heard)) >= 3, 30)
        said = turns(heard)
    expect("first", said[0][0::2], ("online", session))
    expect("then", said[1], ("offline", "lost", session))
    expect("at last", said[-1], ("online", "started", status["session"]))
    expect("states", len(said), 3)
    box.results()
    expect("the journal", "Watchdog timeout" in box.run(f"journalctl -u {UNIT} -b"), True)
    say(
        f"ok   {what}: killed by the watchdog after {took:.0f} s, "
        "offline/lost, online/started, results"
    )


def survives_being_stopped_dead(box: Box) -> None:
    """Freeze the whole process."""

    def freeze() -> None:
        box.run(f"kill -STOP {box.property('MainPID')}")

    with _watchdog_bites(box, "SIGSTOP", freeze):
        pass


def survives_a_wedged_engine(box: Box) -> None:
    """Give a model an input over which it hangs, deep in native code."""
    (box.root / "root/wedge.py").write_text(WEDGE)
    good = "load\n" + "0\n" * 200
    loads = box.root / LOADS.removeprefix("/")
    box.run(f"mkdir -p /opt/models; {PYTHON} /root/wedge.py")
    # It serves for ten seconds, and then comes to a row of another kind.
    loads.write_text(good + "1e9\n")
    box.configure("onnxruntime", WEDGED)
    box.restart()
    box.results("wedge")
    with _watchdog_bites(box, "an engine that hangs in native code", lambda: None):
        loads.write_text(good)
    box.results("wedge")
    box.configure("onnxruntime")
    box.restart()
    box.results()
