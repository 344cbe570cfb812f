"""Import traces of OpenTelemetry: model calls with GenAI or OpenInference attributes.

A trace becomes an episode, and each model call becomes a step. Each span of an agent below another
agent becomes an episode of its own, a sub-agent.

The attributes are those of the OpenTelemetry semantic conventions for generative AI, version 1.37
(`gen_ai.input.messages`), and of OpenInference (`llm.input_messages.0.message.role`).
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from expdb.errors import DriverMissing, InvalidValue
from expdb.formats.records import Item, Records, digest_of
from expdb.formats.rollouts import Rollout, Unreadable

TYPES = {
    "messages": "json", "action": "json", "tools": "json", "usage": "json", "request": "json",
    "model": "text", "finish_reason": "text", "error": "text", "duration": "float64",
}  # fmt: skip
_CALLS = ("chat", "text_completion", "generate_content")
_REQUEST = "gen_ai.request."


class Span(NamedTuple):
    """A span of a trace."""

    id: str
    parent: str
    name: str
    start: float  # Unix seconds
    end: float
    attributes: dict[str, Any]
    service: str | None
    error: str | None

    @property
    def is_model_call(self) -> bool:
        """Whether the span is a call of a model."""
        kind = str(self.attributes.get("openinference.span.kind", "")).upper()
        return kind == "LLM" or self.attributes.get("gen_ai.operation.name") in _CALLS

    @property
    def is_agent(self) -> bool:
        """Whether the span is the work of an agent."""
        kind = str(self.attributes.get("openinference.span.kind", "")).upper()
        return kind == "AGENT" or self.attributes.get("gen_ai.operation.name") == "invoke_agent"


def is_otlp(values: Mapping[str, Any]) -> bool:
    """Return whether a record contains spans in OTLP JSON."""
    return isinstance(values.get("resourceSpans"), list)


def parse_request(data: bytes) -> dict[str, Any]:
    """Return an OTLP export request in protobuf as OTLP JSON.

    Raise InvalidValue if the data are no such request.
    """
    try:
        from google.protobuf.json_format import MessageToDict
        from google.protobuf.message import DecodeError
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
            ExportTraceServiceRequest,
        )
    except ImportError:
        raise DriverMissing(
            "OTLP in protobuf requires the package opentelemetry-proto; run `pip install "
            "'expdb[otlp]'`"
        ) from None
    request = ExportTraceServiceRequest()
    try:
        request.ParseFromString(data)
    except DecodeError as error:
        raise InvalidValue(
            f"the file is not an OTLP export request ({error}); export the traces as OTLP"
        ) from None
    values: dict[str, Any] = MessageToDict(request)
    for span in _spans_in(values):
        for key in ("traceId", "spanId", "parentSpanId"):
            if key in span:  # protobuf's JSON has base64, OTLP JSON has hexadecimal digits
                span[key] = base64.b64decode(span[key]).hex()
    return values


def _spans_in(values: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for resource in values.get("resourceSpans") or ():
        for scope in resource.get("scopeSpans") or ():
            yield from scope.get("spans") or ()


def read_otlp(records: Records, names: Mapping[str, str]) -> Iterator[Item]:
    """Convert OTLP requests to rollouts, after all spans are read: a trace may be in several."""
    if names:
        raise InvalidValue("names does not apply to OTLP; omit names (--map)")
    traces: dict[str, dict[str, Span]] = {}
    sources: dict[str, str] = {}
    for record in records:
        if isinstance(record, Unreadable):
            yield record
            continue
        try:
            for trace, span in _parse_spans(record.values):
                traces.setdefault(trace, {})[span.id] = span
                sources.setdefault(trace, record.source)
        except (InvalidValue, ValueError, LookupError, TypeError, AttributeError) as error:
            yield Unreadable(record.source, f"the record is not valid OTLP ({error}); correct it")
    for trace, spans in traces.items():
        try:
            yield from list(rollouts_of_trace(trace, list(spans.values()), sources[trace]))
        except InvalidValue as error:
            yield Unreadable(f"{sources[trace]}: trace {trace}", str(error))


def _parse_spans(values: Mapping[str, Any]) -> Iterator[tuple[str, Span]]:
    for resource in values["resourceSpans"]:
        about = _attributes((resource.get("resource") or {}).get("attributes"))
        for scope in resource.get("scopeSpans") or ():
            for span in scope.get("spans") or ():
                attributes = _attributes(span.get("attributes"))
                for event in span.get("events") or ():
                    if str(event.get("name", "")).startswith("gen_ai."):
                        attributes = _attributes(event.get("attributes")) | attributes
                status = span.get("status") or {}
                is_error = status.get("code") in (2, "STATUS_CODE_ERROR")
                yield (
                    span["traceId"],
                    Span(
                        id=span["spanId"],
                        parent=span.get("parentSpanId") or "",
                        name=str(span.get("name", "")),
                        start=int(span["startTimeUnixNano"]) / 1e9,
                        end=int(span.get("endTimeUnixNano") or span["startTimeUnixNano"]) / 1e9,
                        attributes=attributes,
                        service=about.get("service.name"),
                        error=str(status.get("message") or "error") if is_error else None,
                    ),
                )


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair["key"]: _value(pair.get("value") or {}) for pair in pairs or ()}


def _value(value: Mapping[str, Any]) -> Any:
    """Return an attribute's value, which OTLP JSON nests under the name of its type."""
    if "intValue" in value:
        return int(value["intValue"])
    if "arrayValue" in value:
        return [_value(inner) for inner in value["arrayValue"].get("values") or ()]
    if "kvlistValue" in value:
        return _attributes(value["kvlistValue"].get("values"))
    kinds = ("stringValue", "boolValue", "doubleValue")
    return next((value[kind] for kind in kinds if kind in value), None)


def rollouts_of_trace(trace: str, spans: Sequence[Span], source: str) -> Iterator[Rollout]:
    """Yield the rollouts of a trace: that of its root, and one for each agent below an agent."""
    by_id = {span.id: span for span in spans}
    owners = {span.id: _owner_of(span, by_id) for span in spans}
    calls: dict[str, list[Span]] = {}
    for span in sorted(spans, key=lambda span: (span.start, span.id)):
        if span.is_model_call:
            calls.setdefault(owners[span.id], []).append(span)
    if not calls:
        raise InvalidValue(
            "the trace has no model call with GenAI or OpenInference attributes; instrument the "
            "client of the model"
        )
    agents = sorted(calls, key=lambda owner: (_depth(owner, owners), calls[owner][0].start))
    for owner in agents:
        own = calls[owner]
        around = _agents_around(own[0], by_id)
        agent = by_id[owner] if owner else next(iter(around[-1:]), None)
        name = trace if not owner else f"{trace}/{owner}"
        parent = _parent_of(owner, owners, calls)
        turns = [_turn(span) for span in own]
        attributes = {} if agent is None else agent.attributes
        label = attributes.get("gen_ai.agent.name") or attributes.get("agent.name")
        episode: dict[str, Any] = {
            "episode_id": name,
            "agent_id": label or own[0].service or "agent",
            "started": min(own[0].start, agent.start if agent else own[0].start),
            "ended": max(span.end for span in own),
            "status": "aborted" if own[-1].error else "complete",
        }
        about = own[0].attributes
        session = about.get("gen_ai.conversation.id") or about.get("session.id")
        if session is not None:
            episode["episode_tags"] = {"session": session}
        if parent is not None:
            began = by_id[owner].start
            earlier = [span for span in calls[parent] if span.start <= began]
            episode |= {
                "parent": trace if not parent else f"{trace}/{parent}", "relation": "subagent",
                "parent_step": max(len(earlier) - 1, 0),
            }  # fmt: skip
        content = [list(span) for span in own]
        yield Rollout(
            record=name, digest=digest_of(content), episode=episode, steps=turns, types=TYPES,
            source=f"{source}: trace {trace}",
        )  # fmt: skip


def _agents_around(span: Span, by_id: Mapping[str, Span]) -> list[Span]:
    """Return the spans of agents around a span, the closest first."""
    agents = []
    seen = set[str]()
    while span.parent in by_id and span.parent not in seen:
        seen.add(span.parent)
        span = by_id[span.parent]
        if span.is_agent:
            agents.append(span)
    return agents


def _owner_of(span: Span, by_id: Mapping[str, Span]) -> str:
    """Return the closest span of an agent around a span; "" for the outermost agent."""
    agents = _agents_around(span, by_id)
    return agents[0].id if len(agents) > 1 else ""


def _parent_of(
    owner: str, owners: Mapping[str, str], calls: Mapping[str, Sequence[Span]]
) -> str | None:
    """Return the closest agent around an agent that has called a model, None for none."""
    while owner:
        owner = owners[owner]
        if owner in calls:
            return owner
    return None


def _depth(owner: str, owners: Mapping[str, str]) -> int:
    depth = 0
    while owner:
        owner, depth = owners[owner], depth + 1
    return depth


def _turn(span: Span) -> dict[str, Any]:
    """Return the arguments of `store` for a model call."""
    given = span.attributes
    is_inference = any(key.startswith("llm.") for key in given)
    messages, answers, tools = _open_inference(given) if is_inference else _gen_ai(given)
    usage = {
        key.rsplit(".", 1)[1]: value
        for key, value in given.items()
        if key.startswith(("gen_ai.usage.", "llm.token_count."))
    }
    request = {
        key.removeprefix(_REQUEST): value
        for key, value in given.items()
        if key.startswith(_REQUEST)
    }
    request |= _parse_json(given.get("llm.invocation_parameters"), dict) or {}
    reasons = given.get("gen_ai.response.finish_reasons") or [None]
    model = given.get("gen_ai.response.model") or given.get("gen_ai.request.model")
    turn = {
        "messages": messages,
        "action": answers[0] if answers else {"role": "assistant", "content": None},
        "tools": tools or None,
        "usage": usage or None,
        "request": request or None,
        "model": model or given.get("llm.model_name"),
        "finish_reason": reasons[0] if isinstance(reasons, list) else reasons,
        "error": span.error,
        "execute_time": span.start,
        "duration": span.end - span.start,
    }
    return {name: value for name, value in turn.items() if value is not None}


def _parse_json(value: Any, kind: type) -> Any:
    """Return a value that may be JSON text, None if it is not of a kind."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return None
    return value if isinstance(value, kind) else None


def _gen_ai(given: Mapping[str, Any]) -> tuple[list[Any], list[Any], Any]:
    """Return the messages, the answers and the tools of a call with GenAI attributes."""
    messages = []
    system = _parse_json(given.get("gen_ai.system_instructions"), list)
    if system:
        messages.append({"role": "system", "content": _text_of(system)})
    for message in _parse_json(given.get("gen_ai.input.messages"), list) or ():
        messages += _messages_of(message)
    answers = [
        answer
        for message in _parse_json(given.get("gen_ai.output.messages"), list) or ()
        for answer in _messages_of(message)
    ]
    return messages, answers, _parse_json(given.get("gen_ai.tool.definitions"), list)


def _messages_of(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a message with parts as messages of the OpenAI API."""
    role, parts = str(message.get("role")), message.get("parts")
    if parts is None:
        return [dict(message)]
    calls = [
        {
            "id": part.get("id"),
            "type": "function",
            "function": {"name": part.get("name"), "arguments": _as_text(part.get("arguments"))},
        }
        for part in parts
        if part.get("type") == "tool_call"
    ]
    results = [
        {
            "role": "tool",
            "tool_call_id": part.get("id"),
            "content": _as_text(part.get("response", part.get("result"))),
        }
        for part in parts
        if part.get("type") == "tool_call_response"
    ]
    special = ("tool_call", "tool_call_response", "reasoning")
    rest = [part for part in parts if part.get("type") not in special]
    reasoning = [part.get("content") for part in parts if part.get("type") == "reasoning"]
    own: dict[str, Any] = {"role": role, "content": _text_of(rest) if rest else None}
    if reasoning:
        own["reasoning_content"] = "\n".join(map(str, reasoning))
    if calls:
        own["tool_calls"] = calls
    return results if results and not rest and not calls else [own, *results]


def _text_of(parts: Sequence[Mapping[str, Any]]) -> Any:
    """Return parts as text, or unchanged if one of them is not text."""
    if all(part.get("type") == "text" for part in parts):
        return "\n".join(str(part.get("content", part.get("text", ""))) for part in parts)
    return list(parts)


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _open_inference(given: Mapping[str, Any]) -> tuple[list[Any], list[Any], Any]:
    """Return the messages, the answers and the tools of a call with OpenInference attributes."""
    nested = _nest_attributes(given)
    llm = nested.get("llm") or {}
    both = [
        [
            _inference_message(item["message"])
            for item in _in_order(llm.get(key))
            if "message" in item
        ]
        for key in ("input_messages", "output_messages")
    ]
    tools = [
        _parse_json((item.get("tool") or {}).get("json_schema"), dict)
        for item in _in_order(llm.get("tools"))
    ]
    return both[0], both[1], [tool for tool in tools if tool is not None]


def _nest_attributes(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return dotted attributes such as "llm.input_messages.0.message.role" as nested dicts."""
    root: dict[str, Any] = {}
    for key, value in given.items():
        *path, last = key.split(".")
        place = root
        for part in path:
            inner = place.setdefault(part, {})
            if not isinstance(inner, dict):
                break
            place = inner
        else:
            place[last] = value
    return root


def _in_order(items: Any) -> list[Any]:
    """Return the items of a dict with numbers as keys."""
    if not isinstance(items, dict):
        return []
    return [items[key] for key in sorted(filter(str.isdigit, items), key=int)]


def _inference_message(message: Mapping[str, Any]) -> dict[str, Any]:
    contents = [item.get("message_content", {}) for item in _in_order(message.get("contents"))]
    content = message.get("content")
    if content is None and contents:
        is_text = all(part.get("type") == "text" for part in contents)
        content = "\n".join(str(part.get("text", "")) for part in contents) if is_text else contents
    result: dict[str, Any] = {"role": message.get("role", "user"), "content": content}
    calls = []
    for item in _in_order(message.get("tool_calls")):
        call = item.get("tool_call") or {}
        function = call.get("function") or {}
        calls.append(
            {
                "id": call.get("id"),
                "type": "function",
                "function": {
                    "name": function.get("name"), "arguments": function.get("arguments", "{}"),
                },
            }
        )  # fmt: skip
    if calls:
        result["tool_calls"] = calls
    if message.get("tool_call_id") is not None:
        result["tool_call_id"] = message["tool_call_id"]
    return result
