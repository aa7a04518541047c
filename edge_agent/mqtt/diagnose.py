"""Explains why a broker refuses a connection or a message, and how to fix it."""

from __future__ import annotations

import errno
import socket
from datetime import UTC, datetime

from ..config.settings import Broker
from .paho_client import TOO_LARGE
from .tls import expired, validities

NOT_AUTHORIZED = 0x87
BAD_PASSWORD = 0x86
BAD_CLIENT_ID = 0x85
"""MQTT 5 reason codes; paho translates 3.1.1 codes to them."""
ACCESS_LIST = "see its access list"
PROXY = "a proxy whose broker is away"
"""Such as haproxy, or a stream of nginx: it takes the connection all the same."""
WRONG_NAME = "give broker.url a name that it is for"
EXPIRED = 10
MENDS = {
    9: "compare this device's clock",
    EXPIRED: "the broker needs a new one, or this device's clock is wrong",
    62: WRONG_NAME,
    64: WRONG_NAME,
}
"""By OpenSSL's number (X509_V_ERR): how a certificate comes to be trusted."""


def username_of(broker: Broker) -> str | None:
    """Return the user name that we connect with; None: none, or the one in a certificate."""
    return broker.username or broker.address.username


def connack_hint(code: int, broker: Broker) -> str:
    """Return a hint after a negative CONNACK, beginning with punctuation, or ""."""
    if code == BAD_CLIENT_ID:
        return "; it has the device_id in it, where NATS takes no '.': choose another device_id"
    if code not in {NOT_AUTHORIZED, BAD_PASSWORD}:
        return ""
    user = username_of(broker)
    if user is None:
        mend = "set broker.username and broker.password, or the credential broker.password"
        if broker.cert_file is not None:
            return f"; it may not know the user of broker.cert_file, or require one: {mend}"
        return f"; no user is given: {mend}"
    mend = "look at broker.username and broker.password, or the credential broker.password"
    return f" (user {user}); {mend}"


def hang_up_hint(broker: Broker, *, accepted: bool) -> str:
    """Return a hint after a close without CONNACK, beginning with punctuation.

    *accepted*: an earlier connection with these settings was accepted.
    """
    hint = _alert_hint(broker)
    if _expired(broker, "cert_file"):
        return hint
    if accepted:
        more = "" if broker.cert_file is None else ", or no longer trust our certificate"
        return f"; it may be {PROXY}{more}"
    if not broker.address.tls:
        hint = "; if this is its port for TLS, the url begins with mqtts://"
    return f"{hint}; or it is {PROXY}"


def _alert_hint(broker: Broker) -> str:
    if broker.cert_file is None:
        return "; it may want a client certificate: set broker.cert_file and broker.key_file"
    if why := _expired(broker, "cert_file"):
        return f"; our certificate {why}"
    return "; it may not trust our certificate: look at broker.cert_file and broker.key_file"


def _expired(broker: Broker, key: str) -> str:
    """Return since when a certificate of `[broker]` has expired, and the mend; "": it has not."""
    _, end = validities(broker).get(key, (None, None))
    if end is None or end > datetime.now(UTC):
        return ""
    return f"{expired(end)}: renew broker.{key}"


def explain_unreachable(problem: BaseException, broker: Broker) -> str:
    """Return why the broker could not be reached."""
    if isinstance(problem, socket.gaierror):
        return "its name cannot be resolved"
    if isinstance(problem, TimeoutError):
        return "no answer"
    # Attributes of ssl's exceptions; that module may not be imported.
    distrust = getattr(problem, "verify_message", None)
    if distrust is not None:
        code = getattr(problem, "verify_code", 0)
        mend = MENDS.get(code, "see broker.ca_file")
        if code == EXPIRED and (why := _expired(broker, "ca_file")):
            mend = f"the authority's certificate {why}"
        return f"its certificate is not trusted ({distrust.rstrip('.')}); {mend}"
    alert = getattr(problem, "reason", None)
    if isinstance(alert, str):
        # Only an alert is the broker's answer; without one it may not even use TLS.
        hint = _alert_hint(broker) if "ALERT" in alert else "; is this its port for TLS?"
        hint = "; it requires another TLS version" if "PROTOCOL_VERSION" in alert else hint
        return f"{alert.lower().replace('_', ' ')}{hint}"
    if isinstance(problem, OSError) and problem.errno == errno.EINVAL:
        return "no route leads there"  # the kernel's word for one that discards what is sent
    if isinstance(problem, OSError) and problem.strerror:
        reset = broker.address.tls and isinstance(problem, ConnectionResetError)
        return problem.strerror.lower() + ("; is this its port for TLS?" if reset else "")
    return str(problem) or type(problem).__name__


def explain_publish(broker: Broker, topic: str, code: int, reason: str) -> str:
    """Return why a message on *topic* was refused, given the MQTT 5 reason code and its text."""
    if code == NOT_AUTHORIZED:
        who = username_of(broker) or "us"
        return f"the broker does not let {who} publish to {topic}: {reason}; {ACCESS_LIST}"
    larger = (
        "; let it take larger ones (message_size_limit of mosquitto), for a push 66000 bytes"
        if code == TOO_LARGE
        else ""
    )
    return f"the broker refused a message on {topic}: {reason}{larger}"
