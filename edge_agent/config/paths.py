"""The files and folders that settings name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ..core.errors import UsageError
from ..sources.spec import parse_source
from .settings import Settings


def named_paths(settings: Settings) -> Iterator[tuple[str, Path]]:
    """Yield what names a path, and the path, of all that is only read; not `state_dir`."""
    broker = settings.broker
    named = [
        (f"broker.{key}", getattr(broker, key)) for key in ("ca_file", "cert_file", "key_file")
    ]
    named += [("models_dirs", name) for name in settings.models_dirs]
    named += [("trust.keys", name) for name in settings.trust.keys]
    named += [(f"servers[{server.name}].ca_file", server.ca_file) for server in settings.servers]
    yield from ((subject, Path(name)) for subject, name in named if name is not None)
    for pipeline in settings.pipelines:
        try:
            path = parse_source(pipeline.source, settings.base).path
        except UsageError:
            continue  # a wrong source is the matter of `load`
        if path is not None:
            yield f"pipeline {pipeline.name} source", path
