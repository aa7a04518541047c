"""The clip that a measurement plays, and the picture that it draws."""

from __future__ import annotations

from pathlib import Path

from ...core.bundled import bundled
from ...core.errors import UsageError
from ...tools.bars import check_installed
from ..options import Options


def clip_of(options: Options) -> Path:
    """Return `--source`, by default the bundled clip.

    Raises:
        UsageError: there is no such clip.

    """
    clip = Path(options.source or bundled("models") / "media" / "conveyor.mp4")
    if not clip.is_file():
        why = "is not a file" if clip.exists() else "no such clip"
        raise UsageError(f"--source: {options.source or clip}: {why}")
    return clip


def clip_and_picture(options: Options) -> tuple[Path, Path | None]:
    """Return `--source`, by default the bundled clip, and `--picture`, None where none is wanted.

    Raises:
        UsageError: there is no such clip, the picture cannot be written, or matplotlib is missing.

    """
    clip = clip_of(options)
    picture = None if options.picture is None else Path(options.picture)
    if picture is not None and (picture.suffix != ".png" or not picture.parent.is_dir()):
        raise UsageError(
            f"--picture: {picture}: expected a name that ends in .png, in a folder that is there"
        )
    if picture is not None:
        check_installed()
    return clip, picture
