"""Clears a device's retained topics on the broker, including Home Assistant's discovery."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from ..config.load import load
from ..config.settings import Settings
from ..core.errors import AgentError
from ..mqtt.one_shot import OneShotClient
from ..mqtt.retained import LEDGER, announced
from ..mqtt.topics import Topics, object_id
from .fleet import Fleet, incomplete


def forget(settings: Settings, device: str, known: Collection[str] = ()) -> tuple[int, bool, str]:
    """Clear the retained topics of a device; if it is online, those of what it does not have.

    Returns:
        How many, whether it is online, and why there may be more; empty: that was all.

    Raises:
        AgentError: the device is online, and nothing can be cleared, or the broker shows nothing.
    """
    topics = Topics(settings.broker.topic_root, device)
    own = f"{topics.root}/{device}/"
    discovery = f"/device/{object_id(topics)}/config"
    # The device may have had another prefix than these settings.
    filters = [f"{own}#", *{f"+{discovery}", f"{settings.homeassistant.prefix}{discovery}"}]
    with OneShotClient(settings.broker, filters) as client:
        fleet = Fleet(client, topics.root)
        fleet.look()
        if fleet.gap and fleet.blind and not known:
            raise AgentError(f"{fleet.blind}; nothing was cleared: clear each topic by its name")
        if fleet.online(device):
            found = _left_over(fleet, topics)
        else:
            # Messages that others have left in its inbox belong to them.
            found = {t for t in fleet.topics.get(device, ()) if not t.startswith(f"{own}in/")}
            found |= {t for t, says in fleet.discovery.items() if _is_of(says, topics.status)}
            found |= set(known)
        # Discovery first: Home Assistant reads the others as states of its entities.
        ordered = sorted(found, key=lambda topic: (topic.startswith(own), topic))
        client.wait_published([client.publish(topic, b"", retain=True) for topic in ordered])
    return len(found), fleet.online(device), incomplete(fleet) if fleet.gap else ""


def _left_over(fleet: Fleet, topics: Topics) -> set[str]:
    """Return the topics of pipelines and models that an online device does not have."""
    had = fleet.present(topics.device)
    if had is None:
        raise AgentError(f"device {topics.device} is online, and has not yet said what it has")
    pipelines, models = had
    named = [(each, pipelines) for each in (topics.source, topics.pipeline, topics.count)]
    own = {topic(name) for topic, names in named for name in (*names, "@device")}
    prefixes = [topic("") for topic, _ in named]
    if models is not None:
        own |= {topics.model(name) for name in models}
        prefixes.append(topics.model(""))
    found = {t for t in fleet.topics.get(topics.device, ()) if t.startswith(tuple(prefixes))} - own
    if not found:
        raise AgentError(
            f"device {topics.device} is online and has all pipelines and models that are retained "
            "of it; it would say it all again"
        )
    return found


def _is_of(says: dict[str, Any], status: str) -> bool:
    """Whether a discovery belongs to the device with this status, not one below another root."""
    listed = says.get("availability")
    return isinstance(listed, list) and any(
        isinstance(each, dict) and each.get("topic") == status for each in listed
    )


def forget_installed(settings: Path, environ: Mapping[str, str]) -> str:
    """Clear the retained topics of this machine's stopped service; return a report.

    *environ* has the variables that the service's unit gives to it.
    """
    read = load(settings, environ)
    topics = Topics(read.broker.topic_root, read.device_id)
    # The device's broker user may not be allowed to read what it has published.
    known = {topics.status, topics.info, topics.health, topics.rollout, topics.config}
    known |= {topics.count(pipeline.name) for pipeline in read.pipelines}
    known.add(topics.pipeline("@device"))
    for pipeline in read.pipelines:
        known |= {topics.source(pipeline.name), topics.pipeline(pipeline.name)}
        known |= {topics.model(arm.name) for arm in pipeline.arms}
    if read.homeassistant.enabled:
        known.add(f"{read.homeassistant.prefix}/device/{object_id(topics)}/config")
    listed = announced(read.state / LEDGER, topics)
    *_, doubt = forget(read, read.device_id, known | (listed or set()))
    said = f"{read.device_id}: its retained topics are cleared on {read.broker.address}"
    if listed is None:
        doubt = f"{read.state / LEDGER}, which lists them, is not there, or is damaged"
    return f"{said}; there may be more: {doubt}" if doubt else said
