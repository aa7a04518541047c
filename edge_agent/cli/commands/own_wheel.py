"""The running version as something pip can install: its checkout, or a wheel built here."""

from __future__ import annotations

import base64
import hashlib
import sysconfig
import zipfile
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from ...core.errors import AgentError

_SKIPPED = frozenset({"RECORD", "INSTALLER", "REQUESTED", "direct_url.json"})


def own_source(folder: Path) -> Path:
    """Return what pip is to install.

    Args:
        folder: where a wheel may be put.

    Raises:
        AgentError: this is neither a checkout nor an installed package.
    """
    checkout = Path(__file__).resolve().parents[3]
    if (checkout / "pyproject.toml").is_file():
        return checkout
    try:
        return wheel_of(distribution("edge-agent"), folder)
    except PackageNotFoundError:
        raise AgentError(
            "this is neither a checkout nor an installed package; install it with pip"
        ) from None


def wheel_of(own: Distribution, folder: Path) -> Path:
    """Pack an installed distribution into a wheel again, from its own list of files (PEP 376)."""
    site = Path(sysconfig.get_path("purelib"))
    wheel = folder / f"edge_agent-{own.version}-py3-none-any.whl"
    record: list[str] = []
    info = f"edge_agent-{own.version}.dist-info"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in own.files or []:
            name = file.as_posix()
            if (
                name.startswith("..")
                or "__pycache__" in name
                or (info in name and file.name in _SKIPPED)
            ):
                continue
            data = (site / file).read_bytes() if (site / file).is_file() else file.read_binary()
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record.append(f"{name},sha256={digest},{len(data)}")
            archive.writestr(name, data)
        archive.writestr(f"{info}/RECORD", "\n".join([*record, f"{info}/RECORD,,"]) + "\n")
    return wheel
