"""The OpenAI Python library against the gate, with a real model behind it."""

import json
import math
import threading

import httpx2
import openai
from harness import (
    ALIAS, BASE_URL, DENIED, EMBEDDINGS, KEY, LIMITED_KEY, QUESTION, SINGLE_KEY, STORY, TRANSLATED, WEATHER,
    raises, run, until, usage,
)

ASK = {"model": ALIAS, "messages": [{"role": "user", "content": QUESTION}], "temperature": 0, "max_tokens": 64}


def client(key: str = KEY) -> openai.OpenAI:
    # no retries of the library's own: each answer is looked at
    return openai.OpenAI(base_url=f"{BASE_URL}/v1", api_key=key, max_retries=0, timeout=120)


def test_a_chat_is_answered_under_the_alias():
    raw = client().chat.completions.with_raw_response.create(**ASK)
    answer = raw.parse()
    assert "Paris" in answer.choices[0].message.content, answer
    assert answer.choices[0].finish_reason == "stop", answer
    assert answer.model == ALIAS, answer.model
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens > 0
    assert raw.headers["x-request-id"] == answer._request_id, raw.headers


def test_a_well_formed_request_id_comes_back():
    raw = client().chat.completions.with_raw_response.create(**ASK, extra_headers={"x-request-id": "suite-4711"})
    assert raw.headers["x-request-id"] == "suite-4711", raw.headers


def test_a_stream_says_the_same_and_no_usage_unless_asked():
    whole = client().chat.completions.create(**ASK)
    chunks = list(client().chat.completions.create(**ASK, stream=True))
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert text == whole.choices[0].message.content, (text, whole)
    assert all(chunk.usage is None for chunk in chunks), chunks[-1]
    assert all(chunk.choices for chunk in chunks), "a chunk without choices, though no usage was asked for"
    assert {chunk.model for chunk in chunks} == {ALIAS}
    assert chunks[-1].choices[0].finish_reason == "stop", chunks[-1]


def test_a_stream_ends_with_its_usage_when_asked():
    whole = client().chat.completions.create(**ASK)
    chunks = list(client().chat.completions.create(**ASK, stream=True, stream_options={"include_usage": True}))
    *others, last = chunks
    assert last.choices == [] and last.usage is not None, last
    assert last.usage.completion_tokens == whole.usage.completion_tokens, (last.usage, whole.usage)
    assert last.usage.prompt_tokens == whole.usage.prompt_tokens, (last.usage, whole.usage)
    assert all(chunk.usage is None for chunk in others)


def test_a_completion_is_answered():
    answer = client().completions.create(model=ALIAS, prompt="The capital of France is", max_tokens=8, temperature=0)
    assert answer.choices[0].text.strip() and answer.model == ALIAS, answer
    chunks = list(client().completions.create(model=ALIAS, prompt="Count: one, two,", max_tokens=8, stream=True))
    assert "".join(choice.text for chunk in chunks for choice in chunk.choices).strip()


def test_a_response_is_answered():
    answer = client().responses.create(model=ALIAS, input=QUESTION, temperature=0, max_output_tokens=64)
    assert "Paris" in answer.output_text, answer
    events = list(client().responses.create(model=ALIAS, input=QUESTION, temperature=0, max_output_tokens=64, stream=True))
    assert events[-1].type == "response.completed", events[-1]
    assert "Paris" in events[-1].response.output_text, events[-1]


def test_embeddings_of_near_texts_are_nearer():
    texts = ["The cat sleeps on the sofa.", "A cat is sleeping on a couch.", "Interest rates rose by two percent."]
    answer = client().embeddings.create(model=EMBEDDINGS, input=texts)
    one, two, three = (item.embedding for item in answer.data)
    cosine = lambda a, b: sum(x * y for x, y in zip(a, b)) / math.dist(a, [0] * len(a)) / math.dist(b, [0] * len(b))
    assert len(one) == len(two) == len(three) > 100
    assert cosine(one, two) > cosine(one, three), (cosine(one, two), cosine(one, three))
    assert answer.model == EMBEDDINGS and answer.usage.prompt_tokens > 0, answer.usage


def test_models_lists_what_the_key_may_use():
    names = {model.id for model in client().models.list()}
    assert {ALIAS, TRANSLATED, EMBEDDINGS} <= names and DENIED not in names, names
    assert client().models.retrieve(ALIAS).id == ALIAS
    raises(openai.NotFoundError, lambda: client().models.retrieve(DENIED))


def test_a_wrong_key_is_an_authentication_error():
    for key in ("sk-nobody", "tg_live_aaaaaaaa_" + "a" * 43):
        error = raises(openai.AuthenticationError, lambda: client(key).chat.completions.create(**ASK))
        assert error.code == "invalid_api_key" and error.type == "invalid_request_error", error.body
        assert key not in str(error.body), "the answer holds the key"


def test_an_unknown_model_and_a_denied_one_are_answered_alike():
    errors = []
    for model in ("no-such-model", DENIED):
        error = raises(openai.NotFoundError, lambda: client().chat.completions.create(**ASK | {"model": model}))
        assert error.code == "model_not_found" and error.request_id, (error.body, error.request_id)
        errors.append(error.body["message"].replace(model, "X"))
    assert errors[0] == errors[1], errors


def test_a_body_that_is_no_json_is_said_to_be_none():
    headers = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
    answer = httpx2.post(f"{BASE_URL}/v1/chat/completions", content=b'{"model": "chat",', headers=headers)
    assert answer.status_code == 400, answer
    error = answer.json()["error"]
    assert error["code"] == "json_parse_error" and error["type"] == "invalid_request_error", error
    assert answer.headers["x-request-id"]


def test_a_wrong_parameter_is_named():
    error = raises(openai.BadRequestError, lambda: client().chat.completions.create(**ASK | {"max_tokens": -1}))
    assert error.param == "max_tokens", error.body
    error = raises(openai.BadRequestError, lambda: client().chat.completions.create(**ASK | {"messages": "hello"}))
    assert error.param == "messages", error.body


def test_a_prompt_over_the_context_is_refused_for_what_it_is():
    messages = [{"role": "user", "content": "word " * 20_000}]
    error = raises(openai.BadRequestError, lambda: client().chat.completions.create(**ASK | {"messages": messages}))
    assert error.code == "context_length_exceeded", error.body


def test_an_unknown_path_answers_in_the_shape_of_the_api():
    answer = httpx2.get(f"{BASE_URL}/v1/nothing", headers={"authorization": f"Bearer {KEY}"})
    assert answer.status_code == 404 and answer.json()["error"]["type"] == "invalid_request_error", answer.text
    for path in ("/metrics", "/slots", "/props", "/health"):
        answer = httpx2.get(BASE_URL + path, headers={"authorization": f"Bearer {KEY}"})
        assert answer.status_code == 404, f"the engine's {path} is reachable: {answer.status_code}"


def test_a_tool_request_is_accepted_and_its_answer_parses():
    tools = [{"type": "function", "function": {"name": "weather", "description": "Weather now", "parameters": WEATHER}}]
    asked = ASK | {"messages": [{"role": "user", "content": "What is the weather in Seoul?"}], "tools": tools}
    message = client().chat.completions.create(**asked).choices[0].message
    # this small model rarely calls; when it does, the call must be whole
    for call in message.tool_calls or []:
        assert call.function.name and json.loads(call.function.arguments) is not None, call
    assert message.content or message.tool_calls, message
    chunks = list(client().chat.completions.create(**asked, stream=True))
    assert chunks[-1].choices[0].finish_reason in ("stop", "tool_calls", "length"), chunks[-1]
    assert any(choice.delta.content or choice.delta.tool_calls for chunk in chunks for choice in chunk.choices)


def test_a_stream_left_by_its_caller_frees_its_slot_and_is_in_the_ledger():
    # the team may have one request in flight: as long as the slot is held, the next is refused
    before = usage("single")
    asked = ASK | {"messages": [{"role": "user", "content": STORY}], "max_tokens": 1000}
    stream = client(SINGLE_KEY).chat.completions.create(**asked, stream=True)
    for _, _ in zip(range(3), stream):
        pass
    error = raises(openai.RateLimitError, lambda: client(SINGLE_KEY).chat.completions.create(**ASK))
    assert error.code == "rate_limit_exceeded", error.body
    stream.close()

    def free():
        try:
            return client(SINGLE_KEY).chat.completions.create(**ASK)
        except openai.RateLimitError:
            return None

    until("the slot is free", free)
    after = until("the entry is there", lambda: (u := usage("single"))["cancelled"] > before.get("cancelled", 0) and u)
    assert after["cancelled"] == before.get("cancelled", 0) + 1, (before, after)
    assert after["output_tokens"] > before.get("output_tokens", 0) + 3, (before, after)


def test_a_rate_limit_says_when_to_come_back():
    limited = client(LIMITED_KEY)
    raw = limited.chat.completions.with_raw_response.create(**ASK | {"max_tokens": 1})
    assert raw.headers["x-ratelimit-limit-requests"] == "3", raw.headers
    assert raw.headers["x-ratelimit-remaining-requests"] == "2", raw.headers
    for _ in range(2):
        limited.chat.completions.create(**ASK | {"max_tokens": 1})
    error = raises(openai.RateLimitError, lambda: limited.chat.completions.create(**ASK | {"max_tokens": 1}))
    assert error.code == "rate_limit_exceeded" and error.type == "requests", error.body
    assert 1 <= int(error.response.headers["retry-after"]) <= 60, error.response.headers


def test_parallel_calls_never_exceed_the_concurrency_limit():
    # one may be in flight, and it has work for seconds: of twelve that arrive together, eleven are refused
    asked = ASK | {"messages": [{"role": "user", "content": STORY}], "max_tokens": 200}
    together, outcomes = threading.Barrier(12), []

    def call(one: openai.OpenAI):
        together.wait()
        try:
            one.chat.completions.create(**asked)
            outcomes.append("answered")
        except openai.RateLimitError as error:
            outcomes.append(error.code)

    threads = [threading.Thread(target=call, args=[client(SINGLE_KEY)]) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["answered"] + ["rate_limit_exceeded"] * 11, outcomes


def test_the_ledger_adds_up_to_what_was_answered():
    before = usage("clients")
    answers = [client().chat.completions.create(**ASK) for _ in range(3)]
    after = usage("clients")
    assert after["ok"] - before["ok"] == 3, (before, after)
    for mine, theirs in (("prompt_tokens", "prompt_tokens"), ("output_tokens", "completion_tokens")):
        reported = sum(getattr(answer.usage, theirs) for answer in answers)
        assert after[mine] - before[mine] == reported, (mine, before, after, reported)


if __name__ == "__main__":
    run(globals())
