"""`record` makes what a frozen dataclass with slots is, without compiling methods for it.

Each fact is asked of both: whatever an ordinary dataclass does, the record must do.
"""

from __future__ import annotations

import copy
import pickle
from dataclasses import (
    FrozenInstanceError,
    asdict,
    astuple,
    dataclass,
    field,
    fields,
    is_dataclass,
    replace,
)
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from edge_agent.core.frozen import record


@record
class Point:
    """A record of every kind of field."""

    x: int
    y: int = 2
    names: list[str] = field(default_factory=list, compare=False)
    secret: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class PlainPoint:
    """The same as a dataclass."""

    x: int
    y: int = 2
    names: list[str] = field(default_factory=list, compare=False)
    secret: str = field(default="", repr=False)


@record(kw_only=True)
class Named:
    """A record whose fields are given by name; one without a default comes after one with it."""

    low: float = 0.0
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainNamed:
    """The same as a dataclass."""

    low: float = 0.0
    high: float


@record
class Nothing:
    """A record without fields."""


@record
class Outer:
    """A record that holds another one."""

    point: Point
    more: tuple[Point, ...] = ()


@record
class Spoken:
    """A record that has words of its own."""

    word: str

    def __repr__(self) -> str:
        return f"<{self.word}>"


@record
class Checked:
    """A record that looks at what it was given, and is equal in a way of its own."""

    word: str

    def __post_init__(self) -> None:
        if not self.word:
            raise ValueError("no word")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Checked) and self.word.lower() == other.word.lower()

    def __hash__(self) -> int:
        return hash(self.word.lower())


BOTH = pytest.mark.parametrize("kind", [Point, PlainPoint])
Kind = Any
"""The class itself: type checkers would know too much of it."""


@BOTH
def test_values_are_taken_by_place_name_and_default(kind: Kind) -> None:
    """Values come by place, by name, or from default and factory; each gets a list of its own."""
    assert (kind(1).x, kind(1).y, kind(1).names, kind(1).secret) == (1, 2, [], "")
    assert (kind(1, 5, secret="s").y, kind(x=3).x) == (5, 3)
    one, other = kind(1), kind(1)
    one.names.append("a")
    assert other.names == []


@BOTH
@pytest.mark.parametrize(
    ("values", "given"),
    [((), {}), ((1, 2, [], "", 9), {}), ((1,), {"x": 2}), ((1,), {"z": 2}), ((), {"y": 2})],
    ids=["missing", "too many", "twice", "unknown", "one missing"],
)
def test_wrong_values_are_refused(kind: Kind, values: Any, given: Any) -> None:
    """Missing, unknown, double and surplus values are type errors."""
    with pytest.raises(TypeError):
        kind(*values, **given)


@pytest.mark.parametrize("kind", [Named, PlainNamed])
def test_by_name_only(kind: Kind) -> None:
    """With `kw_only` no value is taken by its place, and the order of defaults does not matter."""
    assert (kind(high=1.0).low, kind(low=3.0, high=1.0).low) == (0.0, 3.0)
    with pytest.raises(TypeError):
        kind(1.0)
    with pytest.raises(TypeError):
        kind(low=1.0)


@BOTH
def test_equality_and_hash(kind: Kind) -> None:
    """Equal values make equal records with equal hashes; fields without `compare` do not count."""
    one, other = kind(1, 2, ["a"]), kind(1, 2, ["b"])
    assert one == other
    assert hash(one) == hash(other)
    assert len({one, other}) == 1
    assert one != kind(1, 3)
    assert kind(1, secret="s") != kind(1)
    assert one != (1, 2, "")
    assert kind(1) != Named(high=1.0)


@BOTH
def test_what_is_not_hashable_stays_so(kind: Kind) -> None:
    """A record that holds a list which is compared has no hash."""
    with pytest.raises(TypeError, match="unhashable"):
        hash(kind([]))


@BOTH
def test_nothing_can_be_changed(kind: Kind) -> None:
    """Fields can be neither set nor deleted, and there is no room for others."""
    one = kind(1)
    with pytest.raises(FrozenInstanceError):
        one.x = 5
    with pytest.raises(FrozenInstanceError):
        del one.x
    # Python 3.11's dataclasses with slots stumble over their own words here.
    with pytest.raises((FrozenInstanceError, TypeError)):
        one.z = 5
    assert one.x == 1
    assert not hasattr(one, "__dict__")


def test_it_is_shown_as_a_dataclass_is() -> None:
    """The words are those of a dataclass: without what is not to be shown, or the class's own."""
    assert repr(Point(1, secret="s")) == repr(PlainPoint(1, secret="s")).removeprefix("Plain")
    assert repr(Outer(Point(1))) == "Outer(point=Point(x=1, y=2, names=[]), more=())"
    assert repr(Nothing()) == "Nothing()"
    assert repr(Spoken("hm")) == "<hm>"


def test_methods_of_its_own_are_kept() -> None:
    """A record's own check, equality and hash are used, as a dataclass's are."""
    with pytest.raises(ValueError, match="no word"):
        Checked("")
    assert Checked("A") == Checked("a")
    assert hash(Checked("A")) == hash(Checked("a"))


@BOTH
def test_the_functions_of_dataclasses_work(kind: Kind) -> None:
    """`fields`, `replace`, `asdict`, `astuple` and `match` take records for dataclasses."""
    one = kind(1, names=["a"], secret="s")
    assert all(is_dataclass(each) for each in (kind, one))
    assert [item.name for item in fields(kind)] == ["x", "y", "names", "secret"]
    assert replace(one, x=7) == kind(7, names=["a"], secret="s")
    assert replace(one, x=7).names is one.names
    with pytest.raises(TypeError):
        replace(one, z=7)
    assert asdict(one) == {"x": 1, "y": 2, "names": ["a"], "secret": "s"}
    assert asdict(one)["names"] is not one.names
    assert astuple(one) == (1, 2, ["a"], "s")
    match one:
        case Point(x, y) | PlainPoint(x, y):
            assert (x, y) == (1, 2)
        case _:
            pytest.fail("it is not matched by place")


def test_records_within_records() -> None:
    """`asdict` goes down into records, also those in tuples."""
    outer = Outer(Point(1), (Point(2), Point(3)))
    assert asdict(outer)["more"][1]["x"] == 3
    assert outer == Outer(Point(1), (Point(2), Point(3)))


@pytest.mark.parametrize(
    "one", [Point(1, names=["a"], secret="s"), Named(high=2.0), Nothing(), Outer(Point(1))]
)
def test_it_is_copied_and_pickled(one: Any) -> None:
    """Copies, deep or not, and what comes back from pickle are equal to the original."""
    restored = pickle.loads(pickle.dumps(one))  # noqa: S301 - our own
    for again in (copy.copy(one), copy.deepcopy(one), restored):
        assert type(again) is type(one)
        assert again == one
        assert asdict(again) == asdict(one)
        with pytest.raises(FrozenInstanceError):
            again.x = 1


def test_a_deep_copy_has_lists_of_its_own() -> None:
    """A deep copy shares nothing that can be changed; a shallow one does."""
    one = Point(1, names=["a"])
    assert copy.copy(one).names is one.names
    assert copy.deepcopy(one).names is not one.names


@BOTH
def test_pydantic_validates_it(kind: Kind) -> None:
    """A type adapter takes a record apart as it does a dataclass, and names what is wrong."""
    adapter: TypeAdapter[Any] = TypeAdapter(kind)
    assert adapter.validate_python({"x": 1, "names": ["a"]}) == kind(1, names=["a"])
    assert adapter.validate_python({"x": 1, "names": ["a"]}).names == ["a"]
    assert adapter.validate_json(b'{"x": 1, "y": 7}') == kind(1, 7)
    for wrong, place in (({"y": 1}, "x"), ({"x": "many"}, "x"), ({"x": 1, "names": [1]}, "names")):
        with pytest.raises(ValidationError) as caught:
            adapter.validate_python(wrong)
        assert caught.value.errors()[0]["loc"][0] == place


def test_pydantic_goes_down_into_records() -> None:
    """Records within records are made from plain tables."""
    adapter = TypeAdapter(Outer)
    read = adapter.validate_python({"point": {"x": 1}, "more": [{"x": 2}, {"x": 3}]})
    assert read == Outer(Point(1), (Point(2), Point(3)))
    assert hash(read) == hash(Outer(Point(1), (Point(2), Point(3))))
    with pytest.raises(FrozenInstanceError):
        read.point.x = 5  # type: ignore[misc]


@record(quick=True, eq=False)
class Frame:
    """Made with every frame."""

    data: list[int]
    seq: int = 0


def test_a_quick_record_is_a_dataclass() -> None:
    """Fields, defaults, slots, words and `replace` are as ever; compared as an object."""
    frame = Frame([1], seq=2)
    assert (frame.data, frame.seq, Frame([]).seq) == ([1], 2, 0)
    assert repr(frame) == "Frame(data=[1], seq=2)"
    assert replace(frame, seq=3).seq == 3
    assert frame != replace(frame)
    assert not hasattr(frame, "__dict__")
    with pytest.raises(TypeError):
        Frame()  # type: ignore[call-arg]
