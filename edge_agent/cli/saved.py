"""The output of `edge-agent try --save`: a model folder, and commented settings to start from.

Both are only readable by their owner, because a source may contain a camera's password.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import quote, urlsplit

from ..config.load import load as load_settings
from ..config.settings import Broker
from ..core.errors import AgentError, UsageError
from ..core.files import write_new
from ..core.names import safe_name
from ..models.decoders import BOXED, LABELED
from ..models.importing import ImportedModel, copy_folder
from ..models.manifest import ModelFolder
from ..models.manifest import load as load_manifest
from ..sources.spec import SourceSpec

SETTINGS = "edge-agent.toml"
MODELS = "models"
_TEMPLATE = """\
# Settings of edge-agent, made by `edge-agent try`. docs/settings.md describes every key.
#
#   edge-agent check --config {file}     says whether all of it is fit to run
#   edge-agent run --config {file}       runs it

# device_id = "edge-01"       # default: the hostname
state_dir = "state"           # what the agent keeps, beside this file; not for a service
models_dirs = ["models"]      # each folder in it with a model.toml is a model

[broker]
{url}  # mqtts:// for TLS
# username = "edge-01"
# password = "…"              # better: systemd credential broker.password

[[pipelines]]
{name}
{source}
{model}
{picture}# qos = 1                     # 1: results wait on disk while the broker is away
{rule}
# Another source is another table like the one above:
#
# [[pipelines]]
# name = "second"
# source = "{example}"
# {model}
"""
_PICTURE = """\
# rate = 5                    # at most so many results a second; default: as fast as it goes
# roi = [0, 0, 640, 360]      # look only there: x1, y1, x2, y2 in pixels of the source
# snapshot = true             # with every result publish its picture, boxes drawn
"""

_RULE = """
# An event, when that matters (docs/events.md has more):
#
# [[pipelines.rules]]
# name = "seen"
"""


@contextmanager
def new_folder(name: str) -> Iterator[Path]:
    """Make the folder to save to, before any time is spent on its content.

    If the context ends with an error, nothing is left of it.
    """
    folder = Path(name)
    made = [each for each in (folder, *folder.parents) if not each.exists()]
    try:
        folder.mkdir(0o700, parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise UsageError(f"--save: {folder} is there already and not empty; name a new folder")
        folder.chmod(0o700)
    except OSError as problem:
        raise UsageError(f"--save: {folder}: {problem.strerror}; name a new folder") from None
    try:
        yield folder
    except BaseException:
        shutil.rmtree(folder / MODELS, ignore_errors=True)
        with suppress(OSError):
            (folder / SETTINGS).unlink(missing_ok=True)
            for each in made:
                each.rmdir()  # unless others have put files there
        raise


def save(place: Path, imported: ImportedModel, spec: SourceSpec) -> Path:
    """Write a model folder and settings for `run`; return the settings file.

    Raises:
        AgentError: the files cannot be read back.
        OSError: they cannot be written.
    """
    manifest = imported.folder.manifest
    folder, settings = place / MODELS / manifest.name, place / SETTINGS
    copy_folder(imported.folder.path, folder)
    write_new(settings, _text(settings, imported.folder, spec).encode(), 0o600)
    try:
        load_manifest(folder)
        load_settings(settings, {})
    except AgentError as problem:
        raise AgentError(f"--save: what was written cannot be read back: {problem}") from None
    return settings


def pipeline_name(spec: SourceSpec) -> str:
    """Name a pipeline after its source: a file's stem, a device, a camera's host."""
    if spec.path is not None:
        return safe_name(spec.path.stem, "source")
    if spec.scheme.address == "name":
        return safe_name(spec.name.rpartition("/")[2], "source")
    host = urlsplit(spec.text).hostname or ""
    if re.fullmatch(r"[0-9.]+|.*:.*", host):
        return safe_name(f"camera-{host}", "camera")
    return safe_name(host.partition(".")[0], "camera")


def _text(settings: Path, model: ModelFolder, spec: SourceSpec) -> str:
    import tomli_w

    def line(key: str, value: str) -> str:
        return tomli_w.dumps({key: value}).rstrip()

    picture, rule = spec.kind == "picture", list(_rule(model))
    return _TEMPLATE.format(
        file=settings.name,
        url=line("url", str(Broker().url)),
        name=line("name", pipeline_name(spec)),
        source=line("source", _absolute(spec)),
        model=line("model", model.manifest.name),
        picture=_PICTURE if picture else "",
        rule="".join([_RULE, *(f"# {each}\n" for each in rule)]) if rule else "",
        example="rtsp://user:password@camera-2/stream" if picture else "csv:second.csv",
    )


def _rule(model: ModelFolder) -> Iterator[str]:
    """Yield the lines of a rule that suits a model's task; none if its results cause no events."""
    import tomli_w

    task = model.manifest.task
    if task in BOXED:
        yield 'when = "count"               # any object; labels = ["…"]: one of these'
    elif task in LABELED and (model.labels or task != "embedding"):
        label = tomli_w.dumps({"": model.labels[-1] if model.labels else "0"}).partition("= ")[2]
        yield from ['when = "class"', f"labels = [{label.rstrip()}]  # whichever of the model's"]
        if task == "segmentation":
            yield "above = 0.2                  # a fifth of the frame; else: the largest area"
    elif task == "anomaly":
        yield 'when = "anomaly"'
    elif task == "regression":
        value = tomli_w.dumps({"value": model.labels[0] if model.labels else "NAME"}).rstrip()
        yield from ['when = "value"', value, "above = 0.5"]


def _absolute(spec: SourceSpec) -> str:
    """Return a source's text with an absolute path, which is valid wherever the settings are."""
    if spec.path is None:
        return spec.text
    _, mark, query = spec.text.partition("?")
    # Links are not resolved: the name under /dev/v4l/by-id is the permanent one.
    return f"{spec.scheme.name}:{quote(str(spec.path.absolute()))}{mark}{query}"
