"""Files of PyTorch for tests: small networks of colors, and archives that want to do harm."""

from __future__ import annotations

import json
import warnings
import zipfile
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

SIDE = 16
needs_torch = pytest.mark.skipif(
    find_spec("torch") is None or find_spec("onnxscript") is None,
    reason="PyTorch is not installed (extra pytorch), it is several GB",
)
needs_litert = pytest.mark.skipif(
    find_spec("ai_edge_litert") is None, reason="LiteRT is not installed (extra tools)"
)


def trained(steps: int = 150) -> Any:
    """Train a network that says whether red, green or blue is strongest in a picture."""
    import torch
    from torch import nn

    torch.set_num_threads(1)  # so small, it is slower on more, and tests share the processor
    torch.manual_seed(1)
    network = nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 3),
    )
    optimizer = torch.optim.Adam(network.parameters(), 0.02)
    random = np.random.default_rng(5)
    for _ in range(steps):
        labels = random.integers(0, 3, 32)
        pictures = random.uniform(60, 160, (32, 3, SIDE, SIDE)).astype(np.float32)
        pictures[np.arange(32), labels] += 70
        loss = nn.functional.cross_entropy(
            network(torch.from_numpy(pictures / 255)), torch.from_numpy(labels)
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return network.eval()


def exported(path: Path, network: Any, *shapes: tuple[int, ...], **how: Any) -> Path:
    """Save a network as an exported program."""
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(network, tuple(map(torch.zeros, shapes)), **how)
        torch.export.save(program, path)
    return path


def scripted(
    path: Path, network: Any, *shapes: tuple[int, ...], said: Mapping[str, Any] | None = None
) -> Path:
    """Save a network as TorchScript: traced on an input of these shapes; none: compiled.

    Args:
        path: of the file.
        network: to save.
        shapes: of its inputs.
        said: what Ultralytics' exporter would note in the file.

    """
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = (
            torch.jit.trace(network, tuple(map(torch.zeros, shapes)))
            if shapes
            else torch.jit.script(network)
        )
        more = {} if said is None else {"config.txt": json.dumps(said)}
        torch.jit.save(made, str(path), _extra_files=more)
    return path


def rewritten(source: Path, path: Path, change: Callable[[str, bytes], bytes]) -> Path:
    """Write an archive with other members; *change* is given each name, without its folder."""
    with zipfile.ZipFile(source) as before, zipfile.ZipFile(path, "w") as after:
        for info in before.infolist():
            data = change(info.filename.partition("/")[2], before.read(info))
            after.writestr(info.filename, data)
    return path


def archive(path: Path, **members: bytes) -> Path:
    """Write an archive as PyTorch names its members, "__" for a dot and "___" for a slash."""
    with zipfile.ZipFile(path, "w") as made:
        for name, data in members.items():
            made.writestr(f"net/{name.replace('___', '/').replace('__', '.')}", data)
    return path
