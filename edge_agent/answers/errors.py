"""Why a question gets no answer."""

from __future__ import annotations

from ..core.errors import RequestError


class RefusedError(RequestError):
    """There is no room for it now; the same question may be asked again later."""

    def __init__(self, text: str, retry_after_s: float) -> None:
        super().__init__(text)
        self.retry_after_s = retry_after_s


class UnknownModelError(RequestError):
    """A model, or a version of it, that this device does not answer for."""


class StoppingError(RefusedError):
    """No more answers: the agent is stopping, or the model may not be asked now."""


class TooLargeError(RequestError):
    """It is larger than the settings allow."""


def unknown(model: str, names: list[str]) -> str:
    """Return the error that a model may not be asked; it names those that may."""
    if not names:
        return "this device answers nobody; name the models in infer.models of its settings"
    return f"model {model} may not be asked here; infer.models has {', '.join(names)}"


def no_version(model: str, version: str | None, served: list[str]) -> str:
    """Return the error that a version does not serve; it names those that do."""
    return f"model {model} has no version {version} that serves; there is {', '.join(served)}"
