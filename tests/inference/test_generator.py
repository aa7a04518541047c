"""Language models: held to golden answers, whatever arithmetic the engine would choose."""

from __future__ import annotations

import json
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_agent.core.errors import ModelError, SampleError
from edge_agent.core.text_findings import Generated
from edge_agent.core.types import Outcome
from edge_agent.models.describing import describe
from edge_agent.models.importing import import_model
from edge_agent.models.manifest import load
from tests.helpers.language_model import language_model
from tests.helpers.processes import children_of
from tests.helpers.small_models import encode_jpeg, plain

pytest.importorskip("openvino_genai")

PROMPTS = [
    *(f"{number} the pump and the gate " * 60 for number in range(2)),
    *(f"the {number} pump" for number in range(6)),
]
LENGTH = 40


def greedy(folder: Path, prompt: str) -> str:
    """Give the most likely answer by the plain network in 32-bit arithmetic, a token at a time."""
    import openvino as ov
    import openvino_genai as genai

    tokenizer = genai.Tokenizer(str(folder))
    exact = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
    request = ov.compile_model(folder / "openvino_model.xml", "CPU", exact).create_infer_request()
    tokens = tokenizer.encode(prompt).input_ids.data.astype(np.int64)
    seen, said = 0, list[int]()
    while len(said) < LENGTH:
        count = seen + tokens.shape[1]
        logits = request.infer(
            {
                "input_ids": tokens,
                "attention_mask": np.ones((1, count), np.int64),
                "position_ids": np.arange(seen, count)[None],
                "beam_idx": np.zeros(1, np.int32),
            }
        )[0]
        seen = count
        said.append(int(logits[0, -1].argmax()))
        tokens = np.array([[said[-1]]], np.int64)
    return str(tokenizer.decode(said))


def test_what_the_plain_network_says_is_golden_on_any_processor(tmp_path: Path) -> None:
    """Long and short ones together, token by token; rounding arithmetic gives way to exact one."""
    from edge_agent.inference.engines.generator import Generator

    folder = language_model(tmp_path / "tiny")
    cases = [
        {"prompt": prompt, "max_tokens": LENGTH, "text": greedy(folder, prompt)}
        for prompt in PROMPTS
    ]
    (folder / "golden.json").write_text(json.dumps(cases))
    generator = Generator(load(folder), max_tokens=LENGTH)
    assert generator.golden == "8 answers as it should be"
    again = "the pump and the gate " * 10
    asked: list[Future[Outcome]] = []

    def hang_up(_model: str, _piece: str) -> None:
        """In the thread that steps it: cancel a question when half of its prompt is computed."""
        if asked:
            asked[0].cancel()
        else:
            asked.append(generator.submit(json.dumps({"prompt": again}).encode()))

    generator.submit(b'{"prompt": "hello"}', tell=hang_up).result(60)
    found = generator.submit(json.dumps({"prompt": again}).encode()).result(60).findings
    assert found.words() == [greedy(folder, again)]
    with pytest.raises(SampleError, match="schema: "):  # the library fails, and it is loaded again
        generator.submit(b'{"prompt": "a", "schema": {"type": 5}}').result(60)
    anew = [generator.submit(json.dumps({"prompt": prompt}).encode()) for prompt in PROMPTS]
    assert [each.result(60).findings.words() for each in anew] == [[case["text"]] for case in cases]
    generator.close()
    generator.join(30)
    cases[7]["text"] = str(cases[7]["text"])[:30] + "something else"
    (folder / "golden.json").write_text(json.dumps(cases))
    with pytest.raises(
        ModelError, match=r"tiny@1: golden: case 7: expected .….+something else., found .…"
    ):
        Generator(load(folder))
    generator = Generator(load(folder), golden=False)
    assert generator.golden is None
    generator.close()


def test_a_short_question_does_not_wait_for_a_long_one(tmp_path: Path) -> None:
    """Nor do two long ones together keep the cache from it."""
    from edge_agent.inference.engines.generator import Generator

    model = Generator(load(language_model(tmp_path / "tiny")), max_tokens=5)
    prompts = {"long": "a" * 4000, "longer": "b" * 4050, "short": "the pump"}
    answers: dict[str, Future[Outcome]] = {}
    done: list[str] = []

    def ask_all(_model: str, _piece: str) -> None:
        """In the thread that steps it: all arrive between the same two steps."""
        for name, prompt in prompts.items() if not answers else ():
            answers[name] = model.submit(json.dumps({"prompt": prompt}).encode())
            answers[name].add_done_callback(lambda _, name=name: done.append(name))  # type: ignore[misc]

    model.submit(b'{"prompt": "hello"}', tell=ask_all).result(60)
    for each in answers.values():
        each.result(60)
    assert done == ["short", "long", "longer"]
    model.close()
    model.join(30)


def test_a_folder_as_its_exporter_leaves_it_is_drafted(tmp_path: Path) -> None:
    """What is missing in it is named."""
    from edge_agent.inference.engines.generator import Generator

    folder = language_model(tmp_path / "tiny")
    (folder / "model.toml").unlink()
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": ["AForCausalLM"]}))
    with (
        pytest.raises(ModelError, match=r"write a model.toml beside it with task = \"generate\""),
        import_model(folder),
    ):
        pass
    (folder / "model.toml").write_text(describe(folder).draft)
    (folder / "config.json").unlink()
    with pytest.raises(ModelError, match=r"config.json is missing beside it; optimum-cli writes"):
        Generator(load(folder))


def test_a_question_larger_than_the_cache_is_refused_at_once(tmp_path: Path) -> None:
    """One that leaves little room gets a short answer."""
    from edge_agent.inference.engines.generator import Generator

    folder = load(language_model(tmp_path / "tiny", width=64))
    model = Generator(folder, kv_cache_mb=1, max_tokens=30)
    found = model.submit(json.dumps({"prompt": "a" * 2040}).encode()).result(60).findings
    assert isinstance(found, Generated)
    assert (found.prompt_tokens, found.tokens, found.finish) == (2040, 8, "length")
    room = "2048 tokens, of which tiny@1 has room for 2048 with its answer"
    with pytest.raises(SampleError, match=f"{room}; shorten the prompt, or raise text.kv_cache_mb"):
        model.submit(json.dumps({"prompt": "a" * 2048}).encode())
    model.close()
    model.join(30)


def test_sampled_answers_differ(tmp_path: Path) -> None:
    """Each question has a seed of its own."""
    from edge_agent.inference.engines.generator import Generator

    model = Generator(load(language_model(tmp_path / "tiny")), max_tokens=40)
    asked = [model.submit(b'{"prompt": "hello", "temperature": 2}') for _ in range(4)]
    assert len({each.result(60).findings.words()[0] for each in asked}) == 4
    model.close()
    model.join(30)


@pytest.mark.parametrize(
    ("schema", "keyword"),
    [
        ({"allOf": [{"type": "object"}, {"required": ["b"]}]}, "allOf"),
        ({"properties": {"a": {"type": "integer", "multipleOf": 5}}}, "multipleOf"),
        ({"anyOf": [{"type": "null"}, {"items": {"not": {"type": "null"}}}]}, "not"),
        ({"$defs": {"if": {"uniqueItems": True}}}, "uniqueItems"),
    ],
)
def test_what_an_answer_would_not_keep_to_is_refused(schema: dict[str, Any], keyword: str) -> None:
    """The library leaves it out of the grammar, and any JSON was answered."""
    from edge_agent.inference.engines.generator_question import checked

    with pytest.raises(SampleError, match=f"schema: {keyword} is not kept to here"):
        checked(json.dumps({"prompt": "a", "schema": schema}).encode())


def test_names_and_values_in_a_schema_are_no_keywords() -> None:
    """Of one part `allOf` says nothing more, as pydantic writes it."""
    from edge_agent.inference.engines.generator_question import checked

    schema = {
        "properties": {"not": {"const": {"if": 1}}, "contains": {"enum": ["multipleOf"]}},
        "$defs": {"if": {"allOf": [{"type": "string"}]}},
    }
    assert checked(json.dumps({"prompt": "a", "schema": schema}).encode())["schema"] == schema


def test_a_schema_that_would_take_long_is_refused() -> None:
    """The library reads it while every other thread waits, those of frames too."""
    from edge_agent.inference.engines.generator_question import checked

    def asked(schema: dict[str, Any]) -> bytes:
        return json.dumps({"prompt": "a", "schema": schema}).encode()

    number = "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
    assert checked(asked({"properties": {"id": {"type": "string", "pattern": number}}}))
    deep: dict[str, Any] = {}
    for _ in range(40):
        deep = {"properties": {"a": deep}}
    wrong: list[dict[str, Any]] = [
        deep,
        {"enum": ["a" * 20_000]},
        {"type": "string", "pattern": "(.{1,1000}){1,1000}"},
        {"patternProperties": {"a{99999}": {}}},
    ]
    for schema in wrong:
        with pytest.raises(SampleError, match="schema: expected a JSON schema of up to 16384"):
            checked(asked(schema))


def test_a_question_about_an_event_shows_its_picture_to_models_that_see(tmp_path: Path) -> None:
    """Its picture changes the answer of a vision-language model; another one is not given it."""
    from edge_agent.answers.own_questions import about
    from edge_agent.inference.engines.generator import Generator

    def say(model: Generator, picture: bytes | None) -> str:
        question = about("hello", picture)(model, "generate")
        found = model.submit(question.data.tobytes(), question.more).result(60).findings
        assert isinstance(found, Generated)
        return found.text

    dark, bright = (encode_jpeg(plain(level)) for level in (20, 220))
    for sees, answers in ((True, 3), (False, 1)):
        folder = language_model(tmp_path / f"sees-{sees}", sees=sees)
        model = Generator(load(folder), max_tokens=20)
        assert len({say(model, picture) for picture in (dark, bright, None)}) == answers
        model.close()
        model.join(30)


def test_a_process_that_hangs_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A question that nobody waits for any more keeps its place until it is."""
    from edge_agent.inference.engines import generator_process

    lost: list[str] = []
    model = generator_process.GeneratorProcess(
        load(language_model(tmp_path / "tiny")),
        lost.append,
        kv_cache_mb=4,
        max_tokens=20,
        max_waiting=1,
        golden=False,
    )
    hello = b'{"prompt": "hello"}'
    assert model.submit(hello).result(60).model == "tiny@1"
    (child,) = children_of(None, generator_process.WORKER)
    child.suspend()
    assert model.submit(hello).cancel()
    model.tick()
    with pytest.raises(generator_process.FullError, match="1 questions wait"):
        model.submit(hello)
    monkeypatch.setattr(generator_process, "HANGS_SECONDS", 0.0)
    model.tick()
    model.join(30)
    assert lost == ["tiny@1: its process ended with SIGKILL; was there too little memory?"]
    with pytest.raises(generator_process.FullError, match="is being unloaded"):
        model.submit(hello)
