"""The MQTT client against a real broker: what is published arrives, or is counted."""

from __future__ import annotations

import json
import signal
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from edge_agent.mqtt import client, outbox
from edge_agent.mqtt.client import Channel, Message
from edge_agent.mqtt.flight import REPLIES, REPLIES_BYTES
from edge_agent.mqtt.message import CREDIT
from edge_agent.mqtt.outbox import HELD, OUTSTANDING, QUEUED
from tests.helpers.mqtt_client import (
    STATUS,
    RelayedClient,
    arrived,
    make_client,
    message,
    wait_arrived,
)
from tests.helpers.support import PATIENCE, Listener, Mosquitto, Relay, wait_until

Listeners = Callable[..., Listener]


@pytest.fixture
def relayed(broker: Mosquitto) -> Iterator[RelayedClient]:
    """Make a client that is not started yet."""
    relayed = RelayedClient(Relay(broker.port))
    yield relayed
    relayed.close()
    relayed.relay.shut()
    relayed.relay.cut()


@contextmanager
def frozen(broker: Mosquitto) -> Iterator[None]:
    """Stop a broker, which keeps its connections, for as long as the context lasts."""
    assert broker.process is not None
    broker.process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        broker.process.send_signal(signal.SIGCONT)


def test_what_is_lossless_is_confirmed_without_acknowledgments(
    broker: Mosquitto, listen: Listeners, relayed: RelayedClient
) -> None:
    """Results at QoS 0 are known to have reached the broker soon after, by an answered request."""
    listener = listen(broker.port)
    channel = relayed.client.open_channel("p", qos=0, lossless=True)
    relayed.start()
    relayed.up()
    relayed.send(channel, *range(CREDIT * 2))
    assert wait_arrived(listener, "p", CREDIT * 2) == list(range(CREDIT * 2))
    wait_until(lambda: relayed.client.counters().waiting == 0, "all to be confirmed")
    assert channel.has_credit
    assert channel.published == CREDIT * 2
    assert {heard.qos for heard in listener.heard if "/result/" in heard.topic} == {0}


def test_a_lossless_pipeline_waits_for_a_broker_that_is_frozen(
    broker: Mosquitto, listen: Listeners, relayed: RelayedClient
) -> None:
    """With CREDIT results unconfirmed a pipeline is held up; once they are confirmed it goes on."""
    listener = listen(broker.port)
    channel = relayed.client.open_channel("p", qos=0, lossless=True)
    closing, held_up = threading.Event(), threading.Event()
    total = CREDIT * 3

    def pump() -> None:
        for number in range(total):
            if not channel.has_credit:
                held_up.set()
            if not relayed.client.wait_credit(channel, closing):
                return
            relayed.send(channel, number)

    relayed.start()
    relayed.up()
    with frozen(broker):
        pumping = threading.Thread(target=pump, daemon=True)
        pumping.start()
        assert held_up.wait(PATIENCE)
        assert channel.published == CREDIT
    pumping.join(PATIENCE)
    assert wait_arrived(listener, "p", total) == list(range(total))


def test_a_lossless_pipeline_that_is_held_up_can_be_stopped(relayed: RelayedClient) -> None:
    """`wait_credit` returns False, without a broker, once the pipeline or the client is closed."""
    channel = relayed.client.open_channel("p", qos=0, lossless=True)
    closing = threading.Event()
    answers: list[bool] = []
    waiting = threading.Thread(
        target=lambda: answers.append(relayed.client.wait_credit(channel, closing))
    )
    waiting.start()
    closing.set()
    waiting.join(PATIENCE)
    other = threading.Thread(
        target=lambda: answers.append(relayed.client.wait_credit(channel, threading.Event()))
    )
    other.start()
    relayed.client.close()
    other.join(PATIENCE)
    assert answers == [False, False]


@pytest.mark.parametrize("qos", [0, 1])
def test_what_waited_out_a_break_says_so(
    broker: Mosquitto, listen: Listeners, relayed: RelayedClient, qos: int
) -> None:
    """Lossless results sent without a connection arrive with the next, in order, as replayed."""
    listener = listen(broker.port)
    channel = relayed.client.open_channel("p", qos=qos, lossless=True)
    relayed.start()
    relayed.up()
    relayed.send(channel, 0, 1, 2)
    wait_arrived(listener, "p", 3)
    wait_until(
        lambda: relayed.client.counters().waiting == 0 and not channel.pending, "confirmation"
    )
    relayed.break_off()
    relayed.send(channel, *range(3, 20))
    relayed.relay.open()
    numbers = wait_arrived(listener, "p", 20)
    assert numbers == list(range(20))
    assert ["replayed" in r for r in arrived(listener, "p")] == [False] * 3 + [True] * 17
    wait_until(lambda: channel.published == 20, "the broker's word on the last of them")
    assert relayed.client.counters().reconnects == 1


def test_what_waited_for_the_first_connection_is_no_copy(
    broker: Mosquitto, listen: Listeners, relayed: RelayedClient
) -> None:
    """The last HELD results of a live channel are kept until the broker is there, no more."""
    listener = listen(broker.port)
    live = relayed.client.open_channel("live", qos=0, lossless=False)
    sure = relayed.client.open_channel("sure", qos=1, lossless=False)
    relayed.send(live, *range(HELD + 30))
    relayed.send(sure, *range(10))
    relayed.start()
    assert wait_arrived(listener, "live", HELD) == list(range(30, HELD + 30))
    assert wait_arrived(listener, "sure", 10) == list(range(10))
    heard = arrived(listener, "live") + arrived(listener, "sure")
    assert not any("replayed" in result for result in heard)
    assert (live.published, live.lost) == (HELD, 30)
    assert relayed.client.counters().lost == 30


def test_a_live_channel_loses_what_has_no_connection(
    broker: Mosquitto, listen: Listeners, relayed: RelayedClient
) -> None:
    """After the first connection results at QoS 0 without one are counted as lost, not kept."""
    listener = listen(broker.port)
    live = relayed.client.open_channel("live", qos=0, lossless=False)
    relayed.start()
    relayed.up()
    relayed.break_off()
    relayed.send(live, *range(10))
    relayed.relay.open()
    relayed.up()
    relayed.send(live, 10)
    assert wait_arrived(listener, "live", 1) == [10]
    assert (live.published, live.lost) == (1, 10)


def test_the_spool_is_bounded_and_gives_up_nothing_lossless(
    broker: Mosquitto, listen: Listeners, relayed: RelayedClient
) -> None:
    """At QoS 1 a live channel keeps its newest results over a break; a lossless one keeps all."""
    listener = listen(broker.port)
    live = relayed.client.open_channel("live", qos=1, lossless=False)
    folder = relayed.client.open_channel("folder", qos=1, lossless=True)
    relayed.start()
    relayed.up()
    relayed.break_off()
    relayed.send(folder, *range(CREDIT))
    assert not folder.has_credit
    relayed.send(live, *range(OUTSTANDING + 200))
    relayed.relay.open()
    assert sorted(wait_arrived(listener, "folder", CREDIT)) == list(range(CREDIT))
    kept = OUTSTANDING - CREDIT
    numbers = wait_arrived(listener, "live", kept)
    assert numbers == list(range(OUTSTANDING + 200 - kept, OUTSTANDING + 200))
    assert (live.lost, folder.lost) == (200 + CREDIT, 0)
    wait_until(lambda: (live.pending, folder.pending) == (0, 0), "all to be acknowledged")
    assert folder.has_credit
    assert relayed.client.counters().waiting == 0


def test_a_broker_that_is_frozen_does_not_fill_memory(
    broker: Mosquitto, listen: Listeners, relayed: RelayedClient
) -> None:
    """Beyond OUTSTANDING messages on their way, those of a live channel are refused and counted.

    At QoS 1 they wait instead.
    """
    listener = listen(broker.port)
    live = relayed.client.open_channel("live", qos=0, lossless=False)
    sure = relayed.client.open_channel("sure", qos=1, lossless=False)
    relayed.start()
    relayed.up()
    total = OUTSTANDING * 5
    payload = json.dumps({"n": 0, "filler": "x" * 20_000}).encode()
    with frozen(broker):
        for _ in range(total):
            relayed.client.publish_message(Message(live, "edge/box/result/live", lambda _: payload))
        relayed.send(sure, *range(50))
        counters = relayed.client.counters()
        assert counters.refused > 0
        assert live.published + live.lost == total
        # What the kernel took is no longer outstanding; it takes a few MB at most.
        assert live.published < OUTSTANDING * 2
        assert counters.connected
    assert wait_arrived(listener, "sure", 50) == list(range(50))
    relayed.send(live, 1)
    wait_until(lambda: len(arrived(listener, "live")) == live.published, "all that was published")
    assert sure.lost == 0
    assert relayed.client.counters().reconnects == 0


def test_a_frozen_broker_leaves_what_is_sure_in_the_spool(
    broker: Mosquitto, listen: Listeners, relayed: RelayedClient
) -> None:
    """At QoS 1 at most OUTSTANDING results are under way; those beyond wait, and all arrive."""
    listener = listen(broker.port)
    sure = relayed.client.open_channel("sure", qos=1, lossless=False)
    relayed.start()
    relayed.up()
    total = OUTSTANDING + 300
    with frozen(broker):
        relayed.send(sure, *range(total))
        assert OUTSTANDING - 10 <= sure.published <= OUTSTANDING
        assert relayed.client.counters().waiting == total - sure.published
    assert wait_arrived(listener, "sure", total) == list(range(total))
    assert sure.lost == 0
    assert not any("replayed" in result for result in arrived(listener, "sure"))


def test_new_results_do_not_overtake_those_that_a_frozen_broker_held_up(
    broker: Mosquitto, listen: Listeners, relayed: RelayedClient
) -> None:
    """A result that waited for room alone goes before newer ones, and is no copy."""
    listener = listen(broker.port)
    sure = relayed.client.open_channel("sure", qos=1, lossless=False)
    relayed.start()
    relayed.up()
    total = OUTSTANDING + 300
    with frozen(broker):
        relayed.send(sure, *range(total))
    wait_until(lambda: sure.published > OUTSTANDING, "room for one that waits")
    relayed.send(sure, total)
    assert wait_arrived(listener, "sure", total + 1) == list(range(total + 1))
    assert not any("replayed" in result for result in arrived(listener, "sure"))


def test_it_is_told_when_a_result_goes_out(
    broker: Mosquitto, listen: Listeners, relayed: RelayedClient
) -> None:
    """`sent` is called once, when a result is first handed over, not when it begins to wait."""
    listener = listen(broker.port)
    told: list[bool] = []
    channels = [
        relayed.client.open_channel("held", qos=0, lossless=False),
        relayed.client.open_channel("kept", qos=1, lossless=False),
    ]
    for channel in channels:
        relayed.client.publish_message(message(channel, 0, on_published=told.append))
    assert told == []
    relayed.start()
    for channel in channels:
        wait_arrived(listener, channel.name, 1)
    assert told == [False, False]
    relayed.break_off()
    relayed.client.publish_message(message(channels[1], 1, on_published=told.append))
    assert told == [False, False]
    relayed.relay.open()
    wait_arrived(listener, "kept", 2)
    # The broker may have passed it on before who handed it over says so.
    wait_until(lambda: len(told) == 3, "the third to be told of")
    assert told == [False, False, True]


def test_a_result_that_waits_lets_go_of_what_it_is_made_of(relayed: RelayedClient) -> None:
    """A result is encoded when it begins to wait: the picture it was found in is not kept."""
    channels = [
        relayed.client.open_channel("held", qos=0, lossless=False),
        relayed.client.open_channel("kept", qos=1, lossless=False),
    ]

    class Picture:
        """Something large."""

    for channel in channels:
        picture = Picture()

        def encode(_replayed: bool, picture: Picture = picture) -> bytes:
            return json.dumps({"n": len(repr(picture))}).encode()

        gone = weakref.ref(picture)
        relayed.client.publish_message(Message(channel, "edge/box/result/p", encode))
        del picture, encode
        assert gone() is None


def test_state_is_said_again_at_every_connection(
    broker: Mosquitto, listen: Listeners, relayed: RelayedClient
) -> None:
    """A broker that has forgotten everything is told status and state again, the latest only."""
    relayed.start()
    relayed.up()
    relayed.client.publish_retained("edge/box/source/a", b"running")
    relayed.client.publish_retained("edge/box/source/b", b"running")
    relayed.relay.shut()
    broker.stop(signal.SIGKILL)
    wait_until(lambda: not relayed.client.connected, "the connection to break")
    relayed.client.publish_retained("edge/box/source/a", b"lost")
    relayed.client.publish_retained("edge/box/source/b", b"")
    broker.start()
    listener = listen(broker.port)
    relayed.relay.open()
    relayed.up()
    relayed.client.publish_retained("edge/box/source/c", b"running")
    listener.wait_for(lambda h: h and h[-1].topic == "edge/box/source/c", "the last")
    said = [(h.topic.removeprefix("edge/box/"), h.payload) for h in listener.heard]
    assert said[0][0] == "status"
    assert json.loads(said[0][1]) == {"state": "online", "reason": "reconnected"}
    assert said[1:] == [("source/a", b"lost"), ("source/b", b""), ("source/c", b"running")]


def test_a_late_will_does_not_stand(
    broker: Mosquitto,
    listen: Listeners,
    relayed: RelayedClient,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A node that had hung published that of an earlier connection, and its bridge took it on."""
    monkeypatch.setattr(client, "STATUS_SECONDS", 0.1)
    relayed.start()
    relayed.up()
    listener = listen(broker.port)
    will = b'{"state": "offline", "reason": "lost"}'
    listener.publish(STATUS, will, retain=True)
    listener.wait_for(lambda h: any(each.payload == will for each in h), "the will")
    after = len(listener.heard)
    listener.wait_for(
        lambda h: any(each.json["state"] == "online" for each in h[after:] if each.topic == STATUS),
        "the status again",
    )


def test_an_old_state_that_a_bridge_brings_does_not_stand(
    tmp_path: Path,
    broker: Mosquitto,
    listen: Listeners,
    run: Callable[[client.Client], client.Client],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Bridged nodes exchanged what they kept: a threshold of yesterday was shown from then on."""
    monkeypatch.setattr(client, "STATUS_SECONDS", 0.1)
    monkeypatch.setattr(outbox, "REPEAT_SECONDS", 0.1)
    other = Mosquitto(tmp_path / "other")
    box = run(make_client((broker.url, other.url)))
    box.publish_retained("edge/box/pipeline/p", b"now")
    listener = listen(broker.port)
    listener.wait_for(lambda h: any(each.payload == b"now" for each in h), "the state")
    listener.publish("edge/box/pipeline/p", b"old", retain=True)
    listener.wait_for(lambda h: any(each.payload == b"old" for each in h), "the old one")
    after = len(listener.heard)
    listener.wait_for(lambda h: any(each.payload == b"now" for each in h[after:]), "it again")
    other.stop()


def test_what_the_broker_does_not_take_is_not_sent(tmp_path: Path, listen: Listeners) -> None:
    """Messages above the broker's packet size are refused and counted; the connection stays."""
    broker = Mosquitto(tmp_path / "small", "max_packet_size 2000\n")
    relayed = RelayedClient(Relay(broker.port))
    try:
        listener = listen(broker.port)
        channels = [
            relayed.client.open_channel(f"p{qos}", qos=qos, lossless=True) for qos in (0, 1)
        ]
        relayed.start()
        relayed.up()
        relayed.client.publish("edge/box/snapshot/p", b"x" * 5000)
        for channel in channels:
            for _ in range(CREDIT):
                relayed.client.publish_message(
                    Message(channel, "edge/box/result/p", lambda _: b"x" * 5000)
                )
            relayed.send(channel, 1)
            assert wait_arrived(listener, channel.name, 1) == [1]
            assert channel.lost == CREDIT
            assert relayed.client.wait_credit(channel, threading.Event())
        counters = relayed.client.counters()
        assert (counters.refused, counters.reconnects) == (2 * CREDIT + 1, 0)
        wait_until(lambda: relayed.client.counters().waiting == 0, "nothing to wait")
    finally:
        relayed.close()
        relayed.relay.shut()
        relayed.relay.cut()
        broker.stop()


def test_the_goodbye_is_the_last_word(
    broker: Mosquitto, listen: Listeners, relayed: RelayedClient
) -> None:
    """Closed, the client publishes `stopped`, and disconnects so that its will is not published."""
    relayed.start()
    relayed.up()
    relayed.close()
    listener = listen(broker.port)
    listener.publish("edge/end", b"")
    listener.wait_for(lambda h: h and h[-1].topic == "edge/end", "our own word")
    status = [heard.json for heard in listener.heard if heard.topic == STATUS]
    assert status == [{"state": "offline", "reason": "stopped"}]


def test_a_client_that_nobody_has_asked_to_end_is_lost(
    broker: Mosquitto, listen: Listeners, relayed: RelayedClient
) -> None:
    """The end of an agent that fails reads as the will does, not as an orderly stop."""
    relayed.start()
    relayed.up()
    relayed.client.close("lost")
    status = listen(broker.port).wait_state(STATUS, state="offline")
    assert status["reason"] == "lost"


def test_a_goodbye_that_is_not_acknowledged_leaves_the_will(
    broker: Mosquitto, listen: Listeners, relayed: RelayedClient
) -> None:
    """Whether it has arrived is not known: the device must not stay "online"."""
    relayed.start()
    relayed.up()
    listener = listen(broker.port)
    relayed.relay.silence()
    relayed.close()
    listener.wait_state(STATUS, state="offline", reason="lost")


def test_nothing_is_said_after_the_goodbye(
    broker: Mosquitto, listen: Listeners, relayed: RelayedClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The status is said again from time to time: that came behind it, and stayed."""
    monkeypatch.setattr(client, "STATUS_SECONDS", 0.0)
    relayed.start()
    relayed.up()
    listener = listen(broker.port)
    relayed.relay.silence()
    relayed.close()
    listener.wait_state(STATUS, state="offline", reason="lost")
    said = [heard.json["state"] for heard in listener.heard if heard.topic == STATUS]
    assert "online" not in said[said.index("offline") :]


def test_of_states_that_the_network_does_not_carry_the_latest_is_published(
    broker: Mosquitto, listen: Listeners, relayed: RelayedClient
) -> None:
    """Thousands of former ones were sent one after the other, and all else waited for them."""
    relayed.start()
    relayed.up()
    listener = listen(broker.port)
    for number in range(20 * QUEUED):
        relayed.client.publish_retained("edge/box/config", b"%d" % number)
    last = b"%d" % (20 * QUEUED - 1)
    listener.wait_for(lambda heard: heard and heard[-1].payload == last, "the latest")
    assert len(listener.heard) < 20 * QUEUED


def test_answers_that_the_network_does_not_carry_keep_no_results_back(
    broker: Mosquitto, listen: Listeners, relayed: RelayedClient, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever asked faster than an uplink carries answers had filled memory, and silenced all."""
    channel = relayed.client.open_channel("belt", qos=0, lossless=False)
    relayed.start()
    relayed.up()
    listener = listen(broker.port)
    relayed.relay.silence()
    for number in range(OUTSTANDING + 100):
        relayed.client.publish_reply(f"edge/box/reply/{number}", b"{}")
    relayed.client.publish_reply("edge/box/reply/large", b"x" * REPLIES_BYTES)
    relayed.send(channel, 1)
    assert wait_arrived(listener, "belt", 1) == [1]
    assert relayed.client.counters().refused == OUTSTANDING + 100 - REPLIES + 1
    assert caplog.text.count("requests come faster than the network carries answers") == 1


def test_many_threads_may_publish_at_once(
    broker: Mosquitto, listen: Listeners, relayed: RelayedClient
) -> None:
    """What eight threads say at the same time arrives whole, each thread's words in their order."""
    listener = listen(broker.port)
    channels = [relayed.client.open_channel(f"t{i}", qos=i % 2, lossless=True) for i in range(8)]
    relayed.start()
    relayed.up()
    closing = threading.Event()

    def speak(channel: Channel) -> None:
        for number in range(300):
            if relayed.client.wait_credit(channel, closing):
                relayed.send(channel, number)

    threads = [threading.Thread(target=speak, args=(channel,)) for channel in channels]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    for channel in channels:
        numbers = wait_arrived(listener, channel.name, 300)
        assert Counter(numbers) == Counter(range(300))
        if channel.qos == 0:
            assert numbers == list(range(300))
    assert relayed.client.counters().reconnects == 0


def test_what_is_said_to_us_arrives(
    broker: Mosquitto, listen: Listeners, relayed: RelayedClient
) -> None:
    """Messages to the inbox come with topic and payload; nothing else is listened to."""
    listener = listen(broker.port)
    relayed.start()
    relayed.up()
    listener.wait_state(STATUS, state="online")
    listener.publish("edge/box/elsewhere", b"no")
    listener.publish("edge/box/in/command/ping", b"yes")
    message = relayed.inbox.get(timeout=PATIENCE)
    assert message is not None
    assert (message.topic, message.payload) == ("edge/box/in/command/ping", b"yes")
    assert message.retained is False
    message.ack()
    assert relayed.inbox.empty()


def test_what_was_not_acknowledged_comes_again(
    broker: Mosquitto, listen: Listeners, relayed: RelayedClient
) -> None:
    """The broker keeps for us what arrives in a short absence, and what we have not dealt with."""
    listener = listen(broker.port)
    relayed.start()
    relayed.up()
    listener.wait_state(STATUS, state="online")
    listener.publish("edge/box/in/a", b"first")
    first = relayed.inbox.get(timeout=PATIENCE)
    assert first is not None
    relayed.break_off()
    listener.publish("edge/box/in/b", b"meanwhile")
    relayed.relay.open()
    again = [relayed.inbox.get(timeout=PATIENCE) for _ in range(2)]
    assert [message.payload for message in again if message] == [b"first", b"meanwhile"]
