"""Names and versions as users write them."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.core.names import default_device_id, is_name, is_version, safe_name, version_key


@pytest.mark.parametrize("text", ["a", "edge-01", "Face.v2_b", "0", "x" * 64])
def test_what_fits_a_topic_a_file_and_a_shell_word_is_a_name(text: str) -> None:
    """Letters, digits, dot, underscore and dash make a name, up to 64 of them."""
    assert is_name(text)


@pytest.mark.parametrize(
    "text", ["", "-a", ".a", "_a", "a b", "a/b", "a+", "#", "ä", "a\n", "x" * 65, "..", "@a"]
)
def test_what_would_break_one_of_them_is_no_name(text: str) -> None:
    """Wildcards, separators, other alphabets, a line's end and a 65th character make none."""
    assert not is_name(text)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("yolo11n (1)", "yolo11n-1"),
        ("Modell für Tür", "Modell-f-r-T-r"),
        ("--x", "x"),
        ("日本", "model"),
        ("", "model"),
        ("a" * 80, "a" * 64),
    ],
)
def test_a_files_stem_is_made_a_name(text: str, name: str) -> None:
    """What a name cannot hold becomes a dash; where nothing is left it is called model."""
    assert safe_name(text) == name


@given(st.text())
def test_whatever_a_file_is_called_its_name_is_one(text: str) -> None:
    """There is no stem of which no name can be made."""
    assert is_name(safe_name(text))


@pytest.mark.parametrize("text", ["0", "3", "1.10", "2026.11.21", "1.0.0.0.0.0.0.0"])
def test_dot_separated_integers_are_a_version(text: str) -> None:
    """One to eight whole numbers between dots are a version."""
    assert is_version(text)


@pytest.mark.parametrize("text", ["", "v1", "1.", ".1", "01", "1.a", "-1", "1" * 10, "1\n", "²"])
def test_anything_else_is_no_version(text: str) -> None:
    """Letters, signs, leading zeros and numbers without end are none."""
    assert not is_version(text)


def test_versions_are_ordered_as_numbers() -> None:
    """1.10 is above 1.9, 2 is 2.0, and 10 is above 9."""
    assert version_key("1.10") > version_key("1.9")
    assert version_key("2") == version_key("2.0.0")
    assert version_key("10") > version_key("9.9.9")
    assert version_key("0") < version_key("0.1")


@pytest.mark.parametrize("host", ["localhost", "raspberrypi", "Debian", "ubuntu"])
def test_a_hostname_that_every_image_has_gets_a_piece_of_the_machine_id(host: str) -> None:
    """Two fresh Raspberry Pis have two ids, and neither shows its machine id."""
    tail = hashlib.sha256(b"0123abc").hexdigest()[:6]
    assert default_device_id(host, "0123abc") == f"{host}-{tail}"
    assert default_device_id(host, "0123abd") != default_device_id(host, "0123abc")


def test_a_hostname_of_ones_own_is_the_device_id() -> None:
    """The first part of a host's full name is its device id."""
    assert default_device_id("press-7.plant.example", "x") == "press-7"


@given(st.text())
def test_every_host_has_a_device_id(host: str) -> None:
    """Whatever a host is called, the default id is a name."""
    assert is_name(default_device_id(host, "x"))
