"""A server of models that answers as it is told, also wrongly."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.helpers.certificates import Issued


class Request:
    """What has been asked, and the way to answer it."""

    def __init__(self, handler: BaseHTTPRequestHandler, body: bytes) -> None:
        self._handler = handler
        self.path = handler.path
        self.headers: Mapping[str, str] = dict(handler.headers.items())
        self.body = body
        self.closing: threading.Event

    @property
    def json(self) -> dict[str, Any]:
        loaded: dict[str, Any] = json.loads(self.body)
        return loaded

    def send(self, body: bytes | Mapping[str, Any], status: int = 200, **headers: str) -> None:
        """Answer; underscores in names of headers are dashes."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self._handler.send_response(status)
        for name, value in ({"Content_Length": str(len(data))} | headers).items():
            self._handler.send_header(name.replace("_", "-"), value)
        self._handler.end_headers()
        self.write(data)

    def write(self, data: bytes) -> None:
        """Send bytes as they are."""
        try:
            self._handler.wfile.write(data)
            self._handler.wfile.flush()
        except OSError:
            self._handler.close_connection = True

    def says(self, text: str, **more: Any) -> None:
        """Answer as OpenAI's API does."""
        message = {"role": "assistant", "content": text}
        usage = {"prompt_tokens": 30, "completion_tokens": 12, "total_tokens": 42}
        self.send({"choices": [{"index": 0, "message": message}], "usage": usage, **more})


Answer = Callable[[Request], object]


class ModelServer:
    """Answers each request by the next of *answers*, the last one again and again."""

    def __init__(self, *answers: Answer, tls: Issued | None = None) -> None:
        self.asked: list[Request] = []
        """Posts, as they have come."""
        self.closing = threading.Event()
        self._answers = list(answers)
        self._lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                request = Request(self, self.rfile.read(int(self.headers["Content-Length"])))
                outer.asked.append(request)
                outer.answer(request)

            def do_GET(self) -> None:
                request = Request(self, b"")
                outer.got(request)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                """Say nothing."""

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: Any) -> None:
                """Say nothing: clients hang up on what they do not like."""

        self._server = Server(("127.0.0.1", 0), Handler)
        if tls is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(tls.cert_file, tls.key_file)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        kind = "http" if tls is None else "https"
        self.url = f"{kind}://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def answer(self, request: Request) -> None:
        """Answer a post."""
        request.closing = self.closing
        with self._lock:
            answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        answer(request)

    def got(self, request: Request) -> None:
        """Answer a question about the server itself; of no other model than "m"."""
        if request.path == "/v1/models":
            request.send({"object": "list", "data": self.listed})
        elif request.path == "/v2/models/m/ready":
            request.send(b"")
        elif request.path == "/v2/models/m":
            request.send({"name": "m", "inputs": self.inputs, "outputs": []})
        else:
            request.send({"error": "no such page"}, 404)

    listed: Any = ({"id": "m"},)
    inputs: list[dict[str, Any]] = [  # noqa: RUF012
        {"name": "image", "datatype": "BYTES", "shape": [-1]},
        {"name": "text_input", "datatype": "BYTES", "shape": [-1, 1]},
    ]

    def close(self) -> None:
        """Serve no more."""
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()
