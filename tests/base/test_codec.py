from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import jsonschema
import pytest

from holdfast.base.codec import about, decode, encode, json_schema
from holdfast.base.errors import BadInput


@dataclass(frozen=True, kw_only=True)
class Leaf:
    """A leaf."""

    colour: Literal["red", "green"] = about("its colour")
    area: float | None = about("square centimetres", default=None)


@dataclass(frozen=True, kw_only=True)
class Twig:
    """A twig with leaves."""

    name: str = about("what it is called")
    leaves: tuple[Leaf, ...] = about("its leaves", default=())
    best: Leaf | None = about("the finest", default=None)
    alive: bool = about("whether it grows", default=True)


TWIG = Twig(name="a", leaves=(Leaf(colour="red", area=1.5), Leaf(colour="green")), alive=False)


def test_a_value_survives_the_way_to_plain_data_and_back() -> None:
    assert decode(Twig, encode(TWIG)) == TWIG


def test_an_integer_is_accepted_for_a_float() -> None:
    leaf = decode(Leaf, {"colour": "red", "area": 2})
    assert leaf.area == 2.0
    assert isinstance(leaf.area, float)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "the document is []\n  expected: an object"),
        ({}, "the field 'name' is missing\n  expected: Twig with name"),
        (
            {"name": "a", "leafs": []},
            "unknown field 'leafs'\n  expected: fields of Twig: name, leaves, best, alive",
        ),
        ({"name": 1}, "name is 1\n  expected: a value of type string"),
        ({"name": "a", "alive": 1}, "alive is 1\n  expected: a value of type boolean"),
        ({"name": "a", "leaves": {}}, "leaves is {}\n  expected: a list"),
        (
            {"name": "a", "leaves": [{"colour": "red"}, {"colour": "blue"}]},
            "leaves[1].colour is 'blue'\n  expected: one of 'red', 'green'",
        ),
        (
            {"name": "a", "best": {"colour": "red", "area": True}},
            "best.area is True\n  expected: a value of type number",
        ),
    ],
)
def test_bad_data_is_refused_with_the_path_to_the_bad_place(data: Any, message: str) -> None:
    with pytest.raises(BadInput) as caught:
        decode(Twig, data)
    assert str(caught.value) == message


def test_the_schema_accepts_what_is_written_and_nothing_else() -> None:
    schema = json_schema(Twig, "Twig", "test:twig")
    validator = jsonschema.Draft202012Validator(schema)
    validator.check_schema(schema)
    good = encode(TWIG)
    assert validator.is_valid(good)
    assert not validator.is_valid(good | {"alive": "yes"})
    assert not validator.is_valid(good | {"more": 1})
    assert not validator.is_valid({"name": "a"})
    assert schema["properties"]["name"]["description"] == "what it is called"
    assert schema["$defs"]["Leaf"]["description"] == "A leaf."


@dataclass(frozen=True)
class Tree:
    """Twigs by name."""

    twigs: dict[str, Twig] = about("its twigs")
    sizes: dict[str, int] = about("their lengths")


def test_values_by_name_survive_and_are_described() -> None:
    tree = Tree({"a": TWIG}, {"a": 3})
    assert decode(Tree, encode(tree)) == tree
    schema = json_schema(Tree, "tree", "urn:tree")
    jsonschema.validate(encode(tree), schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"twigs": {}, "sizes": {"a": "3"}}, schema)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ([1], "sizes is [1]\n  expected: an object"),
        ({"a": "3"}, "sizes.a is '3'\n  expected: a value of type integer"),
    ],
)
def test_bad_values_by_name_are_refused(sizes: Any, message: str) -> None:
    with pytest.raises(BadInput) as caught:
        decode(Tree, {"twigs": {}, "sizes": sizes})
    assert str(caught.value) == message
