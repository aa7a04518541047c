"""Servers of models, also such as lie: every one is answered by a line, in its time."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from edge_agent.config.asks import Server
from edge_agent.core.errors import WebError
from edge_agent.rules.servers import MOST_BYTES, Answer, Question, ask, reach
from tests.helpers.certificates import issue
from tests.helpers.model_server import ModelServer, Request
from tests.helpers.no_threads import without_threads
from tests.helpers.support import PATIENCE

KEY = "sk-geheim-0123456789"
QUESTION = Question("What is it?", 'The event, as JSON: {"label":"person"}', b"\xff\xd8picture")
Make = Callable[..., ModelServer]


@pytest.fixture
def serve() -> Iterator[Make]:
    """Make servers that are closed after the test."""
    made: list[ModelServer] = []

    def make(*answers: Any, **more: Any) -> ModelServer:
        made.append(ModelServer(*answers, **more))
        return made[-1]

    yield make
    for each in made:
        each.close()


def openai(server: ModelServer, **more: Any) -> Server:
    """Give the settings of a server with a key."""
    return Server(**{"name": "big", "url": f"{server.url}/v1", "model": "m", "key": KEY} | more)


def kserve(server: ModelServer, url: str = "") -> Server:
    """Give the settings of one of the other kind."""
    return Server(name="big", url=server.url + url, model="m", kind="kserve")


def test_a_question_of_openais_kind(serve: Make) -> None:
    """Prompt, facts and picture are one message; the key is in a header; tokens are counted."""
    server = serve(lambda request: request.says("A person walks.\nSlowly."))
    assert ask(openai(server), QUESTION, PATIENCE) == Answer("A person walks.\nSlowly.", 42)
    assert ask(openai(server), Question("Why?", "facts", None), PATIENCE).tokens == 42
    (pictured, bare) = server.asked
    assert pictured.path == "/v1/chat/completions"
    assert pictured.headers["Authorization"] == f"Bearer {KEY}"
    assert pictured.json["model"] == "m"
    (message,) = pictured.json["messages"]
    prompt, facts, picture = message["content"]
    assert (prompt["text"], facts["text"]) == (QUESTION.prompt, QUESTION.facts)
    head, _, data = picture["image_url"]["url"].partition(",")
    assert head == "data:image/jpeg;base64"
    assert base64.b64decode(data) == QUESTION.picture
    assert bare.json["messages"][0]["content"] == "Why?\n\nfacts"


def test_a_server_that_streams_unasked_is_understood(serve: Make) -> None:
    """Parts of a stream of events are one text."""
    parts = [{"choices": [{"delta": {"content": part}}]} for part in ("A ", "cat", "")]
    lines = [b"data: " + json.dumps(part).encode() + b"\n\n" for part in parts]
    body = b": hello\n\n" + b"".join(lines) + b"data: [DONE]\n\n"
    server = serve(lambda request: request.send(body, Content_Type="text/event-stream"))
    assert ask(openai(server), QUESTION, PATIENCE).text == "A cat"


def drip(request: Request) -> None:
    """Begin an answer that never ends."""
    request.write(b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n")
    while not request.closing.wait(0.02):
        request.write(b" ")


def flood(request: Request) -> None:
    """Give more than anybody wants."""
    request.write(b"HTTP/1.1 200 OK\r\n\r\n")
    for _ in range(MOST_BYTES >> 15):
        request.write(b"[" * (1 << 16))


def stream(request: Request) -> None:
    """Begin an answer that would end with the connection, and never does."""
    request.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
    while not request.closing.wait(0.02):
        request.write(b"data: {}\n\n")


def negative_chunk(request: Request) -> None:
    """Give a chunk whose end is that of the connection."""
    request.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n")
    for _ in range(MOST_BYTES >> 15):
        request.write(b"[" * (1 << 16))


@pytest.mark.parametrize(
    ("answer", "words", "again"),
    [
        (drip, "no answer within", True),
        (lambda request: request.closing.wait(PATIENCE), "no answer within", True),
        (flood, "larger than 256 KiB", True),
        (negative_chunk, "when reading chunk size", True),
        (lambda request: request.write(b"SSH-2.0-OpenSSH\r\n"), "SSH-2.0-OpenSSH", True),
        (lambda request: request.send(b"{", Content_Length="9"), "is cut off", True),
        (lambda request: request.send(b"<html>"), "not a JSON object", False),
        (lambda request: request.send(b"[" * 99_000), "nested|not a JSON object", False),
        (lambda request: request.send(b'{"a": "\\ud800"}'), "not a JSON object", False),
        (lambda request: request.send(b"[1]"), "not a JSON object", False),
        (lambda request: request.send({"choices": []}), "no choices", False),
        (lambda request: request.send({"choices": [{"message": 7}]}), "no choices", False),
        (lambda request: request.says(["a"]), "no choices", False),
        (lambda request: request.says(" "), "is empty", False),
        (lambda request: request.send(b"", 302, Location="/v1/other"), "final address", False),
        (lambda request: request.send({"error": {"message": f"bad {KEY}"}}, 401), r"bad \*", False),
        (lambda request: request.send({"error": "x" * 999}, 500), "answered 500: x{200}$", True),
        (lambda request: request.send(b"\xff", 429, Retry_After="7"), "answered 429", True),
    ],
)
def test_what_is_no_answer_is_one_line(serve: Make, answer: Any, words: str, again: bool) -> None:
    """It says what is wrong, whether to try again, and never the key."""
    server = serve(answer)
    with pytest.raises(WebError, match=words) as raised:
        ask(openai(server), QUESTION, 0.5 if "within" in words else PATIENCE)
    assert raised.value.again == again
    assert raised.value.pause_s == (7 if "429" in words else 0)
    assert KEY not in str(raised.value)
    assert len(server.asked) == 1


def test_a_key_that_a_server_repeats_is_hidden(serve: Make) -> None:
    """What is published and written never holds it."""
    server = serve(lambda request: request.says(f"Your key is {KEY}."))
    assert ask(openai(server), QUESTION, PATIENCE).text == "Your key is ***."


def test_tls_is_verified(serve: Make, tmp_path: Path) -> None:
    """A stranger's certificate is refused before the key is sent; `ca_file` names who signs."""
    authority = issue(tmp_path, "authority")
    server = serve(lambda request: request.says("Yes."), tls=issue(tmp_path, "server", authority))
    with pytest.raises(WebError, match="certificate is not trusted"):
        ask(openai(server), QUESTION, PATIENCE)
    assert server.asked == []
    trusting = openai(server, ca_file=str(authority.cert_file))
    assert ask(trusting, QUESTION, PATIENCE).text == "Yes."
    with pytest.raises(WebError, match="holds no certificate"):
        ask(openai(server, ca_file=__file__), QUESTION, PATIENCE)


@pytest.mark.parametrize("secure", [False, True])
def test_a_slow_answer_that_ends_with_the_connection_ended_the_agent(
    serve: Make, tmp_path: Path, secure: bool
) -> None:
    """It is cut off in time, though http.client has let go of the connection by then."""
    authority = issue(tmp_path, "authority")
    server = serve(stream, tls=issue(tmp_path, "server", authority) if secure else None)
    with pytest.raises(WebError, match=r"no answer within 0\.5 s"):
        ask(openai(server, ca_file=str(authority.cert_file)), QUESTION, 0.5)


def test_a_server_is_not_asked_where_no_thread_is_allowed(serve: Make) -> None:
    """The agent ended at the first event."""
    server = serve(lambda request: request.says("Yes."))
    # What the server needs to answer is there before.
    with without_threads(), pytest.raises(WebError, match="allows no further thread"):
        ask(openai(server), QUESTION, PATIENCE)
    assert server.asked == []


def outputs(*found: tuple[str, list[Any]]) -> Callable[[Request], None]:
    """Answer with these outputs."""
    listed = [{"name": name, "datatype": "BYTES", "data": data} for name, data in found]
    return lambda request: request.send({"model_name": "m", "outputs": listed})


def test_a_question_of_kserves_kind(serve: Make) -> None:
    """Picture and prompt go to the inputs that fit, as binary tensors; texts come back."""
    server = serve(outputs(("text_output", ["A person."]), ("score", [0.5])))
    assert ask(kserve(server, "/v2"), QUESTION, PATIENCE) == Answer("A person.")
    (asked,) = server.asked
    assert asked.path == "/v2/models/m/infer"
    length = int(asked.headers["Inference-Header-Content-Length"])
    declared = json.loads(asked.body[:length])["inputs"]
    assert [(each["name"], each["shape"]) for each in declared] == [
        ("image", [1]),
        ("text_input", [1, 1]),
    ]
    rest, found = asked.body[length:], []
    for each in declared:
        size = each["parameters"]["binary_data_size"]
        (inner,) = struct.unpack("<I", rest[:4])
        found.append(rest[4:size])
        assert inner == size - 4
        rest = rest[size:]
    assert found == [QUESTION.picture, QUESTION.prompt.encode()]
    assert rest == b""


@pytest.mark.parametrize(
    ("inputs", "answer", "words"),
    [
        (None, outputs(("scores", [[0.25, 0.75]])), '{"scores": [0.25, 0.75]}'),
        (None, outputs(("scores", [0.5] * 65)), "65 numbers and no text"),
        (None, outputs(), "is empty"),
        (None, lambda request: request.send({"error": "expects FP32"}, 400), "400: expects FP32"),
        (
            [{"name": "x", "datatype": "FP32", "shape": [1, 9]}],
            outputs(),
            "wants 'x' of FP32",
        ),
        ([{"name": 7}], outputs(), "without name or shape"),
        ([{"name": "jpeg", "datatype": "BYTES", "shape": [1]}] * 17, outputs(), "has 17 inputs"),
        (
            [{"name": "jpeg", "datatype": "UINT8", "shape": [-1, -1]}],
            lambda request: outputs(
                ("shape", [str(json.loads(request.body.partition(b"\xff")[0])["inputs"][0])])
            )(request),
            "'shape': [1, 9]",
        ),
    ],
)
def test_inputs_and_outputs_of_other_kinds(
    serve: Make, inputs: list[dict[str, Any]] | None, answer: Any, words: str
) -> None:
    """Few numbers are told as they are; what cannot be given is named."""
    server = serve(answer)
    server.inputs = inputs or server.inputs
    try:
        said = ask(kserve(server), QUESTION, PATIENCE).text
    except WebError as problem:
        said = str(problem)
    assert words in said


def test_whether_a_server_is_there(serve: Make) -> None:
    """`check` asks for its models, and never for an answer."""
    server = serve(lambda request: request.says("?"))
    assert reach(openai(server), PATIENCE) == "m is there"
    assert reach(kserve(server), PATIENCE) == "m is ready"
    with pytest.raises(WebError, match="does not list the model 'n'; it has m"):
        reach(openai(server, model="n"), PATIENCE)
    with pytest.raises(WebError, match='404; the url usually ends in "/v1"'):
        reach(openai(server, url=server.url), PATIENCE)
    server.listed = 5
    with pytest.raises(WebError, match="it has none"):
        reach(openai(server), PATIENCE)
    server.close()
    with pytest.raises(WebError, match="refused"):
        reach(openai(server), PATIENCE)
    assert server.asked == []
