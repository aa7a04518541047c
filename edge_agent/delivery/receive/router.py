"""Routes what arrives under `in/` for models. Section 5 of the interface.

Offers and packages in one message go to `offers`, lists and blocks to `blocks`; what is complete
goes to the deployer.
"""

from __future__ import annotations

from collections.abc import Callable

from ...core.errors import MalformedError
from ...core.names import is_name
from ...models.packages.package import PackageHeader
from ...models.store.catalog import Library
from ...models.store.store import Store
from ...mqtt.connection import ReceivedMessage
from ..rollout.ledger import Candidate, Ledger
from ..trial.early_trial import EarlyTrial
from .admission import Admission, DeviceIdentity
from .blocks import BlockReceiver
from .drawing import Drawing
from .offers import Offers


class Router:
    """The receiving side of this device; used by one thread."""

    def __init__(
        self,
        store: Store,
        library: Library,
        identity: DeviceIdentity,
        ledger: Ledger,
        drawing: Drawing,
        *,
        submit: Callable[[Candidate], None],
        expect: Callable[[PackageHeader], EarlyTrial | None] = lambda _header: None,
    ) -> None:
        """Make the parts; nothing is received yet.

        Args:
            store: where packages go.
            library: knows all versions.
            identity: what packages are checked against.
            ledger: of candidates.
            drawing: of packages that lie on the broker.
            submit: takes a candidate whose package is complete.
            expect: begins the trial of a package that is about to arrive, where that is worth it.
        """
        self._ledger = ledger
        self._drawing = drawing
        self._deploy = submit
        admission = Admission(store, library, identity)
        self._blocks = BlockReceiver(
            store, library, ledger, admission=admission, submit=self._submit, expect=expect
        )
        self._offers = Offers(
            *(store, library, ledger),
            admission=admission,
            blocks=self._blocks,
            drawing=drawing,
            submit=self._submit,
        )

    def message(self, levels: tuple[str, ...], message: ReceivedMessage) -> bool:
        """Handle a message under `in/`; return True if it is acknowledged later.

        Raises:
            MalformedError: it is nothing that is expected here.
        """
        match levels:
            case ("model",) | ("push", _, "offer") if not message.payload:
                return False  # how a retained message is cleared; nothing is sent like this
            case ("model",):
                return self._offers.whole(message)
            case ("push", transfer, "offer") if is_name(transfer):
                self._offers.offer(transfer, message.payload)
                return False
            case ("push", transfer, "abort") if is_name(transfer):
                self._offers.forget(transfer)
                self._blocks.abort(transfer)
                return False
            case ("push", transfer, "list", number) if _is_number(number):
                self._blocks.list_part(transfer, int(number), message.payload)
                return False
            case ("push", transfer, "block", number) if _is_number(number):
                return self._blocks.block(transfer, int(number), message)
            case _:
                raise MalformedError(
                    "nothing is expected here; below in/ there are command/<verb>, "
                    "set/<pipeline>/<key>, infer/<model>, model and push/<transfer>/…"
                )

    # Of a roll-out

    def draw(self, transfer: str) -> None:
        """Draw a package that lies on the broker, unless it is here or on its way."""
        if transfer in self._blocks:
            self._offers.go_on(transfer)
        elif self._ledger.by_transfer(transfer) is None:
            self._drawing.ask_offer(transfer)

    def suspend(self, transfer: str) -> None:
        """Draw nothing more of a package for now; what has come stays."""
        self._drawing.end(transfer)
        self._offers.forget(transfer)
        self._blocks.suspend(transfer)

    def abort(self, transfer: str) -> None:
        """Draw nothing more of a package, and remove what has come."""
        self._drawing.end(transfer)
        self._offers.forget(transfer)
        self._blocks.abort(transfer)

    def drawn(self, levels: tuple[str, ...], message: ReceivedMessage) -> bool:
        """Handle what has been drawn of a package; return True if it is acknowledged later.

        Raises:
            MalformedError: it is not what it should be; another may come.
        """
        match levels:
            case _ if not message.payload:
                return False  # the package has been removed from the broker
            case (transfer, "offer") if self._drawing.wants(*levels):
                self._offers.drawn(transfer, message.payload)
                self._drawing.came(*levels)
                return False
            case (transfer, "list", number) if _is_number(number):
                self._blocks.list_part(transfer, int(number), message.payload)
                return False
            case (transfer, "block", number) if _is_number(number):
                return self._blocks.block(transfer, int(number), message)
            case _:
                return False

    def _submit(self, candidate: Candidate, blocks: int) -> None:
        """Submit a candidate to the deployer; all its *blocks* are on the device."""
        self._ledger.add(candidate)
        if candidate.phase == "receiving":
            self._ledger.advance(candidate, "verifying")
        if candidate.transfer is not None:
            self._ledger.status.publish(candidate.transfer, "verifying", have=blocks, total=blocks)
        self._deploy(candidate)

    def resume(self) -> None:
        """Resume, after a start, the transfers that were interrupted."""
        self._offers.resume()

    def tick(self, now: float) -> None:
        """Do what is due, by the monotonic clock."""
        self._blocks.tick(now)
        self._offers.tick(now)

    def close(self) -> None:
        """Suspend all transfers; what has come stays."""
        self._blocks.close()


def _is_number(level: str) -> bool:
    return level.isdecimal() and len(level) < 9
