"""The tools that the cases of malformed calls assume."""

from __future__ import annotations

from typing import Any

import pytest

from deedrl.types import ToolSchema

TEXT = {"type": "string"}
INTEGER = {"type": "integer"}


def make_tool(tool_name: str, required: tuple[str, ...], /, **properties: Any) -> ToolSchema:
    schema = {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}
    return ToolSchema(name=tool_name, parameters=schema)


@pytest.fixture(scope="session")
def tools() -> list[ToolSchema]:
    return [
        make_tool("search", ("query",), query=TEXT, top_k=INTEGER),
        make_tool("calculator", ("expression",), expression=TEXT),
        make_tool("read_file", ("path",), path=TEXT, offset=INTEGER, limit=INTEGER),
        make_tool("write_file", ("path", "content"), path=TEXT, content=TEXT),
        make_tool("get_time", ()),
        make_tool("get_record", ("id",), id=INTEGER),
        make_tool("set_flag", ("name", "enabled"), name=TEXT, enabled={"type": "boolean"}),
        make_tool("tag_items", ("items",), items={"type": "array", "items": TEXT}),
        make_tool("http_get", ("url",), url=TEXT, headers={"type": "object"}),
        make_tool("lookup_zip", ("code",), code=TEXT),
        make_tool("finish", ("answer",), answer=TEXT),
    ]
