"""`edge-agent evidence`: clips and pictures of events, from a device or this state folder."""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from ...core.errors import AgentError, UsageError
from ...core.files import replace_file
from ...core.names import is_name
from ...core.text import printable
from ...mqtt.one_shot import OneShotClient
from ..broker_settings import broker_settings
from ..fleet import Fleet, look_filters, online_targets
from ..options import Options, add_broker, load_settings, positive, positive_int

if TYPE_CHECKING:
    from ...config.settings import Settings

EXAMPLES = (
    "edge-agent evidence list --device edge-01 --since 2h",
    "edge-agent evidence get EVENT --device edge-01 -o clips/",
    "edge-agent evidence export --device edge-01 --pipeline door -o clips/",
)

SUFFIXES = {"picture": ".jpg", "clip": ".mp4"}
UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
WINDOW = 32
"""Blocks of a clip that are requested at a time."""
MOST_BLOCKS = 2**16
"""Most blocks of a clip, of 32 KiB each."""
FORMER_MOST = 500
"""All that a device of 0.2 lists; it says nothing of the rest."""

Kept = Mapping[str, Any]
"""An item of evidence: pipeline, event, kind, bytes, time."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("action", choices=("list", "get", "export"))
    parser.add_argument("event", nargs="?", help="for `get`: an event as in `list`")
    parser.add_argument("--device", metavar="ID", help="default: this device")
    parser.add_argument("--pipeline", metavar="P")
    parser.add_argument("--since", metavar="T", help="20s, 10m, 2h, 7d, or 2026-11-25T08:00")
    parser.add_argument("--latest", type=positive_int, metavar="N", help="no more than N")
    parser.add_argument("-o", dest="out", metavar="DIR", type=Path, default=Path())
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--timeout", type=positive, default=60.0, metavar="S", help="default 60")
    add_broker(parser)


def main(options: Options) -> int:
    """List, or save to a folder; return 1 if something to be saved is missing."""
    if (options.action == "get") != (options.event is not None):
        raise UsageError("get takes one EVENT, list and export take none")
    if options.pipeline is not None and not is_name(options.pipeline):
        raise UsageError(f"--pipeline: {options.pipeline!r} is no name of a pipeline")
    since = 0.0 if options.since is None else _moment(options.since)
    if options.device is None:
        return _finish(options, _Folder(load_settings(options)), since)
    if not is_name(options.device):
        raise UsageError(f"--device: {options.device!r} is no name of a device")
    settings = broker_settings(options)
    with _Device(settings.broker, options.device, options.timeout) as device:
        return _finish(options, device, since)


def _finish(options: Options, place: _Folder | _Device, since: float) -> int:
    kept = [
        each
        for each in place.kept(options.pipeline, since, options.latest)
        if options.event in {None, each["event"]}
    ]
    if options.action != "list" and not kept:
        what = f"nothing of event {options.event}" if options.event else "nothing of that"
        raise AgentError(
            f"{what} is kept; a clip is written evidence.after_s after the end of its event, and "
            "the oldest are deleted when evidence.keep_mb is full"
        )
    if not kept:
        print("nothing of that is kept; evidence.keep_mb says how much may be", file=sys.stderr)
    for each in kept:
        if options.action != "list":
            name = f"{each['pipeline']}-{each['event']}{SUFFIXES[each['kind']]}"
            options.out.mkdir(parents=True, exist_ok=True)
            replace_file(options.out / name, place.read(each))
            each = {**each, "file": str(options.out / name)}  # noqa: PLW2901 - with its place
        if options.json:
            print(json.dumps(each), flush=True)
        else:
            words = (each["time"], each["pipeline"], each["event"], each["kind"])
            print(printable(f"{'  '.join(words)}  {each['bytes'] / 1e6:.2f} MB"), flush=True)
    return 1 if options.action == "export" and not place.whole else 0


class _Folder:
    """The evidence kept on this device."""

    whole = True

    def __init__(self, settings: Settings) -> None:
        self._folder = settings.state / "evidence"
        self._pipelines = [each.name for each in settings.pipelines]

    def kept(self, pipeline: str | None, since: float, latest: int | None) -> list[dict[str, Any]]:
        """Return the kept evidence, the latest first.

        Raises:
            AgentError: there is no such pipeline, and nothing of it is kept.
        """
        from ...core.schema import nearest
        from ...rules.evidence import Evidence

        evidence = Evidence(self._folder)
        if pipeline and pipeline not in self._pipelines and not evidence.list(pipeline=pipeline):
            raise AgentError(
                f"pipeline: there is no {pipeline!r}{nearest(pipeline, self._pipelines)}"
            )
        return evidence.list(pipeline=pipeline, since=since)[:latest]

    def read(self, kept: Kept) -> bytes:
        """Return a file."""
        name = f"{kept['event']}{SUFFIXES[kept['kind']]}"
        return (self._folder / str(kept["pipeline"]) / name).read_bytes()


class _Device:
    """The evidence kept on another device, over the broker."""

    whole = True
    """Whether all of it was listed, as far as it was asked for."""

    def __init__(self, broker: Any, device: str, timeout: float) -> None:
        self._root = f"{broker.topic_root}/{device}"
        self._device = device
        self._timeout = timeout
        self._reply = f"{self._root}/reply/{uuid.uuid4().hex}"
        topics = [f"{self._root}/{each}/#" for each in ("picture", "clip")]
        looked = look_filters(broker.topic_root, device)
        self._client = OneShotClient(broker, [self._reply, *looked, *topics])
        try:
            online_targets(Fleet(self._client, broker.topic_root), device, timeout=timeout)
        except AgentError:
            self._client.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def kept(self, pipeline: str | None, since: float, latest: int | None) -> list[Kept]:
        """Return the kept evidence, the latest first."""
        body: Kept = {"since": since, **({} if pipeline is None else {"pipeline": pipeline})}
        kept: list[Kept] = []
        while True:
            said = self._ask("evidence", body)[0]
            some, before = said.get("kept"), said.get("before")
            if not isinstance(some, list) or not all(map(_is_kept, some)):
                raise self._odd()
            if before is not None and before == body.get("before"):
                continue  # the answer before has come twice
            kept += some
            if before is None or (latest is not None and len(kept) >= latest):
                break
            body = {**body, "before": before}
        asked_more = latest is None or latest > FORMER_MOST
        if "before" not in said and len(kept) == FORMER_MOST and asked_more:
            self.whole = False
            print(
                f"device {self._device} lists the latest {FORMER_MOST} only, and may keep more: "
                "update edge-agent there, or save them on the device itself",
                file=sys.stderr,
            )
        return kept[:latest]

    def _odd(self) -> AgentError:
        return AgentError(f"device {self._device} has answered as no agent does; nothing is taken")

    def read(self, kept: Kept) -> bytes:
        """Return a picture or clip.

        Raises:
            AgentError: it does not come, no longer exists, or is damaged.
        """
        event = kept["event"]
        topic = f"{self._root}/{kept['kind']}/{kept['pipeline']}/{event}"
        if kept["kind"] == "picture":
            return self._ask("picture", {"event": event}, lambda _: [topic])[1][topic]
        blocks: dict[str, bytes] = {}
        while True:
            first = len(blocks)

            def window(said: Kept, first: int = first) -> list[str]:
                count = said.get("blocks")
                if not isinstance(count, int) or not 0 < count <= MOST_BLOCKS:
                    raise self._odd()
                return [f"{topic}/{n}" for n in range(first, min(first + WINDOW, count))]

            body = {"event": event, "first": first, "count": WINDOW}
            said, came = self._ask("fetch", body, window)
            if not came:
                raise self._odd()
            blocks |= came
            if len(blocks) >= said["blocks"]:
                break
        data = b"".join(blocks[f"{topic}/{number}"] for number in range(said["blocks"]))
        if hashlib.sha256(data).hexdigest() != said.get("sha256"):
            raise AgentError(f"device {self._device}: the clip of {event} came damaged; try again")
        return data

    def _ask(
        self, verb: str, body: Kept, topics: Callable[[Kept], list[str]] = lambda _: []
    ) -> tuple[Kept, dict[str, bytes]]:
        """Send a command; return its result, and the messages on the topics in it.

        Raises:
            AgentError: it was refused, or not answered in time.
        """
        sent = {"id": self._reply.rpartition("/")[2], **body}
        self._client.publish(f"{self._root}/in/command/{verb}", json.dumps(sent).encode())
        said: Kept | None = None
        came: dict[str, bytes] = {}
        deadline = time.monotonic() + self._timeout
        while (left := deadline - time.monotonic()) > 0:
            if said is not None and came.keys() >= {*topics(said)}:
                return said, {name: came[name] for name in topics(said)}
            heard = self._client.next(left)
            if heard is None or heard.retained:
                continue
            if heard.topic != self._reply:
                came[heard.topic] = heard.payload
            elif (reply := heard.said("reply")) is None or not {"result", "error"} & reply.keys():
                raise self._odd()
            elif "error" in reply:
                raise AgentError(f"device {self._device}: {reply['error']}")
            else:
                said = reply["result"]
        if said is not None:
            topic = next(name for name in topics(said) if name not in came)
            raise AgentError(
                f"device {self._device} has answered, but nothing came on {topic} within "
                f"{self._timeout:.0f} s; does the broker's access list let it publish there, and "
                "this user read it?"
            )
        raise AgentError(f"device {self._device} has not answered within {self._timeout:.0f} s")


def _is_kept(each: object) -> bool:
    """Whether an entry of a device's list is as an agent gives it; its names become a file's."""
    return (
        isinstance(each, dict)
        and all(isinstance(each.get(key), str) for key in ("pipeline", "event", "kind", "time"))
        and all(is_name(each[key]) for key in ("pipeline", "event"))
        and each["kind"] in SUFFIXES
        and isinstance(each.get("bytes"), int)
    )


def _moment(text: str) -> float:
    """Parse a time in the past; return seconds since 1970."""
    span = re.fullmatch(r"(\d{1,6})([smhd])", text)
    try:
        if span is not None:
            ago = timedelta(**{UNITS[span[2]]: int(span[1])})
            return (datetime.now(UTC) - ago).timestamp()
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        raise UsageError(
            f"--since: {text!r} is no time; write 20s, 10m, 2h, 7d, or 2026-11-25T08:00"
        ) from None
