from __future__ import annotations

import dataclasses
import datetime
import enum
import json
import typing
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, Optional, Union

import pytest
from pydantic import BaseModel, ConfigDict, Field, field_validator

from structgen.constraint import Choice, Constraint, Regex, load_schema, to_constraint
from structgen.errors import GrammarSyntaxError, OutputError, OutputTypeError, SchemaError, UnsupportedSchemaError
from structgen.grammar import Grammar, Vocabulary
from structgen.validate import Validator

BYTES = Vocabulary([bytes([byte]) for byte in range(256)] + [None], [256])


class Colour(enum.Enum):
    RED = "red"
    NONE = 0


@dataclasses.dataclass
class Point:
    x: int
    y: float = 0.0


class Movie(typing.TypedDict):
    title: str
    year: NotRequired[int]


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]
    tricks: list[str]


class Node(BaseModel):
    name: str
    children: list[Node] = []


class Everything(BaseModel):
    pet: Annotated[Cat | Dog, Field(discriminator="kind")]
    price: Decimal = Field(ge=0, lt=100)
    tags: set[str]
    when: datetime.datetime
    day: datetime.date
    id: uuid.UUID
    pair: tuple[int, str]
    note: str | None = None


def accepts(constraint: Constraint, text: str) -> bool:
    """Whether the grammar takes a text as a whole, byte by byte."""
    assert constraint.grammar is not None
    matcher = constraint.grammar.compile(BYTES).matcher()
    return all(matcher.accept(byte) for byte in text.encode()) and matcher.is_complete


CASES: list[tuple[Any, str, Any]] = [
    (Point, '{"x": 1, "y": 2.5}', Point(1, 2.5)),
    (Point, '{"x": 1}', Point(1)),
    (Movie, '{"title": "M", "year": 1931}', {"title": "M", "year": 1931}),
    (Colour, '"red"', Colour.RED),
    (Colour, "0", Colour.NONE),
    (Literal["a", 1], '"a"', "a"),
    (Union[int, str], '"x"', "x"),  # noqa: UP007 (the old spellings too)
    (Optional[int], "null", None),  # noqa: UP045
    (list[Point], '[{"x": 1}, {"x": 2}]', [Point(1), Point(2)]),
    (list[Movie], '[{"title": "M"}]', [{"title": "M"}]),
    (Movie | None, "null", None),
    (Annotated[int, Field(ge=3)], "3", 3),
    (dict[str, int], '{"a": 1}', {"a": 1}),
    (int, "-7", -7),
    (float, "1.5", 1.5),
    (bool, "true", True),
    (str, '"x\\n"', "x\n"),
    (datetime.date, '"2024-02-29"', datetime.date(2024, 2, 29)),
    (Node, '{"name": "a", "children": [{"name": "b"}]}', Node(name="a", children=[Node(name="b")])),
    ({"type": "integer"}, "5", 5),
    ('{"enum": [true]}', "true", True),
    (True, "[null]", [None]),
    (Regex("[0-9]+"), "12", "12"),
    (Choice(["yes", "no"]), "no", "no"),
]


@pytest.mark.parametrize(("output_type", "text", "value"), CASES)
def test_typed_values_come_back(output_type: Any, text: str, value: Any) -> None:
    constraint = to_constraint(output_type)
    assert accepts(constraint, text)
    found = constraint.parse(text)
    assert found == value
    assert type(found) is type(value)


def test_everything_pydantic_has() -> None:
    text = json.dumps(
        {
            "pet": {"kind": "dog", "tricks": []},
            "price": 12.5,
            "tags": ["a", "a"],
            "when": "2024-01-01T10:00:00Z",
            "day": "2024-01-01",
            "id": "12345678-1234-5678-1234-567812345678",
            "pair": [1, "x"],
        }
    )
    constraint = to_constraint(Everything)
    assert accepts(constraint, text)
    value = constraint.parse(text)
    assert value.pet == Dog(kind="dog", tricks=[])
    assert value.price == Decimal("12.5")
    assert value.tags == {"a"}
    assert Validator(constraint.schema).is_valid(text)


@pytest.mark.parametrize(
    ("change", "wrong"),
    [("price", 100), ("price", "5"), ("day", "0000-01-01"), ("pet", {"kind": "cow"}), ("pair", [1]), ("extra", 1)],
)
def test_what_pydantic_would_refuse_is_not_generated(change: str, wrong: object) -> None:
    value = {"pet": {"kind": "cat", "lives": 9}, "price": 1, "tags": [], "when": "2024-01-01T10:00:00Z"}
    value |= {"day": "2024-01-01", "id": "12345678-1234-5678-1234-567812345678", "pair": [1, "x"]}
    assert accepts(to_constraint(Everything), json.dumps(value))
    assert not accepts(to_constraint(Everything), json.dumps(value | {change: wrong}))


def test_the_order_of_the_type_is_the_order_of_the_output() -> None:
    constraint = to_constraint(Everything)
    assert isinstance(constraint.schema, dict)
    assert list(constraint.schema["properties"])[:4] == ["pet", "price", "tags", "when"]
    assert not accepts(to_constraint(Point), '{"y": 1.0, "x": 1}')


def test_open_models_stay_open_and_others_are_closed() -> None:
    class Open(BaseModel):
        model_config = ConfigDict(extra="allow")
        a: int

    assert accepts(to_constraint(Open), '{"a": 1, "b": 2}')
    assert not accepts(to_constraint(Point), '{"x": 1, "z": 2}')


def test_field_validators_are_the_last_word() -> None:
    class Even(BaseModel):
        n: int

        @field_validator("n")
        @classmethod
        def check(cls, value: int) -> int:
            if value % 2:
                raise ValueError("odd")
            return value

    assert to_constraint(Even).parse('{"n": 4}') == Even(n=4)
    with pytest.raises(OutputError, match="odd") as caught:
        to_constraint(Even).parse('{"n": 5}')
    assert caught.value.text == '{"n": 5}'


def test_free_text_and_ready_constraints_pass_through() -> None:
    free = to_constraint(None)
    assert free.grammar is None
    assert free.parse("{") == "{"
    assert to_constraint(free) is free
    assert accepts(to_constraint(Grammar.from_regex("a")), "a")


def test_equal_types_share_a_key_and_others_do_not() -> None:
    assert to_constraint({"type": "object"}).key == to_constraint('{"type": "object"}').key
    keys = {to_constraint(kind).key for kind in (int, str, Regex("a"), Choice(["a"]), Choice(["a", "b"]))}
    assert len(keys) == 5


@pytest.mark.parametrize("wrong", [print, ["yes", "no"], 5, lambda: 0, int.__add__])
def test_what_is_no_output_type_is_refused_with_a_hint(wrong: Any) -> None:
    with pytest.raises(OutputTypeError):
        to_constraint(wrong)


def test_choice_wants_several_texts() -> None:
    with pytest.raises(OutputTypeError):
        Choice("yes")


def test_errors_in_schemas_point() -> None:
    with pytest.raises(SchemaError, match="not JSON"):
        to_constraint("yes or no")
    with pytest.raises(SchemaError) as caught:
        to_constraint({"properties": {"a": {"type": "stringg"}}})
    assert caught.value.pointer == "/properties/a/type"
    with pytest.raises(UnsupportedSchemaError) as unsupported:
        to_constraint({"items": {"$ref": "https://example.com/other"}})
    assert unsupported.value.pointer is not None
    assert unsupported.value.pointer.startswith("/items")
    with pytest.raises(GrammarSyntaxError):
        to_constraint(Regex("("))


def test_schemas_from_files(tmp_path: Path) -> None:
    path = tmp_path / "schema.json"
    path.write_bytes(b'\xef\xbb\xbf{"type": "null"}')
    assert load_schema(path) == {"type": "null"}
    for text in ("[]", "{", '{"a": 1, "a": 2}', "[" * 100_000, '"x"'):
        path.write_text(text)
        with pytest.raises(SchemaError):
            load_schema(path)
    with pytest.raises(OSError, match="absent"):
        load_schema(tmp_path / "absent")
