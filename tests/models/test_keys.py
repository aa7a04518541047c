"""Keys: made once, read strictly, trusted only while their file is there."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from edge_agent.core.errors import UsageError
from edge_agent.models.packages.keys import TrustedKeys, generate_key, load_private, load_public

DATA = b"package.json as it is"


def test_private_key_is_its_owners_alone(tmp_path: Path) -> None:
    """The private key has mode 0600 whatever the umask, the public one is readable."""
    before = os.umask(0)
    try:
        public = generate_key(tmp_path / "edge.key")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "edge.key").stat().st_mode) == 0o600
    assert public == tmp_path / "edge.key.pub"
    assert stat.S_IMODE(public.stat().st_mode) == 0o644


@pytest.mark.parametrize("there", ["edge.key", "edge.key.pub"])
def test_keys_are_never_overwritten(tmp_path: Path, there: str) -> None:
    """If either file is there, keygen changes nothing and names it."""
    (tmp_path / there).write_text("mine")
    with pytest.raises(UsageError, match=rf"{there}: is there already"):
        generate_key(tmp_path / "edge.key")
    assert [path.name for path in tmp_path.iterdir()] == [there]
    assert (tmp_path / there).read_text() == "mine"


def test_keygen_into_a_missing_folder_is_one_line(tmp_path: Path) -> None:
    """A folder that is not there is named, nothing is made."""
    with pytest.raises(UsageError, match=r"nowhere/edge.key.pub: cannot be written"):
        generate_key(tmp_path / "nowhere" / "edge.key")


def test_files_are_what_openssl_reads(tmp_path: Path) -> None:
    """The private key is PKCS#8 and the public one SPKI: OpenSSL derives the one from the other."""
    public = generate_key(tmp_path / "edge.key")
    assert (tmp_path / "edge.key").read_text().startswith("-----BEGIN PRIVATE KEY-----")
    derived = subprocess.run(
        ["openssl", "pkey", "-in", str(tmp_path / "edge.key"), "-pubout"],
        check=True,
        capture_output=True,
    )
    assert derived.stdout == public.read_bytes()


def test_signature_names_its_key(tmp_path: Path) -> None:
    """Of several trusted keys, in files and folders, the one that signed is named."""
    trusted = tmp_path / "trust.d"
    trusted.mkdir()
    for name in ("a", "b", "c"):
        generate_key(tmp_path / name)
    (tmp_path / "a.pub").rename(trusted / "a.pub")
    (tmp_path / "b.pub").rename(trusted / "b.pub")
    keys = TrustedKeys([trusted, tmp_path / "c.pub"])
    signed = {name: load_private(tmp_path / name).sign(DATA) for name in ("a", "b", "c")}
    assert [keys.read().verify(signed[name], DATA) for name in ("a", "b", "c")] == [
        "a.pub",
        "b.pub",
        "c.pub",
    ]


def test_altered_data_or_signature_names_none(tmp_path: Path) -> None:
    """One flipped bit in the data or the signature, or a wrong length, and no key has signed."""
    public = generate_key(tmp_path / "a")
    keys = TrustedKeys([public])
    signature = load_private(tmp_path / "a").sign(DATA)
    assert keys.read().verify(signature, DATA) == "a.pub"
    assert keys.read().verify(signature, bytes([DATA[0] ^ 1]) + DATA[1:]) is None
    assert keys.read().verify(signature[:-1] + bytes([signature[-1] ^ 1]), DATA) is None
    assert keys.read().verify(signature + b"\0", DATA) is None
    assert keys.read().verify(b"", DATA) is None


def test_removed_key_is_trusted_no_more(tmp_path: Path) -> None:
    """The same TrustedKeys stops trusting a key the moment its file is gone."""
    public = generate_key(tmp_path / "a")
    signature = load_private(tmp_path / "a").sign(DATA)
    keys = TrustedKeys([tmp_path])
    assert keys.read().verify(signature, DATA) == "a.pub"
    public.unlink()
    assert keys.read().verify(signature, DATA) is None


def test_damaged_key_does_not_shut_out_the_others(tmp_path: Path) -> None:
    """A file that is no key, and a place that is not there, are said; good keys still count."""
    generate_key(tmp_path / "good")
    (tmp_path / "bad.pub").write_text("not a key")
    keys = TrustedKeys([tmp_path, tmp_path / "absent.pub"])
    problems = keys.read().problems
    assert keys.read().verify(load_private(tmp_path / "good").sign(DATA), DATA) == "good.pub"
    assert len(problems) == 2
    assert "bad.pub: is no PEM public key" in problems[0]
    assert "absent.pub: no such file" in problems[1]


def test_only_pub_files_of_a_folder_count(tmp_path: Path) -> None:
    """The private key lying in the trusted folder is not looked at."""
    generate_key(tmp_path / "a")
    ring = TrustedKeys([tmp_path]).read()
    assert [Path(name).name for name in ring.keys] == ["a.pub"]
    assert ring.problems == ()


def test_wrong_kinds_of_keys_are_named(tmp_path: Path) -> None:
    """Each thing that is not the expected key says what it is and how to make the right one."""
    generate_key(tmp_path / "a")
    other = rsa.generate_private_key(65537, 2048)
    (tmp_path / "rsa").write_bytes(
        other.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    (tmp_path / "rsa.pub").write_bytes(
        other.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )
    (tmp_path / "locked").write_bytes(
        load_private(tmp_path / "a").private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    (tmp_path / "huge").write_bytes(b"x" * 100_000)
    with pytest.raises(UsageError, match=r"a.pub: is a public key, .*keygen"):
        load_private(tmp_path / "a.pub")
    with pytest.raises(UsageError, match="rsa: is a key of another kind, expected Ed25519"):
        load_private(tmp_path / "rsa")
    with pytest.raises(UsageError, match="locked: is protected by a password"):
        load_private(tmp_path / "locked")
    with pytest.raises(UsageError, match="huge: is too large"):
        load_private(tmp_path / "huge")
    with pytest.raises(UsageError, match="none: no such file"):
        load_private(tmp_path / "none")
    with pytest.raises(UsageError, match="cannot be read: Is a directory"):
        load_private(tmp_path)
    with pytest.raises(UsageError, match="a: is a private key, expected an Ed25519 public"):
        load_public(tmp_path / "a")
    with pytest.raises(UsageError, match=r"rsa.pub: is a key of another kind"):
        load_public(tmp_path / "rsa.pub")
