"""The HTTP endpoints: `/predict`, KServe v2, OpenAI's API, `/metrics`."""

from __future__ import annotations

import asyncio
import hmac
import time
import zlib
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import suppress
from math import ceil
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from .. import __version__
from ..core.errors import AgentError, EngineError, ModelError, RequestError, SampleError
from ..core.names import is_local
from ..core.text import one_line
from ..core.types import Kind
from ..inference.model import Model
from ..mqtt import payloads
from .answers import FULL, MOST, Answers
from .credit import Credit
from .errors import RefusedError, StoppingError, TooLargeError, UnknownModelError, unknown
from .kserve import Inference, metadata
from .openai_http import Piece, TextRequest, error, listed, speaks
from .question import Question, read_question
from .ticket import Answer, Ticket

Handler = Callable[[Request], Awaitable[Response]]
T = TypeVar("T")
OWN = frozenset({b"none", b"same-origin"})
"""What browsers say of a request by their user, or by a page from here."""
HEAD_LENGTH = "inference-header-content-length"
PROMPT_BURST, PROMPT_RATE = 100, 20
"""Refusals in a row that are sent at once, and how many more each second."""
PAUSE_SECONDS = 0.9
"""What a refusal beyond those waits; less than any `Retry-After`."""


def application(
    answers: Answers, token: Callable[[], str], metrics: Callable[[], bytes], *, local: bool
) -> ASGIApp:
    """Build the application; *local*: only this machine can reach it, so that it may be open."""
    return _Guard(_Site(answers, metrics).app, token, local=local)


class _Guard:
    """Rejects requests without the token; without one, those that a web page has a browser send.

    A page of anywhere that is open on this machine could ask here without it, and read the answers
    under a name of its own that it has made lead to this address. Where others can reach it,
    nobody is answered without a token: changed settings may need none at their new address.
    """

    def __init__(self, app: ASGIApp, token: Callable[[], str], *, local: bool) -> None:
        self._app = app
        self._token = token
        self._local = local

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers, wanted = dict(scope["headers"]), self._token()
        host = headers.get(b"host", b"").decode("latin-1")
        origin = headers.get(b"origin", b"").decode("latin-1")
        # For a picture, a script or a link in a page, browsers send no Origin, but this.
        site = headers.get(b"sec-fetch-site", b"none")
        status, why, more = 403, "", {"Connection": "close"}
        if wanted or not self._local:
            scheme, _, shown = headers.get(b"authorization", b"").partition(b" ")
            known = wanted and hmac.compare_digest(shown.strip(), wanted.encode())
            if scheme.lower() != b"bearer" or not known:
                status, why = 401, "a token is needed: Authorization: Bearer …"
                more["WWW-Authenticate"] = "Bearer"
        elif (origin and origin.partition("://")[2] != host) or site not in OWN:
            why = "the request comes from a web page of elsewhere; for those set http.token"
        elif host and not is_local(host) and (scope.get("server") or ("", None))[1]:
            why = f"{host!r} is not this machine; ask localhost, or set http.token"
        if why:
            refusal = JSONResponse(_wrong(scope["path"], status, why), status, more)
            await refusal(scope, receive, send)
            return
        await self._app(scope, receive, send)


class _Site:
    def __init__(self, answers: Answers, metrics: Callable[[], bytes]) -> None:
        self._answers = answers
        self._metrics = metrics
        self._reading = 0
        """Number of bodies being read that name their model, and so are not yet admitted."""
        self._prompt = Credit(time.monotonic)
        model = "/v2/models/{model}"
        version = f"{model}/versions/{{version}}"
        routes = [
            Route("/predict/{model}", self._predict, methods=["POST", "PUT"]),
            Route("/metrics", self._exposition),
            Route("/v2", self._server),
            Route("/v2/", self._server),
            Route("/v2/health/live", self._live),
            Route("/v2/health/ready", self._ready),
            Route("/v1/models", self._listed),
            Route("/v1/models/{model}", self._listed),
        ]
        routes += [
            Route(f"/v1/{path}", self._text, methods=["POST"])
            for path in ("chat/completions", "completions", "embeddings")
        ]
        for path in (model, version):
            routes += [
                Route(path, self._model),
                Route(f"{path}/ready", self._model_ready),
                Route(f"{path}/infer", self._infer, methods=["POST"]),
            ]
        handlers: Any = {
            HTTPException: _refused,
            AgentError: _failed,
            RefusedError: self._busy,
        }
        self.app = Starlette(routes=routes, exception_handlers=handlers)

    async def _predict(self, request: Request) -> Response:
        def parse(body: bytes, model: Model, kind: Kind) -> Question:
            return read_question(body, model, kind)

        def encode(answer: Answer) -> Response:
            try:
                body = payloads.encode(self._answers.result(answer))
            except ValueError:
                raise SampleError("the answer has numbers that JSON does not support") from None
            return Response(body, media_type="application/json")

        return await self._ask(request, parse, encode)

    async def _infer(self, request: Request) -> Response:
        asked: list[Inference] = []

        def parse(body: bytes, model: Model, kind: Kind) -> Question:
            asked.append(Inference(body, request.headers.get(HEAD_LENGTH)))
            return asked[-1].parse(model, kind)

        def encode(answer: Answer) -> Response:
            body, head = asked[-1].encode(answer, request.path_params["model"])
            if head is None:
                return Response(body, media_type="application/json")
            headers = {HEAD_LENGTH: str(head)}
            return Response(body, headers=headers, media_type="application/octet-stream")

        return await self._ask(request, parse, encode)

    async def _ask(
        self,
        request: Request,
        parse: Callable[[bytes, Model, Kind], Question],
        encode: Callable[[Answer], Response],
    ) -> Response:
        """Admit a request before its body is read, and answer it."""
        answers, most = self._answers, self._answers.most_bytes
        length = request.headers.get("content-length", "0")
        ticket = answers.admit(
            request.path_params["model"],
            int(length) if length.isdecimal() else 0,
            request.path_params.get("version"),
        )
        response = _response(ticket, encode)
        try:
            body = await _body(request, most)
            coding = request.headers.get("content-encoding", "")
            answers.ask(
                ticket, lambda model, kind: parse(_inflated(body, coding, most), model, kind)
            )
            return await _kept(request, asyncio.wrap_future(response))
        except ClientDisconnect:
            answers.give_up(ticket)
            return Response(status_code=400)
        except BaseException as problem:
            answers.give_up(ticket, problem if isinstance(problem, AgentError) else None)
            raise

    async def _busy(self, request: Request, problem: RefusedError) -> Response:
        """Refuse a request: at once, or after a pause where very many are refused.

        Callers that ask again at once would take the processor from frames and other callers.
        """
        stopping = isinstance(problem, StoppingError)
        if not stopping and self._prompt.take(PROMPT_RATE, PROMPT_BURST):
            pause = asyncio.ensure_future(asyncio.sleep(PAUSE_SECONDS))
            if "expect" in request.headers:
                await pause  # waiting for the caller to leave would invite the body
            else:
                with suppress(ClientDisconnect):
                    await _kept(request, pause)
        return await _failed(request, problem)

    # OpenAI's API

    async def _text(self, request: Request) -> Response:
        """Answer a request whose body names the model."""
        answers, most = self._answers, self._answers.most_bytes
        length = request.headers.get("content-length", "0")
        answers.check_size(int(length) if length.isdecimal() else 0)
        coding = request.headers.get("content-encoding", "")
        path = request.scope["path"].removeprefix("/v1/")
        if self._reading >= MOST:
            raise RefusedError(FULL, 1.0)
        self._reading += 1
        try:
            body = await _body(request, most)
        except ClientDisconnect:
            return Response(status_code=400)
        finally:
            self._reading -= 1
        asked = await asyncio.to_thread(lambda: TextRequest(path, _inflated(body, coding, most)))
        ticket = answers.admit(asked.model, len(body), asked.version)
        try:
            if asked.stream:
                return await self._stream(request, ticket, asked)
            response = _response(ticket, lambda answer: JSONResponse(asked.encode(answer)))
            answers.ask(ticket, asked.parse)
            return await _kept(request, asyncio.wrap_future(response))
        except ClientDisconnect:
            answers.give_up(ticket)
            return Response(status_code=400)
        except BaseException:
            answers.give_up(ticket)
            raise

    async def _stream(self, request: Request, ticket: Ticket, asked: TextRequest) -> Response:
        """Answer in events, from the first piece on; a failure before that is a normal error."""
        loop, pieces = asyncio.get_running_loop(), asyncio.Queue[Piece]()

        def take(piece: Piece) -> None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(pieces.put_nowait, piece)

        def tell(model: str, text: str) -> None:
            take((model, text))

        ticket.tell = tell
        ticket.future.add_done_callback(take)
        self._answers.ask(ticket, asked.parse)
        first = await _kept(request, asyncio.ensure_future(pieces.get()))
        if isinstance(first, Future) and (problem := first.exception()):
            raise problem
        return StreamingResponse(
            asked.events(first, pieces),
            headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"},  # for proxies
            media_type="text/event-stream",
            background=BackgroundTask(self._answers.give_up, ticket),  # if the caller has gone
        )

    async def _listed(self, request: Request) -> Response:
        found = await asyncio.to_thread(self._speaking)
        name = request.path_params.get("model")
        if name is None:
            return JSONResponse({"object": "list", "data": list(found.values())})
        if name not in found:
            raise UnknownModelError(unknown(name, list(found)))
        return JSONResponse(found[name])

    def _speaking(self) -> dict[str, dict[str, Any]]:
        """Return the live models that take text, as entries of a model list."""
        found = {}
        for name in self._answers.names:
            with suppress(ModelError):  # no version is live; health says so
                folder = self._answers.catalog.live(name)
                if speaks(folder):
                    found[name] = listed(name, folder)
        return found

    # The Open Inference Protocol

    async def _server(self, _request: Request) -> Response:
        extensions = ["binary_tensor_data"]
        return JSONResponse(
            {"name": "edge-agent", "version": __version__, "extensions": extensions}
        )

    async def _live(self, _request: Request) -> Response:
        return JSONResponse({"live": True})

    async def _ready(self, _request: Request) -> Response:
        ready = self._answers.ready
        return JSONResponse({"ready": ready}, 200 if ready else 503)

    async def _model(self, request: Request) -> Response:
        name, version = request.path_params["model"], request.path_params.get("version")
        model, versions = await asyncio.wrap_future(self._answers.look(name, version))
        return JSONResponse(metadata(name, versions, model))

    async def _model_ready(self, request: Request) -> Response:
        name, version = request.path_params["model"], request.path_params.get("version")
        await asyncio.wrap_future(self._answers.look(name, version))
        ready = self._answers.ready
        return JSONResponse({"name": name, "ready": ready}, 200 if ready else 503)

    # Metrics

    async def _exposition(self, _request: Request) -> Response:
        return Response(self._metrics(), media_type="text/plain; version=0.0.4; charset=utf-8")


async def _kept(request: Request, wanted: asyncio.Future[T]) -> T:
    """Wait for something while the caller waits; what is unread of the body is lost.

    Raises:
        ClientDisconnect: the caller has gone.
    """

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    leaving = asyncio.ensure_future(gone())
    try:
        await asyncio.wait((wanted, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not wanted.done():
            raise ClientDisconnect
        return wanted.result()
    finally:
        leaving.cancel()
        wanted.cancel()


def _response(ticket: Ticket, encode: Callable[[Answer], Response]) -> Future[Response]:
    """Return a future that gets the response once the ticket has its answer."""
    response: Future[Response] = Future()
    ticket.future.add_done_callback(lambda done: _encoded(done, encode, response))
    return response


def _encoded(
    done: Future[Answer], encode: Callable[[Answer], Response], response: Future[Response]
) -> None:
    """Make the response from an answer, in the thread that has it."""
    if not response.set_running_or_notify_cancel():
        return  # the caller has gone
    problem = done.exception()
    if problem is not None:
        # Raised here, it would hold this frame, which holds it: the body that a caller has left
        # behind would stay in memory until garbage is next collected.
        response.set_exception(problem)
        return
    try:
        response.set_result(encode(done.result()))
    except Exception as failure:  # noqa: BLE001 - raised in the waiting code
        response.set_exception(failure)


async def _body(request: Request, most: int) -> bytes:
    """Read the body of a request, up to *most* bytes."""
    parts: list[bytes] = []
    left = most
    async for part in request.stream():
        left -= len(part)
        if left < 0:
            raise TooLargeError(f"larger than {most} bytes, which infer.max_mb allows")
        parts.append(part)
    return b"".join(parts)


def _inflated(body: bytes, coding: str, most: int) -> bytes:
    """Return a decompressed body, of up to *most* bytes."""
    coding = coding.lower().removeprefix("x-")
    if coding in {"", "identity"}:
        return body
    if coding not in {"gzip", "deflate"}:
        raise SampleError(f"Content-Encoding: {coding} is not supported; send gzip or deflate")
    inflater = zlib.decompressobj(zlib.MAX_WBITS | (16 if coding == "gzip" else 0))
    try:
        made = inflater.decompress(body, most + 1)
    except zlib.error:
        raise SampleError(f"the body is not {coding}, or damaged") from None
    if len(made) > most:
        raise TooLargeError(f"larger than {most} bytes, which infer.max_mb allows")
    if not inflater.eof:
        raise SampleError("the body is cut short")
    if inflater.unused_data:
        raise SampleError("more follows the compressed body; compress it in one piece")
    return made


def _wrong(path: str, status: int, text: str, **more: Any) -> dict[str, Any]:
    """Return the body of an error, in the format of the API used."""
    return error(status, text, **more) if path.startswith("/v1/") else {"error": text, **more}


async def _refused(request: Request, problem: HTTPException) -> Response:
    body = _wrong(request.scope["path"], problem.status_code, problem.detail)
    return JSONResponse(body, problem.status_code, problem.headers)


async def _failed(request: Request, problem: AgentError) -> Response:
    """Convert an error to a response: status, headers, and text."""
    more: dict[str, Any] = {}
    headers: dict[str, str] = {}
    match problem:
        case RefusedError():
            busy = 503 if request.scope["path"].startswith("/v2/") else 429
            status = 503 if isinstance(problem, StoppingError) else busy
            headers["Retry-After"] = str(ceil(problem.retry_after_s))
            more["retry_after_s"] = round(problem.retry_after_s, 3)
        case UnknownModelError():
            status = 404
        case TooLargeError():
            status = 413
        case SampleError():
            status = 400
        case RequestError() | ModelError() | EngineError():
            status = 503
        case _:
            status = 500
    body = _wrong(request.scope["path"], status, one_line(str(problem)), **more)
    return JSONResponse(body, status, headers)
