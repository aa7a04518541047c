"""Cameras for tests: MJPEG over HTTP in this process, RTSP by GStreamer in one of its own.

Run as a program by the system's Python, which has GStreamer's bindings, this file is the RTSP
server; so nothing but the standard library is imported at its top.
"""

from __future__ import annotations

import base64
import os
import select
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from pathlib import Path
from typing import IO, Any, Self

SYSTEM_PYTHON = "/usr/bin/python3"
BOUNDARY = "picture"
WHITE = (
    "videotestsrc is-live=true pattern=white ! "
    "video/x-raw,format=I420,width=160,height=96,framerate=15/1"
)
H264 = "x264enc tune=zerolatency speed-preset=ultrafast key-int-max=15 threads=1"
FORMS = {
    "udp": f"{WHITE} ! {H264} ! rtph264pay name=pay0 pt=96 config-interval=1",
    "interlaced": f"{WHITE} ! {H264} interlaced=true ! rtph264pay name=pay0 pt=96",
    "mjpeg": f"{WHITE} ! jpegenc ! rtpjpegpay name=pay0 pt=26",
    "sound": "audiotestsrc is-live=true ! alawenc ! rtppcmapay name=pay0 pt=8",
}
"""What an RTSP server has beside its stream, made when somebody asks for it; "udp" takes no TCP."""
RTSP_PACKAGES = (
    "python3-gi gir1.2-gst-rtsp-server-1.0 gir1.2-gstreamer-1.0 gstreamer1.0-rtsp "
    "gstreamer1.0-plugins-good gstreamer1.0-plugins-bad gstreamer1.0-plugins-ugly"
)


def free_port() -> int:
    """Find a TCP port of loopback that nothing uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class MjpegServer:
    """Serves JPEG pictures over and over as multipart/x-mixed-replace, until it is cut."""

    def __init__(
        self,
        pictures: Sequence[bytes],
        *,
        rate: float = 50.0,
        login: str | None = None,
        port: int = 0,
        page: bytes | None = None,
        most: float = float("inf"),
    ) -> None:
        """Serve *pictures* at *rate* a second; *login* is user:password (basic authentication).

        With a *page*, that is all there is to see. After *most* pictures nothing more comes.
        """
        self._pictures = pictures
        self._pause = 1.0 / rate
        self._page = page
        self._most = most
        self._login = login and "Basic " + base64.b64encode(login.encode()).decode()
        self._cut = threading.Event()
        self._connections: list[socket.socket] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server._serve(self)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                """Keep the test's output clean."""

        self._http = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._http.daemon_threads = True
        self.port: int = self._http.server_address[1]
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.cut()

    def url(self, login: str = "") -> str:
        """Give the stream's address, with *login* as user:password."""
        return f"http://{login + '@' if login else ''}127.0.0.1:{self.port}/stream.mjpg"

    @property
    def clients(self) -> int:
        """How many streams have been begun."""
        return len(self._connections)

    def cut(self) -> None:
        """Stop at once: close the streams that run and take no new ones."""
        self._cut.set()
        self._http.shutdown()
        self._http.server_close()
        for connection in self._connections:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue  # the client was faster
        self._thread.join(10)

    def _serve(self, request: BaseHTTPRequestHandler) -> None:
        if self._login and request.headers.get("Authorization") != self._login:
            request.send_response(401)
            request.send_header("WWW-Authenticate", 'Basic realm="camera"')
            request.send_header("Content-Length", "0")
            request.end_headers()
            return
        if self._page is not None:
            request.send_response(200)
            request.send_header("Content-Type", "text/html")
            request.end_headers()
            request.wfile.write(self._page)
            return
        if request.path != "/stream.mjpg":
            request.send_error(404)
            return
        self._connections.append(request.connection)
        request.send_response(200)
        request.send_header("Content-Type", f"multipart/x-mixed-replace; boundary={BOUNDARY}")
        request.end_headers()
        number = 0
        try:
            while not self._cut.wait(self._pause):
                if number >= self._most:
                    continue
                picture = self._pictures[number % len(self._pictures)]
                number += 1
                request.wfile.write(
                    f"--{BOUNDARY}\r\nContent-Type: image/jpeg\r\n"
                    f"Content-Length: {len(picture)}\r\n\r\n".encode()
                )
                request.wfile.write(picture + b"\r\n")
        except OSError:
            return  # the client has gone
        finally:
            request.close_connection = True


def rtsp_missing() -> str | None:
    """Say why there can be no RTSP server here; None if there can."""
    if shutil.which(SYSTEM_PYTHON) is None:
        return f"{SYSTEM_PYTHON} is not installed"
    probe = subprocess.run(
        [SYSTEM_PYTHON, __file__, "--probe"], capture_output=True, text=True, check=False
    )
    if probe.returncode == 0:
        return None
    why = (probe.stderr.strip().splitlines() or ["no reason given"])[-1]
    return f"the GStreamer RTSP server is missing ({why}); apt-get install {RTSP_PACKAGES}"


class RtspServer:
    """A moving test picture, 320 by 240 at 15 frames a second, H.264, from a process of its own.

    With a *clip* (MP4, H.264) it is played instead, once for each first client.
    """

    def __init__(
        self,
        *,
        port: int | None = None,
        login: str = "",
        digest: bool = False,
        clip: Path | None = None,
    ) -> None:
        """Start it and wait until it takes clients.

        *login* is user:password, asked for by Basic authentication or by Digest.
        """
        self.port = port if port is not None else free_port()
        self._process = subprocess.Popen(
            [
                *(SYSTEM_PYTHON, __file__, str(self.port), login, str(clip or "")),
                "digest" if digest else "basic",
            ],
            # The server ends with this pipe, so that it cannot outlive the tests.
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        _expect(self._process, b"ready", seconds=20)

    def url(self, login: str = "", path: str = "stream") -> str:
        """Give the address of the stream, or of one of FORMS, with *login* as user:password."""
        return f"rtsp://{login + '@' if login else ''}127.0.0.1:{self.port}/{path}"

    @property
    def pid(self) -> int:
        """The server's process, to be stopped or killed by a test."""
        return self._process.pid

    def kill(self) -> None:
        """Kill it (SIGKILL): its connections break without a goodbye."""
        self._process.kill()
        self._process.wait(10)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


def _expect(process: subprocess.Popen[bytes], word: bytes, seconds: float) -> None:
    """Wait until the process writes a line that begins with *word*."""
    output: IO[bytes] | None = process.stdout
    assert output is not None
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        readable, _, _ = select.select([output], [], [], max(0.0, deadline - time.monotonic()))
        if readable:
            line = output.readline()
            if line.startswith(word):
                return
            if not line:
                raise RuntimeError(f"the RTSP server ended with {process.wait(10)}")
    process.kill()
    raise TimeoutError(f"the RTSP server was not ready within {seconds} s")


def _serve_rtsp(port: str, login: str, clip: str, way: str) -> None:
    """Serve one stream at /stream until standard input is closed."""
    _, rtsp, glib = _gstreamer()
    factory = rtsp.RTSPMediaFactory()
    factory.set_shared(True)
    pay = "rtph264pay name=pay0 pt=96 config-interval=1"
    factory.set_launch(
        f"( filesrc location={clip} ! qtdemux ! h264parse ! {pay} )"
        if clip
        else "( videotestsrc is-live=true pattern=ball ! "
        "video/x-raw,width=320,height=240,framerate=15/1 ! "
        f"x264enc tune=zerolatency speed-preset=ultrafast key-int-max=15 threads=1 ! {pay} )"
    )
    server = rtsp.RTSPServer()
    server.set_address("127.0.0.1")
    server.set_service(port)
    if login:
        user, _, password = login.partition(":")
        permissions = rtsp.RTSPPermissions()
        for right in ("access", "construct"):
            permissions.add_permission_for_role("viewer", f"media.factory.{right}", True)
        factory.set_permissions(permissions)
        token = rtsp.RTSPToken()
        token.set_string("media.factory.role", "viewer")
        guard = rtsp.RTSPAuth()
        if way == "digest":
            guard.set_supported_methods(
                import_module("gi.repository.GstRtsp").RTSPAuthMethod.DIGEST
            )
            guard.add_digest(user, password, token)
        else:
            guard.add_basic(rtsp.RTSPAuth.make_basic(user, password), token)
        server.set_auth(guard)
    server.get_mount_points().add_factory("/stream", factory)
    for name, launch in FORMS.items():
        form = rtsp.RTSPMediaFactory()
        form.set_launch(f"( {launch} )")
        if name == "udp":
            form.set_protocols(import_module("gi.repository.GstRtsp").RTSPLowerTrans.UDP)
        server.get_mount_points().add_factory(f"/{name}", form)
    if server.attach(None) == 0:
        sys.exit(f"port {port} is taken")
    print("ready", flush=True)
    loop = glib.MainLoop()
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    loop.run()


def _gstreamer() -> tuple[Any, Any, Any]:
    """Load Gst, GstRtspServer and GLib; the bindings are there for the system's Python only."""
    gi: Any = import_module("gi")
    gi.require_version("Gst", "1.0")
    gi.require_version("GstRtspServer", "1.0")
    gst, rtsp, glib = (
        import_module(f"gi.repository.{name}") for name in ("Gst", "GstRtspServer", "GLib")
    )
    gst.init(None)
    return gst, rtsp, glib


def _probe() -> None:
    """Fail where a piece of GStreamer is missing."""
    gst, _, _ = _gstreamer()
    missing = [
        name
        for name in ("videotestsrc", "x264enc", "rtph264pay", "qtdemux", "h264parse", "rtpbin")
        if gst.ElementFactory.find(name) is None
    ]
    if missing:
        sys.exit(f"no element {', '.join(missing)}")


if __name__ == "__main__":
    if sys.argv[1] == "--probe":
        _probe()
    else:
        _serve_rtsp(*sys.argv[1:5])
