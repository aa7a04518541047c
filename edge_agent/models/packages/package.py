"""The header of a package, `package.json`, and its checks: section 5 of the public interface.

The order of checks is the protection: the signature over the bytes of `package.json`, then its
fields, then `package.blocks` by its digest there, then every block by its digest in that list.
Nothing is parsed before the previous step has passed. The first three members are not part of the
blocks; `bytes` counts the stream of all others as in the tar: header, content, and padding of each.
Names and sizes of files are in those headers, and so signed like the contents.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any, Literal

from ...core.constraints import Ge, Le
from ...core.errors import ModelError
from ...core.names import NAME_RULE, is_name, is_version
from ...core.schema import build
from ..manifest import chosen
from .blocks import ENTRY, MAX_BLOCK, MAX_BLOCKS, BlockList
from .keys import SIGNATURE_BYTES, TrustedKeys

HEADER, SIGNATURE, BLOCKS = FRONT_NAMES = ("package.json", "package.sig", "package.blocks")
MAX_HEADER = 16 * 1024
MAX_TARGETS = 64
SCHEMA = 1


Count = Annotated[int, Ge(0), Le(MAX_BLOCKS)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """The part of a package that a device takes."""

    __pydantic_config__ = {"extra": "ignore"}  # noqa: RUF012 - pydantic's own form
    bytes: Annotated[int, Ge(1), Le(MAX_BLOCKS * MAX_BLOCK)]
    """Bytes of its blocks."""
    blocks: tuple[tuple[Count, Count], ...]
    """Ranges in ascending order, both ends included."""

    def has(self, index: int) -> bool:
        """Whether a block is in it."""
        at = bisect_right(self.blocks, index, key=itemgetter(0)) - 1
        return at >= 0 and index <= self.blocks[at][1]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Written:
    """`package.json` as written; keys not listed here are ignored."""

    __pydantic_config__ = {"extra": "ignore"}  # noqa: RUF012 - pydantic's own form
    schema: Literal[1]
    name: str
    version: str
    created: str
    expires: str | None = None
    targets: tuple[str, ...] = ()
    bytes: Annotated[int, Ge(1), Le(MAX_BLOCKS * MAX_BLOCK)]
    blocks: Annotated[int, Ge(1), Le(MAX_BLOCKS)]
    blocks_sha256: str
    variants: Mapping[str, Share] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PackageHeader:
    """The fields of `package.json`."""

    name: str
    version: str
    created: datetime
    expires: datetime | None
    targets: tuple[str, ...]
    """device:ID, profile:NAME or @group; empty: for any device."""
    size: int
    """Bytes of the members after the first three, as in the tar; the sum of the blocks."""
    blocks: int
    blocks_sha256: str
    variants: Mapping[str, Share] = field(default_factory=dict)
    """By variant, what its devices take; under "", those that no variant suits. Empty: the manifest
    has no variants."""

    @classmethod
    def parse(cls, data: bytes) -> PackageHeader:
        """Check and read `package.json`.

        Raises:
            ModelError: it does not conform to section 5 of the interface.
        """
        says = _json(data)
        for key in ("schema", "bytes", "blocks"):
            # Pydantic accepts "7", 7.0, and true as numbers; other readers do not.
            if key in says and type(says[key]) is not int:
                raise ModelError(f"{HEADER}: {key}: expected an integer, found {says[key]!r:.40}")
        written = build(_Written, says, HEADER, ModelError)
        if not is_name(written.name):
            raise ModelError(f"{HEADER}: name: {written.name!r} is not a name ({NAME_RULE})")
        if not is_version(written.version):
            raise ModelError(
                f"{HEADER}: version: {written.version!r} is not a version"
                ' (dot-separated integers: "3" or "1.2")'
            )
        if len(written.targets) > MAX_TARGETS:
            raise ModelError(f"{HEADER}: targets: more than {MAX_TARGETS}; use a group")
        for target in written.targets:
            check_target_form(target, f"{HEADER}: targets")
        if not -(-written.bytes // MAX_BLOCK) <= written.blocks <= written.bytes:
            raise ModelError(
                f"{HEADER}: blocks: {written.blocks} blocks of at most {MAX_BLOCK} bytes cannot"
                f" be {written.bytes} bytes"
            )
        digest = written.blocks_sha256
        if len(digest) != 64 or digest.strip("0123456789abcdef"):
            raise ModelError(f"{HEADER}: blocks_sha256: expected 64 hex digits in lower case")
        _check_shares(written)
        expires = written.expires
        return cls(
            written.name,
            written.version,
            parse_time(written.created, f"{HEADER}: created"),
            None if expires is None else parse_time(expires, f"{HEADER}: expires"),
            written.targets,
            written.bytes,
            written.blocks,
            digest,
            written.variants,
        )

    def block_list(self, data: bytes) -> BlockList:
        """Check `package.blocks` against this header and read it.

        Raises:
            ModelError: it is not the one that this package was made with.
        """
        return BlockList.parse(data, count=self.blocks, total=self.size, sha256=self.blocks_sha256)

    def share(self, here: Sequence[str]) -> Share:
        """Return the share of a device, given the variants that suit it."""
        if not self.variants:
            return Share(bytes=self.size, blocks=((0, self.blocks - 1),))
        return self.variants[chosen(self.variants, here)]

    @property
    def list_bytes(self) -> int:
        """Length of `package.blocks`, bytes."""
        return self.blocks * ENTRY.size

    @property
    def id(self) -> str:
        """name@version."""
        return f"{self.name}@{self.version}"


def _check_shares(written: _Written) -> None:
    """Check that each variant's share lies within the package."""
    if written.variants and "" not in written.variants:
        raise ModelError(f"{HEADER}: variants: devices that no variant suits have no blocks")
    for name, share in written.variants.items():
        last = -1
        for first, end in share.blocks:
            if not last < first <= end < written.blocks:
                raise ModelError(
                    f"{HEADER}: variants.{name}: [{first}, {end}] is no range of"
                    f" {written.blocks} blocks in rising order"
                )
            last = end
        if share.bytes > written.bytes:
            raise ModelError(
                f"{HEADER}: variants.{name}: {share.bytes} bytes of {written.bytes} in all"
            )


def _json(data: bytes) -> Mapping[str, Any]:
    """Parse a JSON object; refuse JSON that parsers disagree about."""
    if len(data) > MAX_HEADER:
        raise ModelError(f"{HEADER}: {len(data)} bytes, at most {MAX_HEADER}")
    try:
        value = json.loads(
            data.decode("utf-8"), object_pairs_hook=_once, parse_constant=_not_a_number
        )
    except (ValueError, RecursionError) as problem:
        raise ModelError(f"{HEADER}: not valid JSON: {problem}") from None
    if not isinstance(value, dict):
        raise ModelError(f"{HEADER}: expected a JSON object")
    if isinstance(value.get("targets"), list):
        value["targets"] = tuple(value["targets"])
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is there twice")
    return found


def _not_a_number(text: str) -> None:
    raise ValueError(f"{text} is not a number")


def parse_time(text: str, where: str) -> datetime:
    """Parse an ISO 8601 time or date; without a zone it is UTC, and a date means midnight.

    Raises:
        ModelError: it is not a time.
    """
    try:
        time = datetime.fromisoformat(text)
        return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
    except (ValueError, OverflowError):
        raise ModelError(
            f"{where}: {text[:40]!r} is not an ISO 8601 time such as 2027-01-31T00:00:00.000Z"
        ) from None


def format_time(time: datetime) -> str:
    """Return a time in the format of the interface: UTC, milliseconds, Z."""
    return time.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def check_target_form(target: str, where: str) -> None:
    """Check that a target is device:ID, profile:NAME or @group.

    Raises:
        ModelError: it is not.
    """
    for prefix in ("device:", "profile:", "@"):
        if target.startswith(prefix) and is_name(target.removeprefix(prefix)):
            return
    raise ModelError(f"{where}: {target[:80]!r} is none of device:ID, profile:NAME, @GROUP")


def transfer_id(header: bytes) -> str:
    """Return the name of a transfer, a digest of the exact bytes of its `package.json`."""
    return hashlib.sha256(header).hexdigest()[:32]


def verify_header(
    header: bytes, signature: bytes | None, trusted: TrustedKeys, *, allow_unsigned: bool
) -> str | None:
    """Verify the signature over the bytes of `package.json`, before they are parsed.

    Returns:
        The file name of the key that signed them; None if it is unsigned and that is allowed.

    Raises:
        ModelError: they are not signed by a trusted key.
    """
    if len(header) > MAX_HEADER:
        raise ModelError(f"{HEADER}: {len(header)} bytes, at most {MAX_HEADER}")
    if signature is None:
        if allow_unsigned:
            return None
        raise ModelError(
            f"the package is unsigned; to trust a signer {trusted.mend} and push or pack with"
            " --key, or set trust.allow_unsigned = true"
        )
    if len(signature) != SIGNATURE_BYTES:
        raise ModelError(
            f"{SIGNATURE}: expected {SIGNATURE_BYTES} bytes, found {len(signature)}; pack it again"
        )
    ring = trusted.read()
    signer = ring.verify(signature, header)
    if signer is not None:
        return signer
    known = ", ".join(sorted(Path(name).name for name in ring.keys)) or "none"
    trouble = f" ({'; '.join(ring.problems)})" if ring.problems else ""
    raise ModelError(
        "the package is signed by no key that this device trusts, or was altered"
        f" (trusted: {known}); to trust the signer {trusted.mend}{trouble}"
    )


def check_targets(
    header: PackageHeader, *, device: str, profile: str, groups: Collection[str]
) -> None:
    """Check that a package is meant for this device.

    Raises:
        ModelError: it is not.
    """
    here = {f"device:{device}", f"profile:{profile}", *(f"@{group}" for group in groups)}
    if header.targets and here.isdisjoint(header.targets):
        raise ModelError(
            f"{header.id} is for {', '.join(header.targets)}; this is {', '.join(sorted(here))}"
        )


def check_expiry(header: PackageHeader, *, now: datetime, credible: bool) -> Literal["ok", "wait"]:
    """Check that a package has not expired.

    Args:
        header: the package's header.
        now: the present time.
        credible: whether *now* can be right; otherwise the push waits.

    Raises:
        ModelError: it has expired.
    """
    if header.expires is None:
        return "ok"
    if not credible:
        return "wait"
    if now >= header.expires:
        raise ModelError(
            f"{header.id} expired at {format_time(header.expires)}; pack it again with --expires"
        )
    return "ok"
