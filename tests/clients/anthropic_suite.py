"""The Anthropic Python library against the gate: an engine that speaks /v1/messages itself, and one that is asked for chat
completions instead and whose answers are translated."""

import anthropic
from harness import ALIAS, BASE_URL, DENIED, KEY, QUESTION, STORY, TRANSLATED, WEATHER, raises, run

ASK = {"messages": [{"role": "user", "content": QUESTION}], "max_tokens": 64, "extra_body": {"temperature": 0}}
BOTH = (ALIAS, TRANSLATED)


def client(key: str = KEY) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=BASE_URL, api_key=key, max_retries=0, timeout=120)


def text_of(message) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


def test_a_message_is_answered_under_the_alias():
    for model in BOTH:
        message = client().messages.create(model=model, **ASK)
        assert "Paris" in text_of(message), (model, message)
        assert message.model == model and message.role == "assistant" and message.type == "message", message
        assert message.stop_reason == "end_turn", message
        assert message.usage.input_tokens >= 0 and message.usage.output_tokens > 0, message.usage


def test_a_stream_says_the_same():
    for model in BOTH:
        whole = client().messages.create(model=model, **ASK)
        with client().messages.stream(model=model, **ASK) as stream:
            text = "".join(stream.text_stream)
            final = stream.get_final_message()
        assert text == text_of(whole) == text_of(final), (model, text, whole)
        assert final.stop_reason == "end_turn" and final.model == model, final
        assert final.usage.output_tokens == whole.usage.output_tokens, (final.usage, whole.usage)


def test_the_events_of_a_stream_come_in_their_order():
    for model in BOTH:
        events = [event.type for event in client().messages.create(model=model, **ASK, stream=True)]
        kept = [kind for at, kind in enumerate(events) if kind != "ping" and (at == 0 or events[at - 1] != kind)]
        assert kept == [
            "message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta",
            "message_stop",
        ], (model, kept)


def test_a_system_prompt_and_a_conversation_are_taken():
    for model in BOTH:
        message = client().messages.create(
            model=model,
            system=[{"type": "text", "text": "You answer with one word."}],
            messages=[
                {"role": "user", "content": [{"type": "text", "text": "Name a colour."}]},
                {"role": "assistant", "content": [{"type": "text", "text": "Red"}]},
                {"role": "user", "content": [{"type": "text", "text": "Name another one."}]},
            ],
            max_tokens=16,
            extra_body={"temperature": 0},
        )
        assert text_of(message).strip(), (model, message)


def test_the_token_bound_is_the_reason_to_stop():
    for model in BOTH:
        asked = ASK | {"messages": [{"role": "user", "content": STORY}], "max_tokens": 8}
        message = client().messages.create(model=model, **asked)
        assert message.stop_reason == "max_tokens" and message.usage.output_tokens == 8, (model, message)


def test_a_tool_request_is_accepted_and_its_answer_parses():
    tools = [{"name": "weather", "description": "Weather now", "input_schema": WEATHER}]
    asked = ASK | {"messages": [{"role": "user", "content": "What is the weather in Seoul?"}], "tools": tools}
    for model in BOTH:
        message = client().messages.create(model=model, **asked)
        assert {block.type for block in message.content} <= {"text", "tool_use"} and message.content, (model, message)
        with client().messages.stream(model=model, **asked) as stream:
            assert stream.get_final_message().stop_reason in ("end_turn", "tool_use", "max_tokens")


def test_a_tool_result_is_taken():
    tools = [{"name": "weather", "description": "Weather now", "input_schema": WEATHER}]
    messages = [
        {"role": "user", "content": "What is the weather in Seoul?"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Seoul"}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "rain, 12 degrees"}]},
    ]
    for model in BOTH:
        message = client().messages.create(model=model, **ASK | {"messages": messages}, tools=tools)
        assert message.content, (model, message)


def test_tokens_are_counted():
    counted = client().messages.count_tokens(model=ALIAS, messages=ASK["messages"])
    assert 5 < counted.input_tokens < 100, counted


def test_errors_have_the_shape_that_the_library_knows():
    error = raises(anthropic.AuthenticationError, lambda: client("sk-ant-nobody").messages.create(model=ALIAS, **ASK))
    assert error.body["type"] == "error" and error.body["error"]["type"] == "authentication_error", error.body
    for model in ("no-such-model", DENIED):
        error = raises(anthropic.NotFoundError, lambda: client().messages.create(model=model, **ASK))
        assert error.body["error"]["type"] == "not_found_error" and error.body["request_id"], error.body
    error = raises(anthropic.BadRequestError, lambda: client().messages.create(model=ALIAS, **ASK | {"max_tokens": -1}))
    assert error.body["error"]["type"] == "invalid_request_error", error.body


if __name__ == "__main__":
    run(globals())
