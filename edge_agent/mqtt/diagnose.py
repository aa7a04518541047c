"""Why a broker does not take us, or something of ours, in words that name the mend.

Imported when one does not.
"""

from __future__ import annotations

import socket

from ..config.settings import Broker

NOT_AUTHORIZED = 0x87
BAD_PASSWORD = 0x86
"""Reason codes of MQTT 5; paho has those of 3.1.1 turned into them."""
LIST = "see its access list"


def user_of(broker: Broker) -> str | None:
    """Give the name that we go by; None: none but perhaps that of a certificate."""
    return broker.username or broker.address.username


def refused(code: int, broker: Broker) -> str:
    """Name what to look at when CONNACK says no; begins with a mark, empty where nothing helps."""
    if code not in {NOT_AUTHORIZED, BAD_PASSWORD}:
        return ""
    user = user_of(broker)
    if user is None:
        mend = "set broker.username and broker.password, or the credential broker.password"
        if broker.cert_file is not None:
            return f"; it may not know whom broker.cert_file names, or want a user: {mend}"
        return f"; no user is given: {mend}"
    mend = "look at broker.username and broker.password, or the credential broker.password"
    return f" (user {user}); {mend}"


def hung_up(broker: Broker) -> str:
    """Name what to look at when the connection is closed without a word; begins with a mark."""
    if not broker.address.tls:
        return ""
    if broker.cert_file is None:
        return "; it may want a client certificate: set broker.cert_file and broker.key_file"
    return "; it may not trust our certificate: look at broker.cert_file and broker.key_file"


def unreachable(problem: BaseException, broker: Broker) -> str:
    """Say why no connection came about."""
    if isinstance(problem, socket.gaierror):
        return "its name is not known"
    if isinstance(problem, TimeoutError):
        return "no answer"
    # Those of ssl, which may not be imported.
    distrust = getattr(problem, "verify_message", None)
    if distrust is not None:
        return f"its certificate is not trusted ({distrust}); see broker.ca_file"
    alert = getattr(problem, "reason", None)
    if isinstance(alert, str):
        return f"{alert.lower().replace('_', ' ')}{hung_up(broker)}"
    if isinstance(problem, OSError) and problem.strerror:
        return problem.strerror.lower()
    return str(problem) or type(problem).__name__


def words_of(broker: Broker, topic: str, code: int, reason: str) -> str:
    """Say that a message on *topic* was refused, with which reason code of MQTT 5."""
    if code == NOT_AUTHORIZED:
        who = user_of(broker) or "us"
        return f"the broker does not let {who} publish to {topic}: {reason}; {LIST}"
    return f"the broker does not take what we publish to {topic}: {reason}"
