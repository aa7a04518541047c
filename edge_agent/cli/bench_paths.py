"""The clip that a measurement plays, and the picture that it draws."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from ..bundled import bundled
from ..errors import SourceError, UsageError
from . import Options


def clip_and_picture(options: Options) -> tuple[Path, Path | None]:
    """Give `--source`, the bundled clip by default, and `--picture`, if one is wanted.

    Raises:
        UsageError: there is no such clip, or the picture cannot be written.

    """
    clip = Path(options.source or bundled("models") / "media" / "conveyor.mp4")
    if not clip.is_file():
        raise UsageError(f"--source: {options.source or clip}: no such clip")
    picture = None if options.picture is None else Path(options.picture)
    if picture is not None and (picture.suffix != ".png" or not picture.parent.is_dir()):
        raise UsageError(
            f"--picture: {picture}: expected a name that ends in .png, in a folder that is there"
        )
    return clip, picture


def need_playable(clip: Path) -> None:
    """See that a clip can be played: agents and scripts would be waited for in vain.

    Raises:
        UsageError: it cannot.

    """
    from ..bench.players import endless
    from ..sources import open_source, parse_source

    try:
        with closing(open_source(parse_source(endless(clip), Path.cwd()))) as source:
            played = source.grab()
    except SourceError as problem:
        raise UsageError(f"--source: {problem}") from None
    if not played:
        raise UsageError(f"--source: {clip}: gives no frame")
