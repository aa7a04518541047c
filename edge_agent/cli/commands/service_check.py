"""What `edge-agent check` says of the installed service's user, as it is often run by root."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING

from ...core.files import check_state_folder
from ...device.pressure import read_only
from ..service_user import service_user

if TYPE_CHECKING:
    from ...config.settings import Settings
    from ..check_report import Report


def check_state(report: Report, settings: Settings, file: Path | None) -> None:
    """Check that it can be written, including by the service's user, as we may be root."""
    there = check_state_folder(settings.state)
    if (why := read_only(there)) is not None:
        if there != settings.state:  # the first run would end with this
            why = f"{settings.state}: {os.strerror(errno.EROFS)}"
        mend = "mount -o remount,rw makes it writable; dmesg says why it is not"
        report.line("FAIL", "state_dir", f"{why}; {mend}")
        return
    if there != settings.state:
        report.line("ok", "state_dir", f"{settings.state}, made by the first run")
        return
    text = f"{settings.state}, writable"
    user = service_user() if os.geteuid() == 0 else None
    if user is None:
        report.line("ok", "state_dir", text)
    elif (trouble := user.trouble_writing(settings.state)) is None:
        report.line("ok", "state_dir", f"{text} by {user.name}, too")
    else:
        own = file is not None and user.runs(file)
        report.line("FAIL" if own else "note", "state_dir", trouble)


def check_service(report: Report, settings: Settings, file: Path | None) -> None:
    """Check that the installed service, which is not root, may read the files in the settings."""
    from ...config.device_profile import OWN_PROFILES
    from ...config.paths import named_paths

    user = service_user()
    if user is None:
        return
    named = [("profile", Path(OWN_PROFILES)), *named_paths(settings)]
    if file is not None:
        named.insert(1, ("settings", file))
    own, fine = file is not None and user.runs(file), True
    for subject, path in named:
        if (trouble := user.trouble(path)) is not None:
            report.line("FAIL" if own else "note", subject, trouble)
            fine = False
    if own and fine:
        report.line("ok", "service", f"its user, {user.name}, may read all that the settings name")
