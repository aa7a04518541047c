"""What arrives under `in/` for models, and to whom it goes. Section 5 of the interface.

Offers are judged (`offers`, `admission`), blocks received (`receiving`, `transfer`), whole packages
taken (`whole`); what is complete goes to the deployer (`handover`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...core.errors import MalformedError
from ...core.names import is_name
from ...models.packages.package import PackageHeader
from ...models.store.catalog import Library
from ...models.store.store import Store
from ...mqtt.connection import ReceivedMessage
from ..rollout.candidate import Candidate
from ..trial.early_trial import Ahead
from .admission import Admission, Receiver
from .blocks import Receiving
from .handover import Handover
from .offers import Offers
from .progress import Replies
from .single_message import Whole

__all__ = ["Receiver", "Transfers"]


class Transfers:
    """All transfers of this device; used by one thread."""

    def __init__(
        self,
        store: Store,
        library: Library,
        receiver: Receiver,
        publish: Callable[[str, Mapping[str, Any]], bool],
        submit: Callable[[Candidate], None],
        standing: Callable[[str, str], str | None],
        on_change: Callable[[], None] = lambda: None,
        expect: Callable[[PackageHeader], Ahead | None] = lambda _header: None,
    ) -> None:
        """Prepare.

        Args:
            store: where packages go.
            library: knows all versions.
            receiver: who we are.
            publish: says something on the topic of a transfer; False without a connection.
            submit: takes a candidate whose package has arrived.
            standing: how far a version is that is here already: a state of section 5, or None.
            on_change: called as a transfer makes progress, at most once a second.
            expect: begins the trial of a package that is about to arrive, where that is worth it.

        """
        replies = Replies(receiver.device, publish)
        admission = Admission(store, library, receiver)
        handover = Handover(library, admission, replies, submit, standing)
        self._receiving = receiving = Receiving(
            store,
            library,
            admission=admission,
            handover=handover,
            replies=replies,
            on_change=on_change,
            expect=expect,
        )
        self._offers = Offers(store, admission, receiving, handover, replies)
        self._whole = Whole(store, admission, receiving, handover, replies)

    def message(self, levels: tuple[str, ...], message: ReceivedMessage) -> bool:
        """Take a message under `in/`; True when it is acknowledged later.

        Raises:
            MalformedError: it is nothing that is expected here.

        """
        match levels:
            case ("model",) | ("push", _, "offer") if not message.payload:
                return False  # how a retained message is cleared; nothing is sent like this
            case ("model",):
                return self._whole.take(message)
            case ("push", transfer, "offer") if is_name(transfer):
                self._offers.take(transfer, message.payload)
                return False
            case ("push", transfer, "abort") if is_name(transfer):
                self._offers.forget(transfer)
                self._receiving.abort(transfer)
                return False
            case ("push", transfer, "list", number) if _is_number(number):
                self._receiving.list_part(transfer, int(number), message.payload)
                return False
            case ("push", transfer, "block", number) if _is_number(number):
                return self._receiving.block(transfer, int(number), message)
            case _:
                raise MalformedError("nothing is expected here")

    def resume(self) -> None:
        """After a start: go on with the transfers that were interrupted."""
        self._offers.resume()

    def tick(self, now: float) -> None:
        """Do what is due, by the monotonic clock."""
        self._receiving.tick(now)
        self._offers.tick(now)

    def progress(self) -> dict[str, tuple[str, float]]:
        """Give the version that is being received of each model, and percent."""
        return self._receiving.progress()

    def close(self) -> None:
        """Let go of everything; what has arrived stays."""
        self._receiving.close()


def _is_number(level: str) -> bool:
    return level.isdecimal() and len(level) < 9
