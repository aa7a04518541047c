"""The roll-outs that this device follows: it installs when its wave comes, and reports the outcome.

A plan on `edge/@rollout/<id>` is only followed if a trusted key has signed it, and never backward:
the last serial of each roll-out survives a restart. The package is drawn and tried like any that is
pushed.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from ...core.errors import AgentError, MalformedError, ModelError, NotNowError, RequestError
from ...core.names import is_name, version_key
from ...mqtt.connection import ReceivedMessage
from ...mqtt.payloads import SCHEMA, iso
from ...mqtt.requests import Later
from ..plan import ENDED, Plan, left_by, read
from .admission import DeviceIdentity
from .followed import Followed, FollowedFile, Presence
from .router import Router

log = logging.getLogger(__name__)

AGAIN_SECONDS = 60.0
"""Interval for requesting a package that does not come, and for checking what serves."""
OFFER_SECONDS = 15.0
"""Interval for requesting its offer again: if a cluster node is lost, so are requests it had."""
SOON_SECONDS = 2.0
GATHER_SECONDS = 1.0
"""How long to wait for retained plans before the oldest of several settings is applied."""
MOST_TRIES = 2
"""How often settings are tried if the agent ends during their probation."""
TRIED = frozenset({"preparing", "trial", "shadow", "probation"})
"""States of a version that this roll-out installs."""
MOST_KNOWN = 256
"""Most roll-outs remembered; more are not followed until others have expired."""
MOST_OTHERS = 32
"""Most roll-outs in the device's report, besides the latest."""
MOST_REFUSED = 8
"""Most of these that it does not follow."""


class _Heard(NamedTuple):
    plan: Plan
    payload: bytes
    """Its message: the key may be removed before it is carried out."""


class Rollouts:
    """The roll-outs and their states. Used by the request thread, except for `heard`."""

    def __init__(
        self,
        file: Path,
        transfers: Router,
        *,
        say: Callable[[Mapping[str, Any]], object],
        stop: Callable[[str, str], bool],
        rollback: Callable[[str, str, str], None],
        health: Callable[[], str | None],
        presence: Presence,
    ) -> None:
        """Read the state of earlier roll-outs.

        *say* publishes this device's report; *stop* ends the trial of a transfer's model for a
        reason, and returns whether it serves already; *rollback* goes back from a model's version
        for a reason, or raises AgentError; *health* returns ok or degraded; *presence* finds out
        whether plans still lie on the broker.
        """
        self._file = FollowedFile(file)
        self._transfers = transfers
        self._say = say
        self._stop = stop
        self._rollback = rollback
        self._health = health
        self._presence = presence
        self.configure: Callable[[Mapping[str, Any], str], Later] | None = None
        """Applies settings with a mark, on probation; raises AgentError. None: not set yet."""
        self._changing: dict[str, tuple[Later, Mapping[str, Any]]] = {}
        """By id: settings on probation."""
        self._plans: dict[str, _Heard] = {}
        """By id: plans on the broker that are for this device."""
        self._due: dict[str, float] = {}
        """By id: monotonic time when it is checked next."""
        self._refused: dict[str, tuple[dict[str, Any], ReceivedMessage]] = {}
        """By id: the report on a roll-out for this device that it does not follow, and the plan."""
        self._checked = 0.0
        """Monotonic time of `_check_again`."""
        self._lock = threading.Lock()
        """Guards the known roll-outs, and the reports on all."""
        self._known = self._file.read()

    @property
    def _identity(self) -> DeviceIdentity:
        return self._transfers.admission.identity

    # What arrives

    def take(self, levels: tuple[str, ...], message: ReceivedMessage) -> bool:
        """Handle a message on the topic of a roll-out.

        Raises:
            MalformedError: it is no plan, or one that names this device, which does not follow it.
        """
        if len(levels) != 1 or not is_name(levels[0]):
            raise MalformedError("is not a roll-out's topic")
        (name,) = levels
        if not message.payload:
            self._forget(name)
            return False
        try:
            self._take(name, message.payload)
            if name in self._plans:
                self._presence.heard(name, message.topic)
        except MalformedError as problem:
            if self._concerns(name, message, str(problem)):
                raise
            log.debug("%s: not for this device: %s", message.topic, problem)
        return False

    def _read(self, payload: bytes) -> Plan:
        trusted, unsigned = self._identity.trusted(), self._identity.allow_unsigned()
        return read(payload, trusted.read(), allow_unsigned=unsigned)

    def _take(self, name: str, payload: bytes) -> None:
        plan = self._read(payload)
        if plan.id != name:
            raise MalformedError(f"is the roll-out {plan.id}")
        mine = plan.wave_of(self._identity.device, self._identity.groups())
        known = self._known.get(name)
        renewed = known and plan.settings is not None and plan.created > known.created
        if known is not None and (
            plan.serial < known.serial
            or (known.aborted and plan.state != "aborted" and not renewed)
        ):
            raise MalformedError("is older than what this device has seen of this roll-out")
        if known is None or renewed:
            if mine is None:
                self._refused.pop(name, None)
                return
            known = self._begin(name, plan, mine)
        told = self._refused.pop(name, None) is not None
        self._plans[name] = _Heard(plan, payload)
        if known.state == "live" and name not in self._file.held:  # unless a kill came between
            self._hold(name, known, plan.settings or {})
        with self._lock:
            known.serial, known.aborted = plan.serial, plan.state == "aborted"
            self._save()
        self._follow(name, plan, known)
        if told or known.state != "waiting":
            with self._lock:
                self._speak(name)  # the broker may have lost it

    def _concerns(self, name: str, message: ReceivedMessage, why: str) -> bool:
        """Whether a plan that is not followed may name this device; if so, it is reported why."""
        try:
            plan = read(message.payload, None)
        except MalformedError:
            self._refused.pop(name, None)  # it is no longer what lies on the broker
            return True
        wave = plan.wave_of(self._identity.device, self._identity.groups())
        if wave is None or plan.id != name:
            self._refused.pop(name, None)
        if plan.id != name or (name in self._known and plan.settings is None):
            return True
        if wave is None:
            return False
        self._refuse(name, plan, wave, why, message)
        return True

    def _refuse(self, name: str, plan: Plan, wave: int, why: str, message: ReceivedMessage) -> None:
        """Report why a roll-out that names this device is not followed."""
        said = {"id": name, "wave": wave, "state": "waiting", "why": why, "created": plan.created}
        with self._lock:
            before, _ = self._refused.get(name, ({}, None))
            self._refused[name] = said, message
            if before == said:
                return
            if len(self._refused) > MOST_REFUSED:
                del self._refused[next(iter(self._refused))]
            self._speak()

    def _begin(self, name: str, plan: Plan, wave: int) -> Followed:
        known = Followed(plan.serial, plan.transfer, plan.name, plan.version, plan.expires_at, wave)
        if plan.settings is not None:
            known.created = plan.created
            self._changing.pop(name, None)  # the outcome of earlier ones no longer matters
        with self._lock:
            for other, each in list(self._known.items()):
                expired = self._identity.credible() and each.expires < time.time()
                if expired and other not in self._plans:  # it would be refused by its time
                    del self._known[other]
            if len(self._known) >= MOST_KNOWN:
                raise MalformedError(f"{MOST_KNOWN} roll-outs are followed already")
            self._known[name] = known
        return known

    def _forget(self, name: str) -> None:
        """Forget a roll-out that was removed from the broker; nothing more is installed."""
        heard, known = self._plans.pop(name, None), self._known.get(name)
        self._due.pop(name, None)
        self._refused.pop(name, None)
        self._presence.forget(name)
        if heard is not None and known is not None and not known.ended:
            self._transfers.suspend(heard.plan.transfer)

    # What follows

    def _follow(self, name: str, plan: Plan, known: Followed) -> None:
        self._due.pop(name, None)
        if plan.state == "aborted":
            self._abort(name, plan, known)
        if known.state == "live" and plan.settings is None:
            self._due[name] = time.monotonic() + SOON_SECONDS  # it may have been rolled back
        elif known.aborted or known.ended or plan.wave < known.wave:
            return
        elif plan.state == "paused":
            self._transfers.suspend(plan.transfer)
        else:
            spread = plan.spread_s if known.state == "waiting" else 0.0
            begin = time.monotonic() + random.uniform(0, spread)  # noqa: S311 - not a secret
            self._due[name] = begin if plan.settings is None else begin + GATHER_SECONDS

    def _abort(self, name: str, plan: Plan, known: Followed) -> None:
        """Stop installing; go back from what this roll-out has installed if the plan says so."""
        begun = not known.ended and known.state != "waiting" and plan.settings is None
        mine = begun and known.before != plan.version  # else it is of another's push
        if mine and self._stop(plan.transfer, "the roll-out was aborted"):
            known.installed = True
            self._set(name, known, "probation")  # it may not be known yet after a kill
        if known.installed and known.state in {"probation", "live"}:
            if plan.back:
                self._go_back(name, plan, known)
        elif not known.ended and name not in self._changing:  # a probation ends by itself
            deployed = begun and self._transfers.abort(plan.transfer)
            if not (deployed and mine):  # else `heard` says so, once no start tries it again
                self._set(name, known, "aborted", plan.why)

    def _go_back(self, name: str, plan: Plan, known: Followed) -> None:
        words = f": {plan.why}" if plan.why else ""
        try:
            self._rollback(plan.name, plan.version, f"roll-out {name} was aborted{words}")
        except AgentError as problem:
            self._set(name, known, "live", f"did not go back: {problem}")
        else:
            self._set(name, known, "rolled-back", plan.why or "the roll-out was aborted")

    def tick(self, now: float) -> None:
        """Do the work that is due at *now*, monotonic time."""
        self._hear_changes(now)
        self._check_again(now)
        for name, at in list(self._due.items()):
            heard, known = self._plans.get(name), self._known[name]
            if heard is None:  # removed from the broker meanwhile
                self._due.pop(name, None)
            if heard is None or at > now:
                continue
            plan = heard.plan
            self._due[name] = now + AGAIN_SECONDS
            if known.aborted or known.ended:
                self._look_after(name, plan, known)
            elif (why := self._obstacle(plan, now)) is not None:
                state, words = why
                if known.state in {"waiting", "receiving"}:
                    self._transfers.suspend(plan.transfer)
                    self._set(name, known, state, words)
            elif plan.settings is not None:
                self._due[name] = now + SOON_SECONDS
                self._change(name, plan, known)
            else:
                if known.state == "waiting":
                    known.before, known.was = self._live(plan.name), self._health()
                    self._set(name, known, "receiving")
                if self._transfers.draw(plan.transfer, plan.label):
                    self._due[name] = now + OFFER_SECONDS
                if known.state == "receiving":
                    self._set(name, known, "receiving", self._transfers.lack(plan.transfer, now))

    def _check_again(self, now: float) -> None:
        """Follow what may be trusted by now; stop what waits for the plan of an expired one."""
        if now < self._checked + AGAIN_SECONDS:
            return
        self._checked = now
        for name, (_, message) in list(self._refused.items()):
            with suppress(MalformedError):
                self.take((name,), message)
        if not self._identity.credible():
            return
        for name, known in self._known.items():
            if not known.ended and name not in self._plans and known.expires < time.time():
                self._stop(known.transfer, "its roll-out has expired")

    def look(self) -> None:
        """Check what was live at the next tick: something else may serve; called by any thread.

        Whoever installs it again after that is not this roll-out.
        """
        for name, known in list(self._known.items()):
            if known.state == "live" and known.model and name in self._plans:
                self._due[name] = 0.0

    def _look_after(self, name: str, plan: Plan, known: Followed) -> None:
        """Check on a version that was live."""
        live = self._live(plan.name) if known.state == "live" else None
        if live and version_key(live) < version_key(plan.version):
            self._set(name, known, "rolled-back", f"{plan.name}@{live} serves again")
        elif live and known.aborted and known.installed and plan.back:
            self._go_back(name, plan, known)  # the disk may have been full

    def _obstacle(self, plan: Plan, now: float) -> tuple[str, str | None] | None:
        """Return why it is not installed now: the state to report, and a reason; None: it is."""
        expired = plan.expires_at <= time.time()
        if not self._identity.credible() or (self._identity.may_be_behind() and not expired):
            return "waiting", "the clock of this device is not set yet"
        if expired:
            return "waiting", f"expired at {plan.expires}"
        left, newer = self._left(plan)
        for each in newer if plan.settings is None else ():
            lies = self._presence.lies(each, plan.id, now)
            if lies is False:
                log.info("roll-out %s: is no longer on the broker", each)
                self._forget(each)
            if not lies:
                self._due[plan.id] = now + SOON_SECONDS
                return "waiting", None
        return ("superseded", f"by {', '.join(newer)}") if newer and not left else None

    def _left(self, plan: Plan) -> tuple[Mapping[str, Any], list[str]]:
        """Return what newer plans leave of one's settings, nothing of a model; and their names."""
        left, by = plan.settings or {}, list[str]()
        for name, (created, keys) in self._file.held.items():
            if created > plan.created and (less := left_by(keys, left)) != left:
                left, by = less, [*by, name]
        for each, _ in self._plans.values() if plan.settings is None else ():
            over = each.expires_at <= time.time() and self._known[each.id].state == "waiting"
            is_off = each.state == "aborted" or over
            if each.created > plan.created and not is_off and each.name == plan.name:
                by.append(each.id)
        return left, by

    # Settings

    def _change(self, name: str, plan: Plan, known: Followed) -> None:
        """Apply settings, once other changes have ended, without what newer ones have set."""
        earlier = (
            other
            for other, (each, _) in self._plans.items()
            if each.settings is not None
            and each.created < known.created
            and each.state in {"running", "done"}
            and each.expires_at > time.time()
            and not self._known[other].ended
        )
        if self.configure is None or self._changing or any(earlier):
            return
        if known.tries >= MOST_TRIES:
            why = "each time the agent has ended before the probation was over"
            self._set(name, known, "rolled-back", f"{why}; the settings before are back")
            return
        self._count_try(known, 1)  # first, as they may end the agent
        try:
            self._read(self._plans[name].payload)
            left, newer = self._left(plan)
            self._changing[name] = self.configure(left, f"{name} {known.created}"), left
        except NotNowError:
            self._count_try(known, -1)
        except AgentError as problem:  # or their key is trusted no more
            self._set(name, known, "rejected", str(problem))
        else:
            less = f"without what {', '.join(newer)} has set since" if newer else None
            self._set(name, known, "probation", less)
            self._due.pop(name)

    def kept(self, mark: str | None) -> None:
        """Record that settings were kept, which the last run had no time to do."""
        for name, known in self._known.items():
            if f"{name} {known.created}" == mark and not known.ended:
                self._set(name, known, "live", known.why)

    def _count_try(self, known: Followed, count: int) -> None:
        with self._lock:
            known.tries += count
            self._save()

    def _hear_changes(self, now: float) -> None:
        """Record the outcomes of changed settings."""
        for name, (later, settings) in list(self._changing.items()):
            if not later.told:
                continue
            del self._changing[name]
            known = self._known[name]
            try:
                doubts = (known.why or "", *later.result().get("warnings", ()))
                self._hold(name, known, settings)
                self._set(name, known, "live", "; ".join(filter(None, doubts)) or None)
            except NotNowError:
                self._count_try(known, -1)
                self._due[name] = now + SOON_SECONDS
            except AgentError as problem:
                back = isinstance(problem, RequestError)
                self._set(name, known, "rolled-back" if back else "rejected", str(problem))

    def _hold(self, name: str, known: Followed, settings: Mapping[str, Any]) -> None:
        created = known.created
        if self._identity.credible() and not self._identity.may_be_behind():
            # Of a clock ahead: later settings would be taken for older ones until that time.
            created = min(created, iso(time.time_ns()))
        self._file.hold(name, created, settings)

    def heard(self, transfer: str, says: Mapping[str, Any]) -> None:
        """Record the progress of a transfer; called by any thread.

        Until this device has begun with a roll-out, its transfer is another's push.
        """
        for name, known in list(self._known.items()):
            if known.transfer != transfer or known.ended or known.state == "waiting":
                continue
            state = str(says["state"])
            if "replaced_by" in says:  # by another push or command: nothing has failed
                state = "superseded"
            elif state == "rejected" and known.installed:
                state = "rolled-back"
            elif state == "rejected" and known.aborted:
                plan = self._plans[name].plan if name in self._plans else None
                state, says = "aborted", {"why": plan and plan.why}
            match says.get("shadow"):
                case {"agreement": int() | float() as share}:
                    known.agreement = round(float(share), 3)
            # Otherwise another push has installed it; an answer to an offer names no model.
            serves = state in {"probation", "live"} and "model" in says
            known.installed |= serves and known.state in TRIED
            why = says.get("why")
            if state == "need":
                state, why = "receiving", why or self._transfers.lack(transfer, time.monotonic())
            self._set(name, known, state, why)
            if known.ended:
                self._due[name] = time.monotonic() + AGAIN_SECONDS

    def _live(self, name: str) -> str | None:
        """Return the version of a model that serves."""
        with suppress(ModelError):
            return self._transfers.admission.catalog.live(name).manifest.version
        return None

    def allows(self, transfer: str | None) -> bool:
        """Whether a complete package may be deployed; called by any thread.

        Not while it belongs to a roll-out whose plan has not come since the start: that may have
        been aborted meanwhile. `_abort` then stops it.
        """
        return not any(
            known.transfer == transfer and self._is_awaited(name, known)
            for name, known in list(self._known.items())
        )

    def pushed(self, model: str, version: str) -> None:
        """Leave a version to who offers it now, if it is held for a roll-out that has not come."""
        for name, known in list(self._known.items()):
            same = known.model == model and version_key(known.version) == version_key(version)
            if same and self._is_awaited(name, known):
                self._set(name, known, "waiting")

    def _is_awaited(self, name: str, known: Followed) -> bool:
        """Whether a roll-out has begun here, and its plan has not come since the start."""
        return not known.ended and known.state != "waiting" and name not in self._plans

    # The report

    def _set(self, name: str, known: Followed, state: str, why: str | None = None) -> None:
        with self._lock:
            if (known.state, known.why) == (state, why):
                return
            if known.ended != (state in ENDED):
                what = f"{known.model}@{known.version}: " if known.model else ""
                log.info("roll-out %s: %s%s", name, what, state)
            known.state, known.why = state, why
            self._save()
            self._speak(name)

    def _speak(self, name: str | None = None) -> None:
        """Publish the report, this roll-out first; with the lock held."""
        others = [
            {"id": other, **each.word()}
            for other, each in self._known.items()
            if other != name and other in self._plans and each.state != "waiting"
        ]
        others += [said for said, _ in self._refused.values()]
        word = others.pop(0) if name is None else {"id": name, **self._known[name].word()}
        more = {"others": others[-MOST_OTHERS:]} if others else {}
        self._say({"schema": SCHEMA, **word, **more})

    def _save(self) -> None:
        self._file.save(self._known)
