"""Text from outside, as it is shown: harmless to a terminal, and without secrets."""

from __future__ import annotations

import sys
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.core.errors import AgentError, ModelError
from edge_agent.core.text import (
    MOST,
    counted,
    labels_in,
    naming,
    one_line,
    printable,
    redact,
    redact_urls,
)


@given(st.text(st.characters(codec=None)))
def test_any_text_is_harmless(text: str) -> None:
    """Whatever somebody wrote, what is shown is one line of letters; letters stay as they are."""
    shown = printable(text)
    assert shown.isprintable()
    assert "\x1b" not in shown
    if text.isprintable():
        assert shown == text


@pytest.mark.parametrize("text", ["://" + "a." * 400_000, "http://h/" + "a/" * 400_000])
def test_a_long_text_of_others_is_shown_in_part_and_at_once(text: str) -> None:
    """Searching URLs in the name of a tensor took an hour, in which the agent did nothing else."""
    shown = one_line(text)
    assert len(shown) == MOST
    assert shown.endswith("…")


def test_every_order_to_a_terminal_is_escaped() -> None:
    """Of all characters no control, no separator of lines and no mark of direction stays."""
    shown = printable("".join(map(chr, range(sys.maxunicode + 1))))
    for code in (*range(32), *range(0x7F, 0xA0), 0x2028, 0x2029, *range(0x202A, 0x202F), 0x2066):
        assert chr(code) not in shown


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("rtsp://admin:pw@cam/s", "rtsp://***@cam/s"),
        ("rtsp://admin@cam/s", "rtsp://***@cam/s"),
        ("rtsp://admin:p@w@cam:554/s", "rtsp://***@cam:554/s"),
        ("rtsp://admin:p w@cam/s", "rtsp://***@cam/s"),
        ("rtsp://admin:p/w@cam/s", "rtsp://***@cam/s"),
        ("rtsp://admin:p?w#@cam/s", "rtsp://***@cam/s"),
        ("rtsp://admin:12/w@cam/s", "rtsp://***@cam/s"),
        ("rtsp://admin:pw", "rtsp://admin:***"),
        ("rtsp://admin:123456/s", "rtsp://admin:***/s"),
        ("rtsp:/admin:pw@cam/s", "rtsp:/***@cam/s"),
        ("rtsp:admin:pw@cam/s", "rtsp:***@cam/s"),
        ("rtsp//admin:pw@cam/s", "rtsp//***@cam/s"),
        ("//admin:pw@cam/s", "//***@cam/s"),
        ("admin:pw@cam/s", "***@cam/s"),
        (" rtsp://admin:pw@cam", " rtsp://***@cam"),
        ("mqtts://u:p@broker.lan:8883", "mqtts://***@broker.lan:8883"),
        # An address of numbers is no user: what follows is a path.
        ("rtsp://10.0.0.1:554/live@1", "rtsp://10.0.0.1:554/live@1"),
        ("rtsp://[fd00::1]:554/live@1", "rtsp://[fd00::1]:554/live@1"),
        ("http://cam/v?mail=a@b", "http://cam/v?***"),
        ("http://cam/v.cgi?user=admin&pwd=pw&size=2", "http://cam/v.cgi?size=2&***"),
        ("http://cam/v?sig=f00&session=bar", "http://cam/v?***"),
        ("http://cam/v#token", "http://cam/v#***"),
        ("http://cam/v?channel=12345678", "http://cam/v?***"),
        ("http://cam/v?key=a_channel=1", "http://cam/v?channel=1&***"),
        ("rtsps://10.0.0.1:7441/aBcD3fGh1JkLmN0p", "rtsps://10.0.0.1:7441/aBc***"),
        ("http://cam/550e8400-e29b-41d4-a716-446655440000/x", "http://cam/550***/x"),
        ("http://cam/pa55w0rd/x", "http://cam/***/x"),
        ("http://cam/12345678/x", "http://cam/***/x"),
        (
            "rtsp://10.0.0.1/user=admin_password=tlJw_channel=1_stream=0.sdp?real",
            "rtsp://10.0.0.1/channel=1&stream=0&***?***",
        ),
    ],
)
def test_what_may_be_secret_in_a_url_is_hidden(url: str, shown: str) -> None:
    """Logins, queries, parameters and tokens are hidden, in a URL that is written wrong, too."""
    assert redact(url) == shown


@pytest.mark.parametrize(
    "url",
    [
        "rtsp://192.168.1.64:554/Streaming/Channels/101",
        "rtsp://nvr/cam/realmonitor?channel=3&subtype=1",
        "rtsp://cam/h264Preview_01_main",
        "http://cam/axis-cgi/mjpg/video.cgi?resolution=640x480&fps=5",
        "rtsp://box.lan:8554/front-door-garage-left",
        "rtsp://cam/cam1_h264_1080p_sub",
        "rtsp://cam/onvif/profile2/media.smp",
        "mqtt://localhost:1883",
    ],
)
def test_a_camera_can_still_be_recognized(url: str) -> None:
    """The paths of usual cameras, and the number of a recorder's channel, are shown."""
    assert redact(url) == url


@given(st.text(), st.text(min_size=1), st.sampled_from(["rtsp://", "http:", "//", "", "rtsp:/"]))
def test_no_password_is_shown_whatever_it_is(user: str, password: str, scheme: str) -> None:
    """Of a login with any characters nothing is left, and to redact again changes nothing."""
    url = f"{scheme}u{quote(user, safe='')}:<{password}>@camera/stream"
    shown = redact(url)
    assert f"<{password}>" not in shown
    assert shown.endswith("@camera/stream")
    assert redact(shown) == shown


@given(st.text("rtsp:/@?#=&;_.[]*1a channel") | st.text())
def test_to_redact_again_changes_nothing(text: str) -> None:
    """What is shown once may be quoted in another message."""
    shown = redact(text)
    assert redact(shown) == shown
    assert one_line(one_line(text)) == one_line(text)


def test_urls_within_a_message_are_redacted_and_nothing_else() -> None:
    """A library's message keeps its words; paths of files are not addresses."""
    text = "lost rtsp://a:b@c/d, and 'mqtt://e:f@g:1': see file:///home/a@b/20240101.txt, a:b@c"
    shown = "lost rtsp://***@c/d, and 'mqtt://***@g:1': see file:///home/a@b/20240101.txt, a:b@c"
    assert redact_urls(text) == shown
    assert redact_urls("connected to mqtt://localhost:1883, MQTT 5").endswith(":1883, MQTT 5")


def test_every_error_of_ours_is_one_harmless_line() -> None:
    """What an error quotes is harmless in each log, topic and terminal that it goes to."""
    problem: AgentError = ModelError("output 'a\nb\x1b[0m' of rtsp://u:p@cam/s")
    assert str(problem) == r"output 'a\nb\x1b[0m' of rtsp://***@cam/s"


def test_a_path_is_named_once() -> None:
    """A source in its own folder's terms says where that is; one with its whole path does not."""
    assert naming("file:clip.mp4", Path("/cfg/clip.mp4")) == "file:clip.mp4: /cfg/clip.mp4"
    assert naming("file:/cfg/clip.mp4?loop=1", Path("/cfg/clip.mp4")) == "file:/cfg/clip.mp4?loop=1"


def test_one_of_a_thing_is_one() -> None:
    """And none are several."""
    assert [counted(n, "model") for n in (0, 1, 2)] == ["0 models", "1 model", "2 models"]


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ("0 cat\n1 dog\n", ("cat", "dog")),
        ("0  cat\r\n1  dog\r\n\r\n", ("cat", "dog")),
        ("1: dog\n0: cat\n", ("cat", "dog")),
        ("0,cat\n1,big dog\n", ("cat", "big dog")),
        ("0\n1\n2\n", ("0", "1", "2")),
        ("1 person\n2 persons\n", ("1 person", "2 persons")),
        ("0 degrees\n1 degrees\n", ("0 degrees", "1 degrees")),
        ("0 cat\n1 dog\nbird\n", ("0 cat", "1 dog", "bird")),
        ("0 cat", ("cat",)),
        ("cat\n\ndog\n", ("cat", "", "dog")),
        ("a\n ", ("a",)),
        ("", ()),
    ],
)
def test_numbers_that_count_the_labels_are_no_part_of_them(
    text: str, labels: tuple[str, ...]
) -> None:
    """Teachable Machine's, Coral's and others' files; not numbers that are names."""
    assert labels_in(text) == labels
