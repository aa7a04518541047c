"""The Open Inference Protocol (KServe v2) as bytes: requests to questions, outcomes to answers.

In JSON and with the binary tensor data extension. Independent of HTTP and lanes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np

from ..core.errors import SampleError
from ..core.types import Array, Kind, RawTensors, TensorSpec
from ..inference.model import Model
from .numbers_json import read_large
from .question import Question, to_array
from .ticket import Answer

DATATYPES: Mapping[str, str] = {
    "BOOL": "bool",
    **{
        f"{kind}{size}": f"{kind.lower()}{size}"
        for kind in ("UINT", "INT")
        for size in (8, 16, 32, 64)
    },
    "FP16": "float16",
    "FP32": "float32",
    "FP64": "float64",
}
"""NumPy's name of each datatype; no network here takes BYTES or BF16."""
_NAMES = {dtype: datatype for datatype, dtype in DATATYPES.items()}
MOST_ROWS = 256
"""Limit for one request to a network that takes one row at a time."""
MOST_AXES = 32
"""Limit for a tensor, as in NumPy 1."""


def metadata(name: str, versions: list[str], model: Model) -> dict[str, Any]:
    """Return a model's metadata as the protocol defines it."""
    given = model.manifest.input.given
    return {
        "name": name,
        "versions": versions,
        "platform": model.choice.engine,
        "inputs": [_described(spec) for spec in model.engine.inputs if spec.name not in given],
        "outputs": [_described(spec) for spec in model.engine.outputs],
    }


def _described(spec: TensorSpec) -> dict[str, Any]:
    # A batch of one means any number here: rows are inferred one by one or with those of others.
    shape = [
        -1 if size is None or (size == 1 and place == 0) else size
        for place, size in enumerate(spec.shape)
    ]
    return {"name": spec.name, "datatype": _NAMES.get(spec.dtype, spec.dtype), "shape": shape}


class Inference:
    """A request to `…/infer`."""

    def __init__(self, body: bytes, head: str | None) -> None:
        """Keep the body unparsed.

        Args:
            body: JSON, followed by the binary tensors.
            head: how many bytes of it are JSON, from the header; None: all.
        """
        self._body = body
        self._head = head
        self._asked: dict[str, Any] = {}

    def parse(self, model: Model, kind: Kind) -> Question:
        """Return the question."""
        if self._head is not None and not (self._head.isdecimal() and len(self._head) < 10):
            raise SampleError("Inference-Header-Content-Length: expected a number")
        size = len(self._body) if self._head is None else int(self._head)
        try:
            asked = read_large(self._body[:size])
        except (ValueError, RecursionError):
            raise SampleError("the request is not JSON") from None
        inputs = asked.get("inputs") if isinstance(asked, dict) else None
        if not isinstance(inputs, list) or not all(isinstance(each, dict) for each in inputs):
            raise SampleError("inputs: expected a list of tensors")
        if not isinstance(asked.get("id", ""), str):
            raise SampleError("id: expected a text")
        self._asked = asked
        if kind == "generate":
            raise SampleError(f"{model.id} is of task generate, without tensors")
        known = {spec.name: spec for spec in model.engine.inputs}
        tensors: dict[str, Array] = {}
        rest = memoryview(self._body)[size:]
        for each in inputs:
            name = each.get("name")
            spec = known.get(name) if isinstance(name, str) else None
            if spec is None:
                listed = ", ".join(map(str, known.values()))
                raise SampleError(f"there is no input {name!r}; the inputs: {listed}")
            if spec.name in tensors:
                raise SampleError(f"input {spec.name}: is given twice")
            tensors[spec.name], rest = _tensor(each, spec, rest)
        if len(rest) or not tensors:
            raise SampleError(f"expected the inputs {', '.join(known)} and nothing after them")
        self._check_outputs(model)
        rows = _rows(tensors, known)
        return Question(next(iter(tensors.values())), tensors, raw=True, rows=rows)

    def _check_outputs(self, model: Model) -> None:
        wanted = self._asked.get("outputs", [])
        known = {spec.name for spec in model.engine.outputs}
        if not isinstance(wanted, list) or len(wanted) > len(known):  # repeats cost their size
            raise SampleError("outputs: expected a list that names each once")
        for each in wanted:
            name = each.get("name") if isinstance(each, dict) else None
            if not isinstance(name, str) or name not in known:
                raise SampleError(
                    f"there is no output {name!r}; there is {', '.join(sorted(known))}"
                )
            if "classification" in _parameters(each):
                raise SampleError("classification is not supported; ask POST /predict")
            _check_in_request(f"output {name}", each)

    def encode(self, answer: Answer, name: str) -> tuple[bytes, int | None]:
        """Return the answer, and how many bytes of it are JSON; None: all."""
        found = answer.outcome.findings
        assert isinstance(found, RawTensors)  # noqa: S101 - it was requested
        wanted = self._asked.get("outputs") or [{"name": each} for each in found.tensors]
        all_binary = bool(_parameters(self._asked).get("binary_data_output", False))
        outputs: list[dict[str, Any]] = []
        parts: list[bytes] = []
        for each in wanted:
            array = found.tensors.get(each["name"])
            if array is None:  # of the version that was asked, but another has answered
                raise SampleError(f"outputs: {answer.outcome.model} has no {each['name']!r}")
            output = {
                "name": each["name"],
                "datatype": _NAMES[array.dtype.name],
                "shape": list(array.shape),
            }
            if _parameters(each).get("binary_data", all_binary):
                parts.append(array.tobytes())
                output["parameters"] = {"binary_data_size": len(parts[-1])}
            else:
                output["data"] = array.ravel().tolist()
            outputs.append(output)
        version = answer.outcome.model.partition("@")[2]
        body = {"model_name": name, "model_version": version, "outputs": outputs}
        if "id" in self._asked:
            body["id"] = self._asked["id"]
        try:
            head = json.dumps(body, allow_nan=False).encode()
        except ValueError:
            raise SampleError(
                "an output is not finite, which JSON cannot say; ask for binary data"
            ) from None
        return b"".join([head, *parts]), len(head) if parts else None


def _parameters(given: Mapping[str, Any]) -> Mapping[str, Any]:
    found = given.get("parameters")
    return found if isinstance(found, Mapping) else {}


def _check_in_request(what: str, given: Mapping[str, Any]) -> None:
    if "shared_memory_region" in _parameters(given):
        raise SampleError(f"{what}: shared memory is not supported; send and take the data itself")


def _tensor(given: dict[str, Any], spec: TensorSpec, rest: memoryview) -> tuple[Array, memoryview]:
    """Return one input, and the binary data after it."""
    shape, datatype = given.get("shape"), given.get("datatype")
    if not isinstance(shape, list) or len(shape) > MOST_AXES:
        raise SampleError(f"input {spec.name}: shape: expected a list of up to {MOST_AXES} sizes")
    if not all(type(n) is int and 0 < n < 2**31 for n in shape):
        raise SampleError(f"input {spec.name}: shape: expected a list of sizes")
    if not isinstance(datatype, str) or DATATYPES.get(datatype) != spec.dtype:
        expected = _NAMES.get(spec.dtype, spec.dtype)
        raise SampleError(f"input {spec.name}: expected datatype {expected}, found {datatype!r}")
    _check_in_request(f"input {spec.name}", given)
    size = _parameters(given).get("binary_data_size")
    if size is None:
        if "data" not in given:
            raise SampleError(f"input {spec.name}: holds no data")
        return to_array(given["data"], spec, tuple(shape)), rest
    dtype = np.dtype(spec.dtype)
    needed = prod(shape) * dtype.itemsize
    if type(size) is not int or size != needed:
        raise SampleError(f"input {spec.name}: binary_data_size: expected {needed}, found {size!r}")
    if size > len(rest):
        raise SampleError(
            f"input {spec.name}: expected {size} bytes of binary data, found {len(rest)}"
        )
    # A copy is aligned as engines need it: sums depend on that, and ARM accepts nothing else.
    return np.array(np.frombuffer(rest[:size], dtype).reshape(shape)), rest[size:]


def _rows(tensors: Mapping[str, Array], known: Mapping[str, TensorSpec]) -> int:
    """Return the number of samples in the tensors, for a network that takes one at a time."""
    counts = {array.shape[0] for array in tensors.values() if array.ndim}
    rows = counts.pop() if len(counts) == 1 else 1
    single = all(known[name].shape[:1] == (1,) for name in tensors)
    if rows > MOST_ROWS and single:
        raise SampleError(f"expected at most {MOST_ROWS} rows, found {rows}")
    return rows if single else 1
