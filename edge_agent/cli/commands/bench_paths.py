"""What measurements share: the clip or recording, the picture to draw, figures as words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from ...core.bundled import bundled
from ...core.errors import UsageError
from ...models.manifest import load
from ...tools.bars import check_installed
from ..options import Options


def clip_of(options: Options) -> Path:
    """Return `--source`, by default the bundled clip."""
    clip = Path(options.source or bundled("models") / "media" / "conveyor.mp4")
    if not clip.is_file():
        why = "is not a file" if clip.exists() else "no such clip"
        raise UsageError(f"--source: {options.source or clip}: {why}")
    return clip


def picture_of(name: str | None) -> Path | None:
    """Return the place of `--picture`, checked before anything is measured; None: none."""
    picture = None if name is None else Path(name)
    if picture is not None and (picture.suffix != ".png" or not picture.parent.is_dir()):
        raise UsageError(
            f"--picture: {picture}: expected a name that ends in .png, in a folder that is there"
        )
    if picture is not None:
        check_installed()
    return picture


def recording_of(options: Options, models: Sequence[Path]) -> tuple[Path, str] | None:
    """Return the recording that sensor models play, and the source that repeats it for ever.

    It is `--source`, by default the bundled one where all models take windows of a signal. None: a
    clip is played.
    """
    # Not above: it brings NumPy, and a process that times cold starts holds no large library.
    from ...sources.schemes import SCHEMES
    from ...sources.spec import guess_source, parse_source

    if options.source is None:
        if not all(load(model).manifest.input.is_signal for model in models):
            return None
        given = str(bundled("models") / "media" / "bearing.csv")
    else:
        given = options.source
    text = guess_source(given)
    form = SCHEMES.get(text.partition(":")[0].lower())
    if form is None or form.kind != "signal":
        return None
    if form.live:
        raise UsageError(f"--source: {given}: is live; give a recording, which all can be given")
    spec = parse_source(text, Path.cwd())
    if not spec.local.is_file():
        raise UsageError(f"--source: {given}: no such recording")
    query = [part for part in text.partition("?")[2].split("&") if part]
    looped = "&".join([*(part for part in query if not part.startswith("loop=")), "loop=1"])
    return spec.local, f"{spec.scheme.name}:{quote(str(spec.local.resolve()))}?{looped}"


def spread_words(figures: Mapping[str, float], digits: int) -> str:
    """Write the `min`, `median` and `max` of a measurement."""
    least, median, most = (f"{figures[key]:.{digits}f}" for key in ("min", "median", "max"))
    return f"{median} ({least} to {most})"
