"""Build the request of each provider's adapter, and check it by the provider's rules.

No request is sent. The rules are those whose violation the providers answer with an
error (tool calls answered at once and completely, roles in an accepted order).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

from langchain_core.messages import BaseMessage
from pydantic import SecretStr

KEY = SecretStr("not-a-key")


def payloads(messages: Sequence[BaseMessage]) -> dict[str, Any]:
    """Return the payload of each provider for these messages."""
    # Imported here: that takes seconds, and every process of a run collects all tests.
    from langchain_anthropic import ChatAnthropic  # noqa: PLC0415 - see above
    from langchain_google_genai import ChatGoogleGenerativeAI  # noqa: PLC0415 - as well
    from langchain_openai import ChatOpenAI  # noqa: PLC0415 - as well

    chat: Any = ChatOpenAI(model="gpt-5", api_key=KEY)
    responses: Any = ChatOpenAI(model="gpt-5", api_key=KEY, use_responses_api=True)
    claude: dict[str, Any] = {"model": "claude-sonnet-4-5", "api_key": KEY}
    anthropic: Any = ChatAnthropic(**claude)
    google: Any = ChatGoogleGenerativeAI(model="gemini-2.5-pro", api_key=KEY)
    given = list(messages)
    contents = google._prepare_request(given)["contents"]
    return {
        "openai": chat._get_request_payload(given),
        "responses": responses._get_request_payload(given),
        "anthropic": anthropic._get_request_payload(given),
        "google": [content.model_dump() for content in contents],
    }


def problems(provider: str, payload: Any) -> list[str]:
    """Return what a provider would refuse about its payload."""
    check = {
        "openai": _openai,
        "responses": _responses,
        "anthropic": _anthropic,
        "google": _google,
    }[provider]
    return list(check(payload))


def texts(value: Any) -> Iterator[str]:
    """Yield every string in a payload."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for member in cast("dict[str, Any]", value).values():
            yield from texts(member)
    elif isinstance(value, list | tuple):
        for element in cast("list[Any]", value):
            yield from texts(element)


def _openai(payload: Any) -> Iterator[str]:
    awaited: list[str] = []
    for message in payload["messages"]:
        if message["role"] == "tool":
            if message["tool_call_id"] not in awaited:
                yield f"a result for {message['tool_call_id']} that nobody asked for"
            else:
                awaited.remove(message["tool_call_id"])
            continue
        if awaited:
            yield f"{message['role']} before the results of {awaited}"
        awaited = [call["id"] for call in message.get("tool_calls", [])]
    if awaited:
        yield f"no results of {awaited}"


def _responses(payload: Any) -> Iterator[str]:
    awaited: list[str] = []
    for item in payload["input"]:
        if item["type"] == "function_call":
            awaited.append(item["call_id"])
        elif item["type"] == "function_call_output":
            if item["call_id"] not in awaited:
                yield f"an output of {item['call_id']} before its call"
            else:
                awaited.remove(item["call_id"])
        elif awaited:
            yield f"a message before the outputs of {awaited}"
    if awaited:
        yield f"no outputs of {awaited}"


def _anthropic(payload: Any) -> Iterator[str]:
    awaited: list[str] = []
    last = "assistant"
    for message in payload["messages"]:
        if message["role"] == last:
            yield f"two messages of {last} in a row"
        last = message["role"]
        content = message["content"]
        blocks: list[Any] = [] if type(content) is str else content
        first = [b for b in blocks[: len(awaited)] if b["type"] == "tool_result"]
        if sorted(b["tool_use_id"] for b in first) != sorted(awaited):
            yield f"the results of {awaited} do not come first and at once"
        if len([b for b in blocks if b["type"] == "tool_result"]) != len(awaited):
            yield "results that nobody asked for"
        if not content:
            yield "an empty message"
        awaited = [b["id"] for b in blocks if b["type"] == "tool_use"]
    if awaited:
        yield f"no results of {awaited}"


def _google(contents: Any) -> Iterator[str]:
    awaited = 0
    for content in contents:
        parts = content["parts"]
        given = len([p for p in parts if p["function_response"]])
        if given != awaited:
            yield f"{given} responses where {awaited} were asked for"
        awaited = len([p for p in parts if p["function_call"]])
        if awaited and content["role"] != "model":
            yield "a call by somebody else than the model"
    if awaited:
        yield "calls without responses"
