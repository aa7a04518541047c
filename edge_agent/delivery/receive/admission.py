"""Admission of packages, by signature, targets, expiry, version, and room. Section 5.

Checked by the receiving thread, and again by the deployer's before anything is unpacked.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from ...core.errors import ModelError
from ...core.names import version_key
from ...inference.prepared.compile import collect
from ...inference.prepared.digests import digests
from ...models.manifest import chosen, variant_kept, variant_words
from ...models.packages.keys import TrustedKeys
from ...models.packages.package import PackageHeader, check_expiry, check_targets, verify_header
from ...models.store.catalog import Catalog
from ...models.store.housekeeping import make_room
from ...models.store.local_blocks import read_front
from ...models.store.pointers import same_version
from ...models.store.store import NOTES, Store


@dataclass(frozen=True, slots=True)
class DeviceIdentity:
    """What packages are checked against on this device."""

    device: str
    profile: str
    here: tuple[str, ...]
    """Variants that suit it, the most specific first."""
    groups: Callable[[], Collection[str]]
    trusted: Callable[[], TrustedKeys]
    allow_unsigned: Callable[[], bool]
    quota_bytes: Callable[[], int]
    pinned: Callable[[], Collection[tuple[str, str]]]
    credible: Callable[[], bool]
    """Whether its clock may be right; see `device.wall_clock`."""
    may_be_behind: Callable[[], bool] = lambda: False

    def check_trust(self, header: bytes, signature: bytes | None) -> None:
        """Raise ModelError unless a package is signed by a key trusted now, or need not be."""
        verify_header(header, signature, self.trusted(), allow_unsigned=self.allow_unsigned())


class Admission:
    """Refuses packages by raising ModelError, whose text is published to the sender."""

    def __init__(self, store: Store, catalog: Catalog, identity: DeviceIdentity) -> None:
        self.store = store
        self.catalog = catalog
        self.identity = identity

    def check(self, header_bytes: bytes, signature: bytes | None) -> PackageHeader | None:
        """Return the header of a package that is admitted; None: wait until the clock is set."""
        identity = self.identity
        identity.check_trust(header_bytes, signature)
        header = PackageHeader.parse(header_bytes)
        check_targets(
            header, device=identity.device, profile=identity.profile, groups=identity.groups()
        )
        if check_expiry(header, now=datetime.now(UTC), credible=identity.credible()) == "wait":
            return None
        if header.expires is not None and identity.may_be_behind():
            return None
        self.check_not_older(header.name, header.version)
        return header

    def check_unsigned(self) -> None:
        """Raise ModelError if packages without a header are not allowed."""
        if not self.identity.allow_unsigned():
            verify_header(b"", None, self.identity.trusted(), allow_unsigned=False)

    def check_not_older(self, name: str, version: str) -> None:
        """Raise ModelError if a higher version has been accepted, in the store or elsewhere.

        The live version, as after a rollback, may come again if its files are damaged.
        """
        live, place = self.store.pointers(name).live, self.store.path(name, version)
        if live and place and same_version(live, version) and self._is_damaged(name, place):
            return
        self.store.check_not_older(name, version)
        for entry in self.catalog.versions(name):
            if (
                entry.accepted
                and entry.version
                and version_key(version) < version_key(entry.version)
            ):
                raise ModelError(
                    f"{name}@{version} is older than {entry.version}, which this device has; "
                    "give it a higher version, or use rollback or activate"
                )

    def check_not_elsewhere(self, name: str, version: str) -> None:
        """Raise ModelError if this version exists elsewhere, as two models would be confused."""
        for entry in self.catalog.entries(name):
            if (
                entry.place != "store"
                and entry.version is not None
                and same_version(entry.version, version)
            ):
                raise ModelError(
                    f"{name}@{version} comes with this device already; give it a higher version"
                )

    def is_here(self, transfer: str, header: PackageHeader, *, phase: str | None) -> bool:
        """Whether the store has exactly this package; a different one never accepted is removed.

        One whose files have changed on the disk does not count: the package replaces it. *phase* is
        that of the same version, if it is live or being deployed.
        """
        name, version = header.name, header.version
        place = self.store.path(name, version)
        if place is None:
            self.check_not_elsewhere(name, version)
            return False
        if self._is_damaged(name, place):
            return False
        other = "with other content"
        if self.store.transfer(name, version) == transfer or self._is_same(header):
            kept, wanted = variant_kept(place) or "", chosen(header.variants, self.identity.here)
            if not header.variants or kept == wanted:
                return True
            other = f"as {variant_words(kept)}, and is to be {variant_words(wanted)} now"
        if phase is not None or self.store.accepted(name, version):
            raise ModelError(
                f"{header.id} is on this device already, {other}; give it a higher version"
            )
        with self.store.locked():
            self.store.discard(name, version)
        return False

    def _is_damaged(self, name: str, place: Path) -> bool:
        """Whether the files of a version in the store have changed since it was installed."""
        try:
            digests(self.store.root, place)
        except ModelError:
            return True
        return any(e.path == place and e.error for e in self.catalog.entries(name))

    def _is_same(self, header: PackageHeader) -> bool:
        """Whether the store has the same content: the same folder packed at another time."""
        path = self.store.path(header.name, header.version)
        if path is None:
            return False
        try:
            known = PackageHeader.parse(read_front(path / NOTES).header)
        except (ModelError, OSError):
            return False
        return known.blocks_sha256 == header.blocks_sha256

    def make_room(self, size: int, transfer: str | None = None) -> None:
        """Make room in the store for *size* more bytes; raise ModelError if that is impossible."""
        make_room(
            self.store,
            size,
            self.identity.quota_bytes(),
            derived=collect.forms,
            keep=self.identity.pinned(),
            transfer=transfer,
        )
