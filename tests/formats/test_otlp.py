"""Traces of OpenTelemetry become episodes, and model calls become turns."""

import json
import random

import pytest

from expdb import formats

pytest.importorskip("opentelemetry.proto")
from google.protobuf.json_format import ParseDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

TRACE = "0af7651916cd43dd8448eb211c80319c"
TOOLS = [{"type": "function", "name": "add"}]


def attribute(key, value):
    if isinstance(value, bool):
        return {"key": key, "value": {"boolValue": value}}
    if isinstance(value, int):
        return {"key": key, "value": {"intValue": str(value)}}
    if isinstance(value, float):
        return {"key": key, "value": {"doubleValue": value}}
    if isinstance(value, list):
        values = [{"stringValue": item} for item in value]
        return {"key": key, "value": {"arrayValue": {"values": values}}}
    return {"key": key, "value": {"stringValue": value}}


def span(number, parent, start, attributes, **keys):
    return {
        "traceId": TRACE, "spanId": f"{number:016x}",
        "parentSpanId": f"{parent:016x}" if parent else "", "name": "span", "kind": 1,
        "startTimeUnixNano": str(start * 10**9), "endTimeUnixNano": str(start * 10**9 + 5 * 10**8),
        "attributes": [attribute(key, value) for key, value in attributes.items()], **keys,
    }  # fmt: skip


def request(spans, service="shop"):
    resource = {"attributes": [attribute("service.name", service)]}
    scopes = [{"scope": {"name": "test"}, "spans": spans}]
    return {"resourceSpans": [{"resource": resource, "scopeSpans": scopes}]}


def text(role, content):
    return {"role": role, "parts": [{"type": "text", "content": content}]}


CALL = {
    "role": "assistant", "finish_reason": "tool_call",
    "parts": [{"type": "tool_call", "id": "c1", "name": "add", "arguments": {"a": 2}}],
}  # fmt: skip
RESULT = {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c1", "response": "4"}]}


def gen_ai(messages, answer, **keys):
    return {
        "gen_ai.operation.name": "chat", "gen_ai.request.model": "m",
        "gen_ai.response.model": "m-1", "gen_ai.request.temperature": 0.5,
        "gen_ai.usage.input_tokens": 7,
        "gen_ai.input.messages": json.dumps(messages),
        "gen_ai.output.messages": json.dumps([answer]), **keys,
    }  # fmt: skip


def spans_of_two_agents():
    """Return an agent with two calls, and a sub-agent with one call between them."""
    question = text("user", "2 + 2?")
    return [
        span(1, 0, 100, {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "boss"}),
        span(2, 1, 101, gen_ai(
            [question], CALL, **{
                "gen_ai.system_instructions": json.dumps([{"type": "text", "content": "Add."}]),
                "gen_ai.tool.definitions": json.dumps(TOOLS),
                "gen_ai.response.finish_reasons": ["tool_call"],
                "gen_ai.conversation.id": "talk",
            })),
        span(3, 1, 102, {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "add"}),
        span(4, 3, 103, {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "adder"}),
        span(5, 4, 104, gen_ai([text("user", "2+2")], text("assistant", "4"))),
        span(6, 1, 105, gen_ai([question, CALL, RESULT], text("assistant", "It is 4."))),
    ]  # fmt: skip


def load(buffer, source):
    return formats.import_rollouts(buffer, formats.read(source))


def steps_of(buffer):
    """Return the turns; a field that no turn has is None."""
    fields = {*formats.otlp.TYPES, "episode_id", "execute_time"}
    stored = fields - formats.otlp.TYPES.keys() | buffer.stats()["fields"].keys()
    rows = [row for batch in buffer.scan(fields=sorted(stored)) for row in batch.to_list()]
    return [dict.fromkeys(fields) | row for row in rows]


def test_model_calls_with_genai_attributes_become_turns(scratch):
    report = load(scratch, [request(spans_of_two_agents())])
    assert (report.episodes, report.steps, report.refused) == (2, 3, [])
    first, last, sub = steps_of(scratch)
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 2}'}}
    answer = {"role": "assistant", "content": None, "tool_calls": [call]}
    assert first["messages"] == [
        {"role": "system", "content": "Add."}, {"role": "user", "content": "2 + 2?"},
    ]  # fmt: skip
    assert (first["action"], first["tools"], first["model"]) == (answer, TOOLS, "m-1")
    assert (first["usage"], first["request"]) == (
        {"input_tokens": 7}, {"model": "m", "temperature": 0.5},
    )  # fmt: skip
    assert (first["finish_reason"], first["duration"], first["execute_time"]) == (
        "tool_call", 0.5, 101.0,
    )  # fmt: skip
    assert last["messages"] == [
        {"role": "user", "content": "2 + 2?"}, answer,
        {"role": "tool", "tool_call_id": "c1", "content": "4"},
    ]  # fmt: skip
    assert sub["action"] == {"role": "assistant", "content": "4"}
    rows = scratch.lineage(TRACE).to_pylist()
    assert [(row["agent_id"], row["relation"], row["parent_step"]) for row in rows] == [
        ("boss", None, None), ("adder", "subagent", 0),
    ]  # fmt: skip
    assert json.loads(rows[0]["episode_tags"]) == {"session": "talk"}


def test_spans_in_any_order_and_number_of_requests_give_the_same_episodes(new_buffer, tmp_path):
    expected = None
    for seed in range(5):
        buffer, spans = new_buffer(), spans_of_two_agents()
        random.Random(seed).shuffle(spans)
        path = tmp_path / f"{seed}.jsonl"
        requests = [request(spans[:2]), request(spans[2:3]), request(spans[3:] + spans[:1])]
        path.write_text("".join(f"{json.dumps(part)}\n" for part in requests))
        assert load(buffer, path).refused == []
        assert expected in (None, steps_of(buffer))
        expected = steps_of(buffer)
        assert load(buffer, path).known == 2


def test_protobuf_equals_json(new_buffer, tmp_path):
    values = request(spans_of_two_agents())
    message = ParseDict(values, ExportTraceServiceRequest())
    given = values["resourceSpans"][0]["scopeSpans"][0]["spans"]
    for own, span in zip(message.resource_spans[0].scope_spans[0].spans, given, strict=True):
        own.trace_id = bytes.fromhex(TRACE)  # JSON of protobuf would have base64
        own.span_id = bytes.fromhex(span["spanId"])
        own.parent_span_id = bytes.fromhex(span["parentSpanId"])
    (tmp_path / "a.pb").write_bytes(message.SerializeToString())
    binary, plain = new_buffer(), new_buffer()
    assert load(binary, tmp_path / "a.pb").refused == []
    load(plain, [values])
    assert steps_of(binary) == steps_of(plain)
    assert load(plain, tmp_path / "a.pb").known == 2


def test_model_calls_with_openinference_attributes_become_turns(scratch):
    attributes = {
        "openinference.span.kind": "LLM", "llm.model_name": "m", "llm.token_count.prompt": 5,
        "llm.invocation_parameters": '{"top_p": 0.5}',
        "llm.input_messages.0.message.role": "user",
        "llm.input_messages.0.message.contents.0.message_content.type": "text",
        "llm.input_messages.0.message.contents.0.message_content.text": "hi",
        "llm.input_messages.1.message.role": "tool",
        "llm.input_messages.1.message.content": "4",
        "llm.input_messages.1.message.tool_call_id": "c0",
        "llm.output_messages.0.message.role": "assistant",
        "llm.output_messages.0.message.tool_calls.0.tool_call.id": "c1",
        "llm.output_messages.0.message.tool_calls.0.tool_call.function.name": "add",
        "llm.output_messages.0.message.tool_calls.0.tool_call.function.arguments": "{}",
        "llm.tools.0.tool.json_schema": '{"name": "add"}',
    }  # fmt: skip
    status = {"code": 2, "message": "overloaded"}
    assert load(scratch, [request([span(1, 0, 1, attributes, status=status)])]).refused == []
    (step,) = steps_of(scratch)
    assert step["messages"] == [
        {"role": "user", "content": "hi"}, {"role": "tool", "content": "4", "tool_call_id": "c0"},
    ]  # fmt: skip
    function = {"name": "add", "arguments": "{}"}
    assert step["action"] == {
        "role": "assistant", "content": None,
        "tool_calls": [{"id": "c1", "type": "function", "function": function}],
    }  # fmt: skip
    assert (step["tools"], step["usage"], step["request"], step["error"]) == (
        [{"name": "add"}], {"prompt": 5}, {"top_p": 0.5}, "overloaded",
    )  # fmt: skip
    (row,) = scratch.episodes().to_pylist()
    assert (row["status"], row["agent_id"]) == ("aborted", "shop")


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (request([span(1, 0, 1, {"http.method": "GET"})]), "has no model call"),
        ({"resourceSpans": [7]}, "is not valid OTLP"),
        (request([{"spanId": "1"}]), "is not valid OTLP"),
        (request([span(1, 0, 1, {}) | {"startTimeUnixNano": "x"}]), "is not valid OTLP"),
    ],
)
def test_a_broken_trace_is_refused_and_the_others_are_imported(scratch, values, reason):
    other = request([span(9, 0, 1, gen_ai([], text("assistant", "x"))) | {"traceId": "b" * 32}])
    report = load(scratch, [values, other])
    assert report.episodes == 1
    (found,) = report.refused
    assert reason in found


def test_damaged_protobuf_is_refused(scratch, tmp_path):
    (tmp_path / "a.pb").write_bytes(b"\xff\xff\xff")
    (found,) = load(scratch, tmp_path / "a.pb").refused
    assert "not an OTLP export request" in found
