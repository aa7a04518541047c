"""Ed25519 keys (RFC 8032): who may send models to this device.

Private keys are PKCS#8, public ones SubjectPublicKeyInfo, both PEM, as written by OpenSSL.
`cryptography` is imported where it is used, so that other commands start faster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from ...core.errors import UsageError
from ...core.files import sync_folder, write_new
from ...core.plain_file import open_plain_file

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )

    PrivateKey: TypeAlias = Ed25519PrivateKey

T = TypeVar("T")

SIGNATURE_BYTES = 64
_MAX_KEY_BYTES = 16 * 1024


def generate_key(path: Path) -> Path:
    """Generate a key pair: *path*, readable only by its owner, and *path*.pub.

    Returns:
        The path of the public key.

    Raises:
        UsageError: one of the two exists, or cannot be written. Neither is overwritten.
    """
    if not path.name:
        raise UsageError("FILE: names no file; such as push.key")
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    public = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    public_path = path.with_name(f"{path.name}.pub")
    written: list[Path] = []
    try:
        # The public one first: if it already exists, no private key is left without it.
        for place, data, mode in ((public_path, public, 0o644), (path, private, 0o600)):
            _write_key(place, data, mode)
            written.append(place)
        sync_folder(path.parent)
    except BaseException:
        for place in written:
            place.unlink(missing_ok=True)
        raise
    return public_path


def _write_key(path: Path, data: bytes, mode: int) -> None:
    try:
        write_new(path, data, mode)
    except FileExistsError:
        raise UsageError(f"{path}: is there already; a key is never overwritten") from None
    except OSError as problem:
        raise UsageError(f"{path}: cannot be written: {problem.strerror}") from None


def load_private(path: Path) -> Ed25519PrivateKey:
    """Read a private key.

    Raises:
        UsageError: the file contains no key, or one of another kind.
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    mend = "make one with: edge-agent keygen FILE"
    key = _load(path, partial(load_pem_private_key, password=None), "private", "public", mend)
    if not isinstance(key, Ed25519PrivateKey):
        raise UsageError(f"{path}: is a key of another kind, expected Ed25519; {mend}")
    return key


def load_public(path: Path) -> Ed25519PublicKey:
    """Read a public key.

    Raises:
        UsageError: the file contains no key, or one of another kind.
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    mend = "put the .pub file of `edge-agent keygen` there"
    key = _load(path, load_pem_public_key, "public", "private", mend)
    if not isinstance(key, Ed25519PublicKey):
        raise UsageError(f"{path}: is a key of another kind, expected Ed25519; {mend}")
    return key


def _load(path: Path, parse: Callable[[bytes], T], kind: str, other: str, mend: str) -> T:
    from cryptography.exceptions import UnsupportedAlgorithm

    data = _read(path, plain=kind == "public")
    try:
        return parse(data)
    except TypeError:
        raise UsageError(
            f"{path}: is protected by a password, expected a plain PKCS#8 key; {mend}"
        ) from None
    except (ValueError, UnsupportedAlgorithm):
        there = f"{other.upper()} KEY".encode() in data
        found = f"a {other} key" if there else f"no PEM {kind} key"
        raise UsageError(f"{path}: is {found}, expected an Ed25519 {kind} key; {mend}") from None


def _read(path: Path, *, plain: bool) -> bytes:
    try:
        # A private key may come from a pipe; the agent would wait for one without end.
        with open_plain_file(path) if plain else path.open("rb") as file:
            data = file.read(_MAX_KEY_BYTES + 1)
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file") from None
    except OSError as problem:
        raise UsageError(f"{path}: cannot be read: {problem.strerror}") from None
    if len(data) > _MAX_KEY_BYTES:
        raise UsageError(f"{path}: is too large for a key")
    return data


@dataclass(frozen=True, slots=True)
class Keyring:
    """The public keys found when the ring was loaded."""

    keys: Mapping[str, Ed25519PublicKey]
    """Keys by file name."""
    problems: tuple[str, ...]
    """One line for each place without a usable key; the other keys still count."""

    def verify(self, signature: bytes, data: bytes) -> str | None:
        """Return the file name of the key that signed exactly these bytes, or None."""
        from cryptography.exceptions import InvalidSignature

        for name, key in self.keys.items():
            try:
                key.verify(signature, data)
            except InvalidSignature:
                continue
            return Path(name).name
        return None


@dataclass(frozen=True, slots=True)
class TrustedKeys:
    """Where trusted public keys are: *.pub files, or folders of them.

    They are read at every use, so that a key whose file is removed is no longer trusted.
    """

    paths: Sequence[Path]

    @property
    def mend(self) -> str:
        """How to make this device trust a key, as the end of an error."""
        # A missing one is recognized by its name.
        folders = [
            str(path)
            for path in self.paths
            if path.is_dir() or not (path.exists() or path.suffix == ".pub")
        ]
        if folders:
            return f"put its .pub file into {' or '.join(folders)}"
        if self.paths:
            return "add its .pub file to [trust] keys"
        return (
            "put its .pub file into a folder that the settings name, as in "
            'trust.keys = ["/etc/edge-agent/trust.d"]'
        )

    def read(self) -> Keyring:
        """Read all present keys."""
        keys: dict[str, Ed25519PublicKey] = {}
        problems: list[str] = []
        for path in _key_files(self.paths, problems):
            try:
                keys[str(path)] = load_public(path)
            except UsageError as problem:
                problems.append(str(problem))
        return Keyring(keys, tuple(problems))


def _key_files(paths: Iterable[Path], problems: list[str]) -> list[Path]:
    """List the key files that the settings name; record the places that cannot be read."""
    files: list[Path] = []
    for path in paths:
        if not path.is_dir():
            files.append(path)
            continue
        try:
            inside = sorted(path.iterdir())
        except OSError as problem:
            problems.append(f"{path}: cannot be read: {problem.strerror}")
            continue
        files.extend(file for file in inside if file.name.endswith(".pub"))
    return files
