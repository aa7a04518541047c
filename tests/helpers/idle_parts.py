"""Parts of an agent that are not at work: no broker, no source, no model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from queue import SimpleQueue

from edge_agent.config.settings import Arm, Broker
from edge_agent.config.settings import Pipeline as PipelineSettings
from edge_agent.core.timeline import Timeline
from edge_agent.inference.model import Model
from edge_agent.mqtt.client import Client
from edge_agent.mqtt.connection import ReceivedMessage
from edge_agent.mqtt.topics import Topics
from edge_agent.runtime.pipelines.mqtt_sink import MqttSink
from edge_agent.runtime.pipelines.pipeline import Pipeline
from edge_agent.runtime.pipelines.sinks import Sink, Sinks
from edge_agent.runtime.pipelines.status import Common, Identity
from edge_agent.runtime.scheduler.board import Board
from edge_agent.serving.active import Serving
from edge_agent.sources.spec import parse_source

TOPICS = Topics("edge", "box")


def offline_client(inbox: SimpleQueue[ReceivedMessage | None] | None = None) -> Client:
    """Make a client that has not been told to connect.

    Args:
        inbox: where what arrives would be left; None: it is of no interest.

    """
    return Client(
        Broker(),
        "edge-agent-box",
        status_topic=TOPICS.status,
        status=lambda *_: b"{}",
        filters=list,
        inbox=SimpleQueue() if inbox is None else inbox,
    )


def idle_pipeline(
    name: str,
    source: str,
    folder: Path,
    board: Board[Model],
    client: Client,
    *,
    qos: int = 1,
    sinks: Sequence[Sink] = (),
) -> Pipeline:
    """Make a pipeline whose source is not opened, and whose model is not there.

    Args:
        name: its own.
        source: as in settings.
        folder: that paths are relative to.
        board: where its captures would go.
        client: where its results would go.
        qos: of its results.
        sinks: take its results too.

    """
    spec = parse_source(source, folder)
    identity = Identity("box", "session", TOPICS, Timeline())
    return Pipeline(
        PipelineSettings(name=name, source=source, model="m", qos=qos),
        spec,
        [Serving(Arm("m", None, 1), spec.kind)],
        [],
        Common(identity, board, client, Sinks(MqttSink(client, identity), *sinks)),
    )
