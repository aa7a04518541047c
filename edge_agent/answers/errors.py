"""Why a question gets no answer."""

from __future__ import annotations

from ..core.errors import RequestError


class RefusedError(RequestError):
    """There is no room for it now; the same question may be asked again later."""

    def __init__(self, text: str, retry_after_s: float) -> None:
        super().__init__(text)
        self.retry_after_s = retry_after_s


class UnknownModelError(RequestError):
    """A model, or version of it, in whose name nothing is answered here."""


class StoppingError(RefusedError):
    """Nothing is answered any more: the agent stops, or the model may not be asked now."""


class TooLargeError(RequestError):
    """It is larger than the settings allow."""
