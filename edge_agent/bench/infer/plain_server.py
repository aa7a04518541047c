"""The server that anyone would write for a model: Starlette, uvicorn, ONNX Runtime.

Like FastAPI with a plain function, without its type checks: requests go to a thread pool, and each
inference uses one thread. Run as
`python -m edge_agent.bench.infer.plain_server MODEL PORT`.
"""

from __future__ import annotations

import sys
import time

import cv2
import numpy as np
import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ..common.start_script import prepare
from ..pipeline.plain import Script


def main(model: str, port: str) -> None:
    """Answer posted pictures until terminated."""
    script = Script(model, threads=1)

    def answer(body: bytes) -> str:
        taken = time.time()
        picture = cv2.imdecode(np.frombuffer(body, np.uint8), cv2.IMREAD_COLOR)
        tensor, way = prepare(picture, script.how)
        return script.payload(0, taken, script.find(tensor, way, script.infer(tensor)))

    async def predict(request: Request) -> Response:
        body = await run_in_threadpool(answer, await request.body())
        return Response(body, media_type="application/json")

    app = Starlette(routes=[Route("/predict/{model}", predict, methods=["POST"])])
    uvicorn.run(app, host="127.0.0.1", port=int(port), log_level="warning")


if __name__ == "__main__":
    main(*sys.argv[1:])
