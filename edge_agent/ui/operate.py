"""Changes made through the page with `--operate`: commands, and pushes with `edge-agent push`."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path, PurePath
from typing import Any

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from ..core.errors import BrokerError
from ..core.names import is_name, safe_name
from ..core.scratch import scratch_folder
from ..core.text import printable
from ..mqtt.payloads import iso
from .reader import Reader
from .site import Site

VERBS = frozenset({"set", "configure", "rollback", "activate", "snapshot", "reset", "picture"})
PUSHED = frozenset({".tar", ".onnx", ".tflite"})
MOST_PUSH_BYTES = 8 * 2**30
PACKED = b"package.json\0"
"""How a package begins that `edge-agent pack` has made: it is signed already, or is not to be."""
ROLLOUT_VERBS = frozenset({"pause", "abort"})
SHOWN = {"picture": (".jpg", "image/jpeg"), "clip": (".mp4", "video/mp4")}
MOST_LISTED = 200
"""Lines of the list of what is kept; operate.js says where there are more."""
NOT_KEPT = (
    "it is not kept: a clip is written evidence.after_s after the end of its event, and the "
    "oldest are deleted when evidence.keep_mb is full"
)


class Operator:
    """Sends a browser's commands; the devices answer on their topics."""

    def __init__(self, site: Site, reader: Reader, root: str, push: Sequence[str]) -> None:
        """Prepare; nothing is sent yet.

        Args:
            site: receives the progress of pushes.
            reader: has the connection to the broker.
            root: first topic level.
            push: arguments for `edge-agent push` besides the file and the device: key and broker.
        """
        self._site = site
        self._reader = reader
        self._root = root
        self._push = tuple(push)
        self._reach = self._push[2:] if "--key" in self._push else self._push
        self._running: set[asyncio.Task[None]] = set()

    def command(self, asked: dict[str, Any]) -> str:
        """Send a command, or abort a push; return why that is impossible, else ""."""
        verb, device, body = asked.get("do"), asked.get("device"), asked.get("body")
        names = (device, asked.get("id"))
        if not isinstance(body, dict) or not all(isinstance(n, str) and is_name(n) for n in names):
            return "expected a device, an id and a body"
        inbox = f"{self._root}/{device}/in"
        try:
            if verb == "abort" and is_name(str(body.get("transfer"))):
                self._reader.publish(f"{inbox}/push/{body['transfer']}/abort", b"{}")
            elif isinstance(verb, str) and verb in VERBS:
                sent = {**body, "id": asked["id"], "time": iso(time.time_ns())}
                self._reader.publish(f"{inbox}/command/{verb}", json.dumps(sent).encode())
            else:
                return "this page sends no such command"
        except BrokerError as problem:
            return str(problem)
        return ""

    async def push(self, request: Request) -> Response:
        """Receive a model and start pushing it; browsers watching the device see the progress."""
        device, name = (request.query_params.get(key, "") for key in ("device", "name"))
        kind = PurePath(name).suffix.lower()
        if not is_name(device) or kind not in PUSHED:
            words = "a model is a folder, or a file that ends with .tar, .onnx or .tflite"
            return PlainTextResponse(words, 400)
        with ExitStack() as stack:
            folder = stack.enter_context(scratch_folder("page-push"))
            path = folder / f"{safe_name(PurePath(name).stem)}{kind}"
            size = 0
            with path.open("wb") as file:
                async for part in request.stream():
                    size += len(part)
                    if size > MOST_PUSH_BYTES:
                        return PlainTextResponse("too large for a model", 413)
                    file.write(part)
            work = asyncio.create_task(self._run(stack.pop_all(), path, device))
            self._running.add(work)
            work.add_done_callback(self._running.discard)
        return PlainTextResponse("it is being sent", 202)

    async def kept(self, request: Request) -> Response:
        """Answer with the list of a device's kept events, or the picture or clip of one."""
        asked = request.query_params
        device, event = asked.get("device", ""), asked.get("event", "")
        suffix, media = SHOWN.get(asked.get("kind", ""), ("", "application/json"))
        if not is_name(device) or (suffix and not is_name(event)):
            return PlainTextResponse(
                "expected a device, and an event that it keeps something of", 400
            )
        with scratch_folder("page-evidence") as folder:
            words = (
                ("get", event, "-o", str(folder))
                if suffix
                else ("list", "--json", "--latest", str(MOST_LISTED + 1))
            )
            status, said, why = await _ran("evidence", *words, "--device", device, *self._reach)
            files = list(folder.glob(f"*{suffix}")) if suffix else []
            if status or (suffix and not files):
                return PlainTextResponse(why or NOT_KEPT, 502)
            data = files[0].read_bytes() if suffix else b"[%b]" % b",".join(said.splitlines())
        return Response(data, media_type=media)

    async def rollout(self, request: Request) -> Response:
        """Pause or abort a roll-out, signed with the key of pushes."""
        verb, name = (request.query_params.get(key, "") for key in ("verb", "id"))
        if verb not in ROLLOUT_VERBS or not is_name(name):
            return PlainTextResponse("expected a roll-out, to pause or to abort", 400)
        status, said, why = await _ran("rollout", verb, name, *self._push)
        words = printable(said.decode("utf-8", "backslashreplace").strip())
        return PlainTextResponse(why if status else words, 502 if status else 200)

    async def _run(self, stack: ExitStack, path: Path, device: str) -> None:
        """Push a file, and pass on each line that the command prints."""
        command = (sys.executable, "-m", "edge_agent", "push", str(path), "--device", device)
        with stack:
            with path.open("rb") as file:
                is_packed = file.read(len(PACKED)) == PACKED
            child = await asyncio.create_subprocess_exec(
                *(*command, *(self._reach if is_packed else self._push)),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=PIPE,
                stderr=STDOUT,
            )
            try:
                while child.stdout is not None and (line := await child.stdout.readline()):
                    words = line.decode("utf-8", "backslashreplace").rstrip("\n")
                    self._tell(
                        device, path, {"line": printable(words.replace(f"{path.parent}/", ""))}
                    )
                self._tell(device, path, {"ended": await child.wait()})
            finally:
                if child.returncode is None:  # the page ends
                    child.terminate()
                    await child.wait()

    def _tell(self, device: str, path: Path, body: dict[str, Any]) -> None:
        self._site.say(device, ["sent", path.name, body])


async def _ran(*words: str) -> tuple[int | None, bytes, str]:
    """Run `edge-agent`; return exit status, output, and what is wrong."""
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "edge_agent", *words),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=PIPE,
        stderr=PIPE,
    )
    said, wrong = await child.communicate()
    return child.returncode, said, printable(wrong.decode("utf-8", "backslashreplace").strip())
