"""Streams served over RTSP by GStreamer, looped endlessly; run by the system's Python.

That Python has GStreamer's bindings, but not this package: `python3 rtsp_server.py PORT FPS
FOLDER…`, each folder with a file for every frame, whose suffix, h264 or h265, is its codec. Ends
when its standard input is closed.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
import time
from importlib import import_module
from pathlib import Path
from typing import Any


def main(port: str, fps: str, *folders: str) -> None:
    """Serve each folder at /<number>; print "ready" once clients may connect."""
    gi: Any = import_module("gi")
    gi.require_version("GstRtspServer", "1.0")
    gst, rtsp, glib = (
        import_module(f"gi.repository.{name}") for name in ("Gst", "GstRtspServer", "GLib")
    )
    gst.init(None)
    server = rtsp.RTSPServer()
    server.set_address("127.0.0.1")
    server.set_service(port)
    for number, folder in enumerate(folders):
        files = sorted(Path(folder).iterdir())
        codec = files[0].suffix[1:]
        elements = ("appsrc", f"{codec}parse", f"rtp{codec}pay")
        if missing := [each for each in elements if gst.ElementFactory.find(each) is None]:
            sys.exit(f"GStreamer has no {missing[0]}")
        factory = rtsp.RTSPMediaFactory()
        factory.set_shared(False)  # like separate cameras
        factory.set_launch(
            "( appsrc name=source is-live=true do-timestamp=true format=time "
            f"caps=video/x-{codec},stream-format=byte-stream,alignment=au,framerate={fps}/1 ! "
            f"{codec}parse ! rtp{codec}pay name=pay0 pt=96 config-interval=1 )"
        )
        frames = [file.read_bytes() for file in files]
        factory.connect("media-configure", _begin, frames, 1 / int(fps))
        server.get_mount_points().add_factory(f"/{number}", factory)
    if server.attach(None) == 0:
        sys.exit(f"port {port} is taken")
    print("ready", flush=True)  # noqa: T201 - for the parent process
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    glib.MainLoop().run()


def _begin(_factory: Any, media: Any, frames: list[bytes], pause: float) -> None:
    """Push frames as soon as they are requested: before that, the source refuses them."""
    source = media.get_element().get_by_name("source")
    pushing = threading.Thread(target=_push, args=(source, frames, pause), daemon=True)

    def begin(*_: object) -> None:
        source.disconnect(asked)
        pushing.start()

    asked = source.connect("need-data", begin)


def _push(source: Any, frames: list[bytes], pause: float) -> None:
    """Push frames when they are due, until nobody watches."""
    buffer = import_module("gi.repository.Gst").Buffer
    begun = time.monotonic()
    for number, frame in enumerate(itertools.cycle(frames)):
        if int(source.emit("push-buffer", buffer.new_wrapped(frame))) < 0:
            return
        time.sleep(max(0.0, begun + number * pause - time.monotonic()))


if __name__ == "__main__":
    main(*sys.argv[1:])
