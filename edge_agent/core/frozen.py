"""A decorator for frozen dataclasses that are cheap to define.

`dataclasses` compiles six methods for each frozen class, a third of a millisecond each time the
program starts; on the way to the first result that adds up to more than the load of a small model.
A `record` is a dataclass in every other respect: fields, replace, slots, pydantic. For objects
created with every frame, `record(quick=True)` compiles the constructor, the one method whose speed
matters; only the type checker then ensures that such a record is not changed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, FrozenInstanceError, dataclass, field, fields
from typing import Any, TypeVar, dataclass_transform, overload

C = TypeVar("C")


@overload
def record(cls: type[C], /) -> type[C]: ...
@overload
def record(
    *, kw_only: bool = False, quick: bool = False, eq: bool = True
) -> Callable[[type[C]], type[C]]: ...


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def record(
    cls: Any = None, /, *, kw_only: bool = False, quick: bool = False, eq: bool = True
) -> Any:
    """Turn a class into a frozen dataclass with slots.

    Args:
        cls: the class, if decorated without parentheses.
        kw_only: as for a dataclass.
        quick: whether instances are created with every frame.
        eq: whether instances are compared by value; False: by identity, for records of arrays.
    """

    def make(plain: Any) -> Any:
        return _made(plain, kw_only=kw_only, quick=quick, eq=eq)

    return make if cls is None else make(cls)


def _made(cls: Any, *, kw_only: bool, quick: bool, eq: bool) -> Any:
    own = {name for name, method in cls.__dict__.items() if method is not None}
    made: Any = dataclass(init=quick, repr=False, eq=False, slots=True, kw_only=kw_only)(cls)
    methods: dict[str, Any] = {"__repr__": _repr}
    if eq:
        methods |= {"__eq__": _eq, "__hash__": _hash}
    for name, method in methods.items():
        if name not in own:
            setattr(made, name, method)
    if quick:
        return made
    known = fields(made)
    made.__init__ = _initializer(known, getattr(made, "__post_init__", None), kw_only=kw_only)
    made.__setattr__ = _refuse
    made.__delattr__ = _refuse
    made.__getstate__ = _getstate
    made.__setstate__ = _setstate
    return made


def _initializer(
    known: tuple[Any, ...], after: Callable[[Any], None] | None, *, kw_only: bool
) -> Callable[..., None]:
    names = tuple(item.name for item in known if item.init)
    positional = () if kw_only else names
    defaults = {item.name: item.default for item in known if item.default is not MISSING}
    factories = {
        item.name: item.default_factory for item in known if item.default_factory is not MISSING
    }
    keep = object.__setattr__

    def initialize(self: Any, *values: Any, **given: Any) -> None:
        if len(values) > len(positional):
            raise TypeError(
                f"{type(self).__name__} takes {len(positional)} values, {len(values)} were given"
            )
        for name, value in zip(positional, values, strict=False):
            if name in given:
                raise TypeError(f"{type(self).__name__}: {name} was given twice")
            given[name] = value
        for name in names:
            if name in given:
                keep(self, name, given.pop(name))
            elif name in defaults:
                keep(self, name, defaults[name])
            elif name in factories:
                keep(self, name, factories[name]())
            else:
                raise TypeError(f"{type(self).__name__}: {name} is missing")
        if given:
            raise TypeError(f"{type(self).__name__} has no {', '.join(given)}")
        if after is not None:
            after(self)

    return initialize


def _values(self: Any) -> tuple[Any, ...]:
    return tuple([getattr(self, item.name) for item in fields(self) if item.compare])


def _repr(self: Any) -> str:
    shown = ", ".join(f"{i.name}={getattr(self, i.name)!r}" for i in fields(self) if i.repr)
    return f"{type(self).__qualname__}({shown})"


def _eq(self: Any, other: object) -> Any:
    if type(other) is not type(self):
        return NotImplemented
    return _values(self) == _values(other)


def _hash(self: Any) -> int:
    return hash((type(self), _values(self)))


def _refuse(self: Any, name: str, *_: Any) -> None:
    raise FrozenInstanceError(f"{type(self).__name__} is frozen: {name} cannot be changed")


def _getstate(self: Any) -> list[Any]:
    return [getattr(self, item.name) for item in fields(self)]


def _setstate(self: Any, state: list[Any]) -> None:
    for item, value in zip(fields(self), state, strict=True):
        object.__setattr__(self, item.name, value)
