use bytes::Bytes;
use proptest::prelude::*;
use tidegate_wire::sse::{Cause, EVENT_MAX, Stream, StreamFault, StreamOptions};
use tidegate_wire::{Flavour, Usage, UsageAsked};

use crate::shared::{fixture, streams};

const ASKED: [UsageAsked; 3] = [UsageAsked::No, UsageAsked::Final, UsageAsked::Continuous];

fn stream(flavour: Flavour, asked: UsageAsked, alias: &str) -> Stream {
    Stream::new(StreamOptions { flavour, alias: alias.into(), asked })
}

/// What left, how it ended, and what was read.
#[derive(Debug, PartialEq)]
struct Run {
    out: Vec<u8>,
    fault: Option<Cause>,
    usage: Option<Usage>,
    id: Option<String>,
    content: u64,
    progress: u64,
}

fn run<'a>(mut stream: Stream, reads: impl IntoIterator<Item = &'a [u8]>) -> Run {
    let mut out = Vec::new();
    let mut fault = None;
    let mut take = |result: Result<Bytes, StreamFault>, fault: &mut Option<Cause>| match result {
        Ok(bytes) => out.extend_from_slice(&bytes),
        Err(broken) => {
            out.extend_from_slice(&broken.before);
            assert!(fault.replace(broken.cause).is_none(), "a stream breaks once");
        }
    };
    for read in reads {
        take(stream.push(Bytes::copy_from_slice(read)), &mut fault);
    }
    if fault.is_none() {
        take(stream.end(), &mut fault);
    }
    Run {
        out,
        fault,
        usage: stream.usage(),
        id: stream.engine_id().map(str::to_owned),
        content: stream.content_events(),
        progress: stream.progress(),
    }
}

fn flavour(name: &str) -> Flavour {
    if name.contains("completions") { Flavour::Completions } else { Flavour::Chat }
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// Data of the events, parsed by another parser.
fn events(bytes: &[u8]) -> Vec<serde_json::Value> {
    text(bytes)
        .split("\n\n")
        .filter_map(|event| event.strip_prefix("data: "))
        .filter(|data| *data != "[DONE]")
        .map(|data| serde_json::from_str(data).unwrap_or_else(|error| panic!("{error}: {data}")))
        .collect()
}

#[test]
fn captured_streams_leave_byte_for_byte_but_for_model_and_usage() {
    for (name, body) in streams() {
        let engine_model = events(&body)[0]["model"].as_str().unwrap().to_owned();
        let same = run(stream(flavour(&name), UsageAsked::Continuous, &engine_model), [&body[..]]);
        assert_eq!(same.fault, None, "{name}");
        assert_eq!(text(&same.out), text(&body), "{name}: nothing changes when the names agree");
        let renamed = run(stream(flavour(&name), UsageAsked::Continuous, "glm-flash"), [&body[..]]);
        let expected = text(&body).replace(&format!("\"model\":\"{engine_model}\""), "\"model\":\"glm-flash\"");
        assert_eq!(text(&renamed.out), expected, "{name}");
        assert!(renamed.content > 0, "{name}");
    }
}

#[test]
fn usage_is_cut_null_or_left_as_the_caller_asked() {
    let body = fixture("vllm/chat_stream_continuous_usage.http");
    let expected = Some(Usage { prompt: 37, cached: 0, output: 4 });
    let before = events(&body);
    for asked in ASKED {
        let run = run(stream(Flavour::Chat, asked, "a"), [&body[..]]);
        assert_eq!((run.usage, run.fault), (expected, None), "{asked:?}");
        assert_eq!(run.content, 4);
        let after = events(&run.out);
        let extra = after.iter().filter(|event| event["choices"].as_array().unwrap().is_empty()).count();
        match asked {
            UsageAsked::No => {
                assert_eq!(after.len(), before.len() - 1);
                assert!(after.iter().all(|event| event.get("usage").is_none()));
            }
            UsageAsked::Final => {
                assert_eq!((after.len(), extra), (before.len(), 1));
                for event in &after {
                    assert_eq!(event["usage"].is_null(), !event["choices"].as_array().unwrap().is_empty());
                    assert!(event.get("usage").is_some());
                }
            }
            UsageAsked::Continuous => assert!(after.iter().all(|event| event["usage"].is_object())),
        }
    }
}

#[test]
fn cached_tokens_of_a_real_llama_cpp_stream_are_read() {
    let body = fixture("llamacpp/chat_stream_usage.http");
    let run = run(stream(Flavour::Chat, UsageAsked::No, "a"), [&body[..]]);
    assert_eq!(run.usage, Some(Usage { prompt: 34, cached: 24, output: 12 }));
    assert_eq!(run.id.as_deref(), Some("chatcmpl-qJABh65G6GcEJCDlHSBS4eBadQgyZKzq"));
    assert!(!text(&run.out).contains("timings"), "the extra chunk is gone");
    assert!(run.out.ends_with(b"data: [DONE]\n\n"));
}

#[test]
fn every_split_of_a_captured_stream_gives_the_same_output() {
    for (name, body) in streams() {
        for asked in ASKED {
            let whole = run(stream(flavour(&name), asked, "glm-flash"), [&body[..]]);
            // Every place once; the other two ways of asking change the output only, not what waits.
            let step = if asked == UsageAsked::No { 1 } else { 13 };
            for at in (0..=body.len()).step_by(step) {
                let split = run(stream(flavour(&name), asked, "glm-flash"), [&body[..at], &body[at..]]);
                assert_eq!(split, whole, "{name} split at {at}");
            }
            let bytes = run(stream(flavour(&name), asked, "glm-flash"), body.chunks(1));
            assert_eq!(bytes, whole, "{name} byte by byte");
        }
    }
}

#[test]
fn nothing_after_an_error_event_is_passed_on() {
    let body = b"data: {\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}]}\n\n\
        data: {\"error\":{\"message\":\"EngineCore died\",\"code\":500}}\n\ndata: [DONE]\n\n";
    let run = run(stream(Flavour::Chat, UsageAsked::No, "m"), [&body[..]]);
    assert!(text(&run.out).ends_with("\"a\"}}]}\n\n"), "what came before leaves");
    let Some(Cause::EngineError(kept)) = run.fault else { panic!("{:?}", run.fault) };
    assert!(kept.contains("EngineCore died"));
}

#[test]
fn an_error_member_that_says_nothing_is_no_error() {
    let body = b"data: {\"error\":null,\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n";
    assert_eq!(run(stream(Flavour::Chat, UsageAsked::No, "m"), [&body[..]]).fault, None);
}

#[test]
fn finish_reason_abort_breaks_the_stream_but_the_word_in_content_does_not() {
    let abort =
        b"data: {\"choices\":[{\"delta\":{\"content\":\"x\"},\"finish_reason\":\"abort\"}]}\n\ndata: [DONE]\n\n";
    let run_abort = run(stream(Flavour::Chat, UsageAsked::No, "m"), [&abort[..]]);
    assert_eq!((run_abort.fault, run_abort.out.len()), (Some(Cause::Aborted), 0));
    let content = br#"data: {"choices":[{"delta":{"content":"\"finish_reason\":\"abort\""},"finish_reason":"stop"}]}

data: [DONE]

"#;
    let run_content = run(stream(Flavour::Chat, UsageAsked::No, "m"), [&content[..]]);
    assert_eq!(run_content.fault, None);
    assert_eq!(run_content.out, content);
}

#[test]
fn a_stream_without_its_end_is_truncated() {
    let body = fixture("vllm/chat_stream.http");
    let done = text(&body).rfind("data: [DONE]").unwrap();
    let run_cut = run(stream(Flavour::Chat, UsageAsked::No, "tiny"), [&body[..done]]);
    assert_eq!(run_cut.fault, Some(Cause::Truncated));
    assert_eq!(run_cut.out, &body[..done]);
    let unfinished = b"data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\ndata: [DONE]\n\n";
    let run_unfinished = run(stream(Flavour::Chat, UsageAsked::No, "tiny"), [&unfinished[..]]);
    assert_eq!(run_unfinished.fault, Some(Cause::Truncated));
    assert!(!text(&run_unfinished.out).contains("[DONE]"));
}

#[test]
fn an_end_without_its_empty_line_counts() {
    for end in ["data: [DONE]", "data: [DONE]\n", "data: [DONE]\r\n\r", "data: [DONE]\r\r"] {
        let body = format!("data: {{\"choices\":[{{\"finish_reason\":\"stop\"}}]}}\n\n{end}");
        let run = run(stream(Flavour::Chat, UsageAsked::No, "m"), [body.as_bytes()]);
        assert_eq!(run.fault, None, "{end:?}");
        assert!(text(&run.out).contains("[DONE]"), "{end:?}");
    }
}

#[test]
fn comments_pass_and_are_no_progress() {
    let mut stream = stream(Flavour::Chat, UsageAsked::No, "m");
    assert_eq!(&stream.push(Bytes::from_static(b": still here\n\n")).unwrap()[..], b": still here\n\n");
    assert_eq!(stream.progress(), 0);
}

#[test]
fn a_read_in_which_nothing_changes_is_not_copied() {
    let read = Bytes::from_static(b"data: {\"model\":\"m\",\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n");
    let out = stream(Flavour::Chat, UsageAsked::No, "m").push(read.clone()).unwrap();
    assert_eq!((out.as_ptr(), out.len()), (read.as_ptr(), read.len()));
}

#[test]
fn an_event_of_the_largest_size_passes_and_one_byte_more_breaks_whatever_the_reads() {
    let frame = "data: {\"choices\":[{\"delta\":{\"content\":\"\"},\"finish_reason\":\"stop\"}]}\n\n".len();
    for (size, broken) in [(EVENT_MAX, false), (EVENT_MAX + 1, true)] {
        let filler = "x".repeat(size - frame);
        let body = format!(
            "data: {{\"choices\":[{{\"delta\":{{\"content\":\"{filler}\"}},\"finish_reason\":\"stop\"}}]}}\n\ndata: [DONE]\n\n"
        );
        for read in [body.len(), 4096, 65_537] {
            let run = run(stream(Flavour::Chat, UsageAsked::No, "m"), body.as_bytes().chunks(read));
            assert_eq!(run.fault, broken.then_some(Cause::TooLarge), "{size} in reads of {read}");
        }
    }
}

#[test]
fn responses_streams_end_with_their_own_event_and_name_the_alias() {
    let body = "event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"id\":\"resp_1\",\"model\":\"tiny\",\"usage\":null}}\n\n\
        event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"delta\":\"a\",\"model\":\"x\"}\n\n\
        event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"id\":\"resp_1\",\"model\":\"tiny\",\"usage\":{\"input_tokens\":31,\"output_tokens\":4,\"input_tokens_details\":{\"cached_tokens\":30}}}}\n\n";
    let run_whole = run(stream(Flavour::Responses, UsageAsked::No, "al"), [body.as_bytes()]);
    assert_eq!(run_whole.fault, None);
    assert_eq!(run_whole.usage, Some(Usage { prompt: 31, cached: 30, output: 4 }));
    assert_eq!(run_whole.id.as_deref(), Some("resp_1"));
    assert_eq!(run_whole.content, 1);
    assert_eq!(text(&run_whole.out), body.replace("\"tiny\"", "\"al\"").replace("\"x\"", "\"al\""));
    let failed = "event: response.failed\ndata: {\"type\":\"response.failed\",\"response\":{\"model\":\"tiny\"}}\n\n";
    let run_failed = run(stream(Flavour::Responses, UsageAsked::No, "al"), [failed.as_bytes()]);
    assert!(matches!(run_failed.fault, Some(Cause::EngineError(_))));
}

#[test]
fn messages_streams_sum_their_three_prompt_fields_over_two_events() {
    let body = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"msg_1\",\"model\":\"tiny\",\"usage\":{\"input_tokens\":7,\"cache_read_input_tokens\":24,\"output_tokens\":0}}}\n\n\
        event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"a\"}}\n\n\
        event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{\"output_tokens\":8}}\n\n\
        event: message_stop\ndata: {\"type\":\"message_stop\"}\n\ndata: [DONE]\n\n";
    let run = run(stream(Flavour::Messages, UsageAsked::No, "al"), [body.as_bytes()]);
    assert_eq!(run.fault, None);
    assert_eq!(run.usage, Some(Usage { prompt: 31, cached: 24, output: 8 }));
    assert_eq!(text(&run.out), body.replace("\"tiny\"", "\"al\"").replace("data: [DONE]\n\n", ""));
}

#[test]
fn an_explicit_zero_is_a_count() {
    let body = b"data: {\"choices\":[],\"usage\":{\"prompt_tokens\":0,\"completion_tokens\":0}}\n\n";
    assert_eq!(run(stream(Flavour::Chat, UsageAsked::No, "m"), [&body[..]]).usage, Some(Usage::default()));
    assert_eq!(run(stream(Flavour::Chat, UsageAsked::No, "m"), [&b": x\n\n"[..]]).usage, None);
}

#[test]
fn usage_is_cut_wherever_it_stands() {
    for (event, expected) in [
        (r#"{"usage":{"a":1},"choices":[{}]}"#, r#"{"choices":[{}]}"#),
        (r#"{ "usage" : null , "choices":[{}]}"#, r#"{  "choices":[{}]}"#),
        (r#"{"choices":[{}],"usage":null}"#, r#"{"choices":[{}]}"#),
        (r#"{"choices":[{}] , "usage":null , "x":1}"#, r#"{"choices":[{}] , "x":1}"#),
        (r#"{"usage":null}"#, "{}"),
        (r#"{"usage":null,"model":"x"}"#, r#"{"model":"m"}"#),
        (r#"{"model":"x","usage":null}"#, r#"{"model":"m"}"#),
    ] {
        let body = format!("data: {event}\n\n");
        let out = stream(Flavour::Chat, UsageAsked::No, "m").push(body.into()).unwrap();
        assert_eq!(text(&out), format!("data: {expected}\n\n"));
        let _: serde_json::Value = serde_json::from_str(expected).unwrap();
    }
}

#[test]
fn data_on_several_lines_is_one_event() {
    let body = b"event: x\ndata: {\"model\":\ndata: \"tiny\"}\n\n";
    let out = stream(Flavour::Chat, UsageAsked::No, "m").push(Bytes::from_static(body)).unwrap();
    assert_eq!(text(&out), "event: x\ndata: {\"model\":\ndata: \"m\"}\n\n");
}

#[test]
fn data_that_is_not_json_breaks_the_stream() {
    for data in ["hello", "{", "{}x", "[]", "{\"usage\":1,}", "{\"usage\":null,\"usage\":null}"] {
        let fault = stream(Flavour::Chat, UsageAsked::No, "m").push(format!("data: {data}\n\n").into()).unwrap_err();
        assert_eq!(fault.cause, Cause::Malformed, "{data}");
    }
}

/// Events as engines make them, with the things that could confuse a reader.
fn event() -> impl Strategy<Value = String> {
    let content = prop_oneof![
        "[ -~]{0,12}",
        Just("\"model\":\"tiny\"".to_owned()),
        Just("data: [DONE]\n\n".to_owned()),
        Just("{\"usage\":{\"prompt_tokens\":999}}".to_owned()),
        Just("\u{2028}é😀\\".to_owned()),
    ];
    let json = (content, any::<bool>(), 0_u64..1000).prop_map(|(content, usage, tokens)| {
        let mut event = serde_json::json!({
            "id": "chatcmpl-1", "model": "tiny",
            "choices": [{"index": 0, "delta": {"content": content}, "finish_reason": null}],
        });
        if usage {
            event["usage"] = serde_json::json!({"prompt_tokens": 7, "completion_tokens": tokens});
        }
        format!("data: {event}")
    });
    prop_oneof![8 => json, 1 => Just(": comment".to_owned()), 1 => Just("event: ping".to_owned())]
}

proptest! {
    #[test]
    fn any_split_of_any_stream_gives_the_same_output_and_the_same_usage(
        events in prop::collection::vec(event(), 0..12),
        ends in prop::collection::vec(0_usize..3, 12),
        asked in 0_usize..3,
        cuts in prop::collection::vec(0_usize..4096, 0..20),
        whole in any::<bool>(),
    ) {
        let mut body = String::new();
        for (event, end) in events.iter().zip(&ends) {
            body.push_str(event);
            body.push_str(["\n\n", "\r\n\r\n", "\r\r"][*end]);
        }
        if whole {
            body.push_str("data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n");
            body.push_str("data: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":5}}\n\ndata: [DONE]\n\n");
        }
        let body = body.as_bytes();
        let expected = run(stream(Flavour::Chat, ASKED[asked], "glm"), [body]);
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(body.len())).collect();
        cuts.extend([0, body.len()]);
        cuts.sort_unstable();
        let reads: Vec<&[u8]> = cuts.windows(2).map(|pair| &body[pair[0]..pair[1]]).collect();
        let split = run(stream(Flavour::Chat, ASKED[asked], "glm"), reads);
        prop_assert_eq!(&split, &expected);
        prop_assert_eq!(split.fault, (!whole).then_some(Cause::Truncated));
        if whole {
            prop_assert_eq!(split.usage, Some(Usage { prompt: 7, cached: 0, output: 5 }));
            prop_assert!(split.out.ends_with(b"data: [DONE]\n\n"));
        }
    }

    #[test]
    fn junk_never_panics_and_never_depends_on_the_split(
        body in prop::collection::vec(prop_oneof![any::<u8>(), prop::sample::select(&b"data: \n\r{}[]\":,model"[..])], 0..400),
        cut in 0_usize..400,
    ) {
        let cut = cut.min(body.len());
        let expected = run(stream(Flavour::Chat, UsageAsked::No, "glm"), [&body[..]]);
        let split = run(stream(Flavour::Chat, UsageAsked::No, "glm"), [&body[..cut], &body[cut..]]);
        prop_assert_eq!(split, expected);
    }
}

#[test]
fn an_abort_is_seen_on_messages_and_a_failure_on_responses_whatever_the_shape() {
    use bytes::Bytes;
    use tidegate_wire::{Endpoint, answer};

    let body = Bytes::from_static(br#"{"type":"message","model":"m","stop_reason":"abort","content":[]}"#);
    assert!(answer::rewrite(Endpoint::Messages, body, "alias").aborted);
    let body = Bytes::from_static(br#"{"type":"message","model":"m","stop_reason":"end_turn","content":["abort"]}"#);
    assert!(!answer::rewrite(Endpoint::Messages, body, "alias").aborted);
    let body = Bytes::from_static(br#"{"object":"response","model":"m","status":"failed","output":[]}"#);
    assert!(answer::rewrite(Endpoint::Responses, body, "alias").aborted);
    let body =
        Bytes::from_static(br#"{"object":"response","model":"m","status":"completed","output":[{"status":"failed"}]}"#);
    assert!(!answer::rewrite(Endpoint::Responses, body, "alias").aborted);
}
