"""Write a bundle: edge-agent and all it needs, in the tested versions, and an installer.

Run by `scripts/bundle`; what is in it stands in `edge_agent/cli/commands/install_bundle.py`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(CHECKOUT))

from edge_agent.cli.commands.install_bundle import (  # noqa: E402
    EXTRAS,
    FACTS,
    HEAD,
    REQUIREMENTS,
    WHEELS,
    this_system,
)

# In one function: of a script that was cut off, nothing is to run.
SCRIPT = """\
#!/bin/sh
# Installs edge-agent {version} as a service, without a network:
#   sudo sh FILE [--config FILE] [--image]
# For {machine}, Python {python}. Behind these lines is a zip archive, which Python runs.
size={size} sha256={sha256}
main() {{
    file=$0
    fail() {{ echo "edge-agent: $file: $1; nothing was changed" >&2; exit 2; }}
    found=$(wc -c <"$file") || exit 2
    [ "$found" -eq $((size + {head})) ] ||
        fail "expected $((size + {head})) bytes, found $found; copy it again"
    [ "$(tail -c +$(({head} + 1)) "$file" | sha256sum)" = "$sha256  -" ] ||
        fail "its content was altered; copy it again"
    for python in python{python} python3; do
        ! command -v "$python" >/dev/null || exec "$python" -I "$file" "$@"
    done
    fail "needs Python {python}, and there is none; install python3"
}}
main "$@"
exit
"""
# Begun by whatever Python there is.
MAIN = """\
import sys

if sys.version_info[:2] != ({major}, {minor}):
    sys.stderr.write(
        "edge-agent: %s: is for Python {python}, found %d.%d; make one on a system like this; "
        "nothing was changed\\n" % (sys.argv[0], sys.version_info[0], sys.version_info[1])
    )
    sys.exit(2)
import tempfile
import zipfile
import zlib

def fail(what):
    sys.stderr.write("edge-agent: %s: %s; nothing was changed\\n" % (sys.argv[0], what))
    sys.exit(2)

try:
    folder = tempfile.TemporaryDirectory(prefix="edge-agent-")
    with zipfile.ZipFile(sys.argv[0]) as bundle, bundle.open({wheel!r}) as file:
        with zipfile.ZipFile(file) as program:
            program.extractall(folder.name)
except (KeyError, zipfile.BadZipFile, zlib.error) as problem:
    fail("is damaged inside (%s); make it again" % problem)
except OSError as problem:
    fail("cannot be unpacked in %s: %s; make room there, or name another folder by TMPDIR="
         % (tempfile.tempdir or "/tmp", problem.strerror))
with folder:
    sys.path.insert(0, folder.name)
    from edge_agent.cli.main import main

    status = main(["install", "--offline", sys.argv[0], *sys.argv[1:]])
sys.exit(status)
"""


def main() -> int:
    """Gather wheels, and write the file."""
    parser = argparse.ArgumentParser(prog="scripts/bundle", description=__doc__.splitlines()[0])
    parser.add_argument("-o", dest="output", type=Path, required=True, metavar="FILE")
    output: Path = parser.parse_args().output
    if not output.parent.is_dir():
        parser.error(f"{output.parent}: no such folder")
    with tempfile.TemporaryDirectory(prefix="edge-agent-bundle-", dir=output.parent) as name:
        wheels = gather(Path(name))
        written = Path(name) / "bundle"
        write(wheels, written, this_system() | {"glibc": glibc(wheels)})
        digest = hashlib.sha256(written.read_bytes()).hexdigest()
        written.chmod(0o755)
        written.replace(output)
    print(f"{output}: {output.stat().st_size / 1e6:.0f} MB, {len(wheels)} wheels, sha256 {digest}")
    print(f"on the box: sudo sh {output.name}")
    return 0


def gather(folder: Path) -> list[Path]:
    """Build this checkout's wheel, and download the others.

    Raises:
        SystemExit: pip could not.

    """
    # Of each library a wheel: what is compiled here was tested nowhere. One has none, and is Python
    # alone.
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet"]
    done = subprocess.run(
        [
            *(*pip, "--wheel-dir", str(folder), "--only-binary", ":all:"),
            *("--no-binary", "argparse-manpage"),
            *("-c", str(CHECKOUT / "scripts/constraints.txt"), f"{CHECKOUT}{EXTRAS}", "pip"),
        ],
        check=False,
    )
    if done.returncode != 0:
        raise SystemExit("scripts/bundle: pip could not get all wheels; what it said stands above")
    return sorted(folder.glob("*.whl"))


def write(wheels: list[Path], bundle: Path, system: dict[str, str]) -> None:
    """Write the file; of the same wheels the same bytes.

    Args:
        wheels: edge-agent's, pip's, and all others.
        bundle: file to write.
        system: what the wheels are for, as `this_system` gives it.

    """
    (own,) = (wheel for wheel in wheels if wheel.name.startswith("edge_agent-"))
    facts = {"version": own.name.split("-")[1], **system}
    python = system["python"]
    major, minor = python.split(".")
    with bundle.open("w+b") as file:
        file.write(b"\n" * HEAD)
        with zipfile.ZipFile(file, "w") as archive:
            more = {"major": major, "minor": minor, "python": python}
            add(archive, "__main__.py", MAIN.format(wheel=f"{WHEELS}{own.name}", **more).encode())
            add(archive, FACTS, json.dumps(facts, indent=1).encode())
            add(archive, REQUIREMENTS, requirements(wheels).encode())
            for wheel in wheels:
                add(archive, f"{WHEELS}{wheel.name}", wheel.read_bytes())
        size = file.seek(0, 2) - HEAD
        file.seek(HEAD)
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        text = SCRIPT.format(**facts, size=size, sha256=digest, head=HEAD).encode()
        if len(text) > HEAD:
            raise ValueError(f"the script has {len(text)} bytes, more than {HEAD}")
        file.seek(0)
        file.write(text)


def add(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    """Add a member as it is: wheels are compressed already."""
    archive.writestr(zipfile.ZipInfo(name), content)


def requirements(wheels: list[Path]) -> str:
    """Name every wheel but pip's, with its version and digest, as pip takes them."""
    lines = []
    for wheel in wheels:
        name, version = wheel.name.split("-")[:2]
        if name != "pip":
            digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
            lines.append(f"{name}=={version} --hash=sha256:{digest}\n")
    return "".join(lines)


def glibc(wheels: list[Path]) -> str:
    """Return the oldest C library that all wheels run with, by their names (PEP 600)."""
    least = (2, 17)
    for wheel in wheels:
        tags = re.findall(r"manylinux_(\d+)_(\d+)_", wheel.name)
        if tags:
            least = max(least, min((int(major), int(minor)) for major, minor in tags))
    return f"{least[0]}.{least[1]}"


if __name__ == "__main__":
    sys.exit(main())
