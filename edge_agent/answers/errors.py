"""Errors for questions that get no answer."""

from __future__ import annotations

from ..core.errors import RequestError


class RefusedError(RequestError):
    """There is no room for it now; the same question may be asked again later."""

    def __init__(self, text: str, retry_after_s: float) -> None:
        super().__init__(text)
        self.retry_after_s = retry_after_s


class UnknownModelError(RequestError):
    """The model, or its version, is not one that this device answers for."""


class StoppingError(RefusedError):
    """The agent is stopping, or the model may not be asked now."""


class TooLargeError(RequestError):
    """The question is larger than the settings allow."""


def unknown(model: str, names: list[str]) -> str:
    """Return the error text for a model that may not be asked; it names those that may."""
    if not names:
        return "this device answers nobody; name the models in infer.models of its settings"
    return f"model {model} may not be asked here; infer.models has {', '.join(names)}"


def no_version(model: str, version: str | None, served: list[str]) -> str:
    """Return the error text for a version that does not serve; it names those that do."""
    return f"model {model} has no version {version} that serves; there is {', '.join(served)}"
