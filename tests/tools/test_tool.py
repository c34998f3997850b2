from __future__ import annotations

import dataclasses
import enum
import threading
from typing import Annotated, Any, Literal, TypedDict

import msgspec
import pytest

from deedrl.errors import EnvironmentAuthorError, ToolError
from deedrl.tools.tool import MAX_OUTPUT_CHARS, ToolCrash, to_text, tool
from deedrl.tools.toolbox import Toolbox


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


class Size(TypedDict):
    width: int


class Tree(msgspec.Struct):
    name: str
    children: list[Tree] = []


def parameters_of(function: Any) -> dict[str, Any]:
    return tool(function).schema.parameters


# ---------------------------------------------------------------- schema


def test_schema_comes_from_signature_and_docstring() -> None:
    @tool
    def search(self: Any, query: str, top_k: int = 5) -> str:
        """Searches the shelf.

        Slowly but surely.

        Args:
            query: what to look for,
                in plain words
            top_k: how many
        """
        return query

    assert search.name == "search"
    assert search.schema.description == "Searches the shelf.\nSlowly but surely."
    assert search.schema.parameters == {
        "type": "object",
        "properties": {
            "query": {"type": "string", "description": "what to look for, in plain words"},
            "top_k": {"type": "integer", "description": "how many", "default": 5},
        },
        "required": ["query"],
        "additionalProperties": False,
    }


@pytest.mark.parametrize(
    ("hint", "schema"),
    [
        (str, {"type": "string"}),
        (float, {"type": "number"}),
        (bool, {"type": "boolean"}),
        (Literal["b", "a"], {"enum": ["a", "b"]}),
        (Color, {"title": "Color", "enum": ["blue", "red"]}),
        (list[int], {"type": "array", "items": {"type": "integer"}}),
        (dict[str, float], {"type": "object", "additionalProperties": {"type": "number"}}),
        (int | None, {"anyOf": [{"type": "integer"}, {"type": "null"}]}),
        (Annotated[int, msgspec.Meta(ge=1)], {"type": "integer", "minimum": 1}),
        (
            Size,
            {"title": "Size", "type": "object", "properties": {"width": {"type": "integer"}}, "required": ["width"]},
        ),
    ],
    ids=str,
)
def test_type_hints_become_json_types_without_references(hint: Any, schema: dict[str, Any]) -> None:
    def look(value: Any) -> str:
        return ""

    look.__annotations__["value"] = hint
    assert parameters_of(look)["properties"]["value"] == schema


def test_recursive_type_keeps_its_definition() -> None:
    def plant(tree: Tree) -> str:
        return ""

    parameters = parameters_of(plant)
    assert parameters["properties"]["tree"]["properties"]["children"]["items"] == {"$ref": "#/$defs/Tree"}
    assert list(parameters["$defs"]) == ["Tree"]


def test_default_of_an_enum_is_shown_as_its_value() -> None:
    def paint(color: Color = Color.RED) -> str:
        return ""

    assert parameters_of(paint)["properties"]["color"]["default"] == "red"


def no_hint(query) -> str:  # type: ignore[no-untyped-def]
    return ""


def rest(*words: str) -> str:
    return ""


def keywords(**options: str) -> str:
    return ""


def unreadable(value: NoSuchType) -> str:  # type: ignore[name-defined]  # noqa: F821
    return ""


def untyped(value: Any) -> str:
    return ""


def custom(value: threading.Thread) -> str:
    return ""


def binary(value: bytes) -> str:
    return ""


def wrong_default(value: int = None) -> str:  # type: ignore[assignment]  # noqa: RUF013
    return ""


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (no_hint, "tool 'no_hint', parameter 'query': expected a type hint, got none"),
        (rest, "tool 'rest', parameter 'words': expected a parameter that can be given by name"),
        (keywords, "tool 'keywords', parameter 'options': expected a parameter that can be given by name"),
        (unreadable, "tool 'unreadable', parameter 'value': the type hint 'NoSuchType' cannot be read"),
        (untyped, "tool 'untyped', parameter 'value': a model cannot be told what 'Any' is"),
        (custom, "tool 'custom', parameter 'value': the type .*Thread.* has no JSON form"),
        (binary, "tool 'binary', parameter 'value': a model cannot be told what 'bytes' is"),
        (wrong_default, r"parameter 'value': the default None does not fit .*write 'value: \.\.\. \| None = None'"),
    ],
)
def test_signature_that_a_model_cannot_be_told_is_the_authors_error(function: Any, message: str) -> None:
    with pytest.raises(EnvironmentAuthorError, match=message):
        tool(function)


def test_tool_on_something_that_is_no_function_is_refused() -> None:
    with pytest.raises(EnvironmentAuthorError, match="expected a function or method"):
        tool(len)


# ---------------------------------------------------------------- calls


@tool(name="move", version="2")
def move_piece(
    to: Point, steps: int = 1, color: Color = Color.RED, speed: float = 1.0, notes: list[str] | None = None
) -> Any:
    return [to, steps, color, speed, notes]


def test_parameters_arrive_as_python_values() -> None:
    assert move_piece.arguments({"to": {"x": 3}, "color": "blue", "speed": 2}) == {
        "to": Point(3, 0),
        "color": Color.BLUE,
        "speed": 2.0,
    }
    assert move_piece.call({"to": {"x": 3, "y": 0}}) == '[{"x": 3, "y": 0}, 1, "red", 1.0, null]'


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({}, "move: missing parameter 'to' (object)"),
        ({"to": {"x": 1}, "stepz": 2}, "move: unknown parameter 'stepz'; did you mean 'steps'?"),
        ({"to": {"x": 1}, "steps": "2"}, "move: parameter 'steps' must be integer: Expected `int`, got `str`"),
        ({"to": {"x": 1}, "steps": True}, "move: parameter 'steps' must be integer: Expected `int`, got `bool`"),
        ({"to": {"x": "1"}}, "move: parameter 'to' must be object: Expected `int`, got `str` - at `$.x`"),
        (
            {"to": {"x": 1}, "color": "pink"},
            "parameter 'color' must be one of 'blue', 'red': Invalid enum value 'pink'",
        ),
        ({"to": {"x": 1}, "steps": 2**63}, "move: parameter 'steps' must be a number of at most 64 bits"),
        ({"to": {"x": 1}, "speed": float("nan")}, "move: parameter 'speed' must be a finite number"),
        ({"to": {"x": 1}, "notes": ["\ud800"]}, "parameter 'notes' holds half of a surrogate pair, which is not text"),
        ({"stepz": 1}, "unknown parameter 'stepz'; did you mean 'steps'?; missing parameter 'to' (object)"),
    ],
)
def test_D15_wrong_parameters_are_told_to_the_model(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ToolError) as caught:
        move_piece.call(parameters)
    assert message in str(caught.value)


def test_exception_of_a_tool_is_a_crash_naming_tool_parameters_and_original() -> None:
    @tool
    def divide(by: int) -> float:
        return 1 / by

    with pytest.raises(ToolCrash) as caught:
        divide.call({"by": 0})
    assert "tool 'divide' called with {'by': 0} raised ZeroDivisionError: division by zero" in str(caught.value)
    assert isinstance(caught.value.original, ZeroDivisionError)
    assert isinstance(caught.value, EnvironmentAuthorError)


def test_tool_error_passes_through() -> None:
    @tool
    def refuse() -> str:
        raise ToolError("not today")

    with pytest.raises(ToolError, match=r"^not today$"):
        refuse.call({})


def test_tool_in_a_class_is_called_like_a_method() -> None:
    class Shelf:
        def __init__(self, label: str) -> None:
            self.label = label

        @tool
        def read(self, times: int = 1) -> str:
            return self.label * times

    assert Shelf("ab").read(2) == "abab"
    assert Shelf("ab").read.call({"times": 2}) == "abab"
    assert isinstance(Shelf.read.bind(Shelf("c")).call({}), str)


def test_async_tool_runs_to_its_end_with_and_without_a_running_loop() -> None:
    import asyncio

    @tool
    async def wait() -> str:
        await asyncio.sleep(0)
        return "done"

    async def inside() -> str:
        return wait.call({})

    assert wait.call({}) == "done"
    assert asyncio.run(inside()) == "done"


def test_D07_async_tool_is_cancelled_at_its_limit() -> None:
    import asyncio

    cancelled = []

    @tool(timeout_s=0.05)
    async def wait() -> str:
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            cancelled.append(True)
            raise
        return "never"

    with pytest.raises(ToolError, match=r"tool 'wait' did not finish within 0\.05 s"):
        wait.call({})
    assert cancelled == [True]


def test_limit_that_is_not_positive_is_refused() -> None:
    with pytest.raises(EnvironmentAuthorError, match="expected timeout_s above 0"):
        tool(timeout_s=0)


# ---------------------------------------------------------------- text


class Opaque:
    pass


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("as is\n", "as is\n"),
        ({"a": [1, None, "ü"]}, '{"a": [1, null, "ü"]}'),
        (None, ""),
        (b"\xff\x00A", "\ufffd\ufffdA"),
        ("a\x00b", "a\ufffdb"),
        ("\ud800x", "\ufffdx"),
        (ValueError("bad"), "ValueError: bad"),
        ([ValueError("bad"), b"\xff"], '["ValueError: bad", "\ufffd"]'),
        (True, "true"),
        (2.5, "2.5"),
        ((1, 2), "[1, 2]"),
        ({1: "one"}, '{"1": "one"}'),
        (Point(1), '{"x": 1, "y": 0}'),
        (Color.RED, '"red"'),
        (10**30, "1" + "0" * 30),
        ({"x": "\ud800"}, '{"x": "\ufffd"}'),
    ],
    ids=repr,
)
def test_D14_results_become_text_by_one_rule(value: object, text: str) -> None:
    assert to_text(value) == text


def test_D14_object_without_a_json_form_is_shown_without_its_address() -> None:
    assert to_text(Opaque()) == to_text(Opaque())
    assert "0x" not in to_text({"inside": Opaque()})


def test_D14_structure_that_contains_itself_does_not_crash() -> None:
    loop: list[Any] = []
    loop.append(loop)
    assert to_text(loop) == "[[...]]"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (set("deedrl"), '["d", "e", "l", "r"]'),
        ({"ids": frozenset({10, 9, 100})}, '{"ids": [9, 10, 100]}'),
        ([{"b", 1, None}], '[["b", 1, null]]'),
        (({("b", 2), ("a", 1)},), '[[["a", 1], ["b", 2]]]'),
        ({"b": 1, "a": 2}, '{"b": 1, "a": 2}'),
    ],
)
def test_D14_E16_sets_have_one_order_in_every_process(value: object, text: str) -> None:
    assert to_text(value) == text


def test_D14_what_has_no_text_is_named() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    assert to_text(10**5000) == "(int that cannot be shown)"
    assert to_text({"n": 10**5000}) == "(dict that cannot be shown)"
    assert to_text(deep) == "(list that cannot be shown)"


def test_D14_numpy_values_become_numbers() -> None:
    import numpy as np

    assert to_text({"n": np.int64(3), "a": np.array([1, 2])}) == '{"n": 3, "a": [1, 2]}'


def test_output_of_10_MB_is_cut_with_a_note() -> None:
    text = to_text("x" * 10_000_000)
    assert len(text) <= MAX_OUTPUT_CHARS
    kept = text.index("\n")
    assert text[kept:] == f"\n[cut: {10_000_000 - kept} of 10000000 characters left out]"
    assert len(to_text(b"\xff" * 10_000_000)) <= MAX_OUTPUT_CHARS


def test_output_at_the_limit_is_left_alone() -> None:
    assert to_text("x" * MAX_OUTPUT_CHARS) == "x" * MAX_OUTPUT_CHARS


# ---------------------------------------------------------------- toolbox


def named(name: str, version: str = "1") -> Any:
    @tool(name=name, version=version)
    def function() -> str:
        return name

    return function


def test_toolbox_keeps_its_order_and_restricts() -> None:
    box = Toolbox([named("b"), named("a", "3"), named("c")])
    assert list(box) == ["b", "a", "c"]
    assert [schema.name for schema in box.restricted(["c", "b"]).schemas()] == ["b", "c"]
    assert list(box.restricted([])) == ["b", "a", "c"]
    assert box.versions() == {"b": "1", "a": "3", "c": "1"}


def test_toolbox_suggests_near_names() -> None:
    box = Toolbox([named("search_order"), named("reply")])
    with pytest.raises(ToolError, match=r"there is no tool 'serach_order'; did you mean 'search_order'\?"):
        box.find("serach_order")
    with pytest.raises(EnvironmentAuthorError, match="allows the tool 'repyl', which does not exist; did you mean"):
        box.restricted(["repyl"])


def test_two_tools_of_one_name_are_refused() -> None:
    with pytest.raises(EnvironmentAuthorError, match="two tools are called 'a'"):
        Toolbox([named("a"), named("a")])
