use proptest::prelude::*;
use tidegate_core::{Case, Fault};
use tidegate_wire::Endpoint;
use tidegate_wire::json::parse;
use tidegate_wire::request::{
    self, CHOICES_MAX, DATA_URL_MAX, DOCUMENTS_MAX, Facts, INPUTS_MAX, STOP_MAX, TEMPLATE_BASE, TEMPLATE_PER_MESSAGE,
    Upstream, UsageAsked,
};

use crate::json::value;

fn read(endpoint: Endpoint, body: &str) -> Result<Facts, Fault> {
    request::read(endpoint, &parse(body.as_bytes()).unwrap())
}

/// A chat body with one more member.
fn chat(member: &str) -> Result<Facts, Fault> {
    read(
        Endpoint::ChatCompletions,
        &format!(r#"{{"model":"m","messages":[{{"role":"user","content":"hi"}}]{member}}}"#),
    )
}

fn refused(result: Result<Facts, Fault>) -> (Case, String) {
    let fault = result.unwrap_err();
    (fault.case, fault.param.unwrap_or_default().into_owned())
}

fn rewrite(endpoint: Endpoint, body: &str, upstream: &Upstream<'_>) -> String {
    let object = parse(body.as_bytes()).unwrap();
    let facts = request::read(endpoint, &object).unwrap();
    String::from_utf8(request::rewrite(endpoint, &object, &facts, upstream)).unwrap()
}

#[test]
fn the_model_comes_from_the_body_or_else_the_header_and_never_from_both_differing() {
    let model = |body: &str, header| request::model(&parse(body.as_bytes()).unwrap(), header).map(|m| m.into_owned());
    assert_eq!(model(r#"{"model":"a"}"#, None).unwrap(), "a");
    assert_eq!(model(r#"{"model":"a"}"#, Some("a")).unwrap(), "a");
    assert_eq!(model("{}", Some("b")).unwrap(), "b");
    assert_eq!(model(r#"{"model":null}"#, None).unwrap_err().case, Case::MissingParameter);
    for body in [r#"{"model":["a"]}"#, r#"{"model":1}"#, r#"{"model":{}}"#, r#"{"model":true}"#] {
        let fault = model(body, Some("a")).unwrap_err();
        assert_eq!((fault.case, fault.param.as_deref()), (Case::InvalidValue, Some("model")), "{body}");
    }
    assert_eq!(model(r#"{"model":"a"}"#, Some("b")).unwrap_err().case, Case::InvalidValue);
    assert_eq!(model(r#"{"model":"a "}"#, Some("a")).unwrap_err().case, Case::InvalidValue);
}

#[test]
fn required_fields_are_named_when_missing() {
    for (endpoint, body, param) in [
        (Endpoint::ChatCompletions, r#"{"model":"m"}"#, "messages"),
        (Endpoint::Completions, r#"{"model":"m"}"#, "prompt"),
        (Endpoint::Embeddings, r#"{"model":"m"}"#, "input"),
        (Endpoint::Rerank, r#"{"model":"m"}"#, "query"),
        (Endpoint::Rerank, r#"{"model":"m","query":"q"}"#, "documents"),
        (Endpoint::Responses, r#"{"model":"m","input":null}"#, "input"),
        (Endpoint::Messages, r#"{"model":"m"}"#, "messages"),
        (Endpoint::CountTokens, r#"{"model":"m"}"#, "messages"),
        (Endpoint::ChatCompletions, r#"{"messages":[]}"#, "model"),
    ] {
        assert_eq!(refused(read(endpoint, body)), (Case::MissingParameter, param.to_owned()), "{endpoint:?}");
    }
    for messages in ["[]", "\"x\"", "[1]", "{}", "[[]]"] {
        let body = format!(r#"{{"model":"m","messages":{messages}}}"#);
        assert_eq!(refused(read(Endpoint::ChatCompletions, &body)), (Case::InvalidValue, "messages".to_owned()));
    }
}

#[test]
fn values_that_make_an_engine_allocate_or_answer_without_bound_are_refused() {
    let stops = vec!["\"x\""; 10_000].join(",");
    let biases: Vec<String> = (0..2_000).map(|i| format!("\"{i}\":1")).collect();
    for (member, param) in [
        ("\"n\":1000000000", "n"),
        ("\"n\":1e9", "n"),
        ("\"n\":0", "n"),
        ("\"n\":1.0", "n"),
        ("\"n\":\"1\"", "n"),
        ("\"best_of\":1000000000", "best_of"),
        ("\"logprobs\":1000000", "logprobs"),
        ("\"logprobs\":1e6", "logprobs"),
        ("\"top_logprobs\":1000000", "top_logprobs"),
        ("\"prompt_logprobs\":-1", "prompt_logprobs"),
        ("\"prompt_logprobs\":154880", "prompt_logprobs"),
        ("\"n_probs\":154880", "n_probs"),
        ("\"top_k\":1000000000", "top_k"),
        ("\"top_k\":-2", "top_k"),
        ("\"max_tokens\":-1", "max_tokens"),
        ("\"max_tokens\":0", "max_tokens"),
        ("\"max_tokens\":9223372036854775808", "max_tokens"),
        ("\"max_tokens\":1e400", "max_tokens"),
        ("\"max_tokens\":10.5", "max_tokens"),
        ("\"max_tokens\":\"10\"", "max_tokens"),
        ("\"max_completion_tokens\":-1", "max_completion_tokens"),
        ("\"max_output_tokens\":-1", "max_output_tokens"),
        ("\"min_tokens\":-1", "min_tokens"),
        ("\"temperature\":1e400", "temperature"),
        ("\"temperature\":\"hot\"", "temperature"),
        ("\"stream\":\"true\"", "stream"),
        ("\"stream\":1", "stream"),
        ("\"stream_options\":{}", "stream_options"),
        ("\"stream\":true,\"stream_options\":[]", "stream_options"),
        ("\"stream\":true,\"stream_options\":{\"include_usage\":1}", "stream_options.include_usage"),
        ("\"background\":true", "background"),
        ("\"stop\":7", "stop"),
        (&format!("\"stop\":[{stops}]"), "stop"),
        (&format!("\"stop_token_ids\":[{}]", vec!["1"; 100].join(",")), "stop_token_ids"),
        (&format!("\"bad_words\":[{stops}]"), "bad_words"),
        (&format!("\"logit_bias\":{{{}}}", biases.join(",")), "logit_bias"),
    ] {
        let refused = refused(chat(&format!(",{member}")));
        assert_eq!(refused, (Case::InvalidValue, param.to_owned()), "{}", &member[..member.len().min(60)]);
    }
}

#[test]
fn values_at_their_bounds_pass_and_null_is_the_same_as_absent() {
    let stops = |count| format!(",\"stop\":[{}]", vec!["\"x\""; count].join(","));
    assert!(chat(&stops(STOP_MAX)).is_ok());
    assert!(chat(&stops(STOP_MAX + 1)).is_err());
    assert_eq!(chat(&format!(",\"n\":{CHOICES_MAX}")).unwrap().choices, 128);
    assert!(chat(&format!(",\"n\":{}", CHOICES_MAX + 1)).is_err());
    for member in [
        "\"max_tokens\":null,\"n\":null,\"stop\":null,\"stream\":null,\"stream_options\":null,\"logprobs\":null",
        "\"max_tokens\":2147483647",
        "\"logprobs\":true,\"top_logprobs\":20",
        "\"top_k\":-1",
        "\"temperature\":0",
        "\"stop\":\"x\"",
        "\"background\":false",
        "\"anything\":{\"n\":1e9}",
    ] {
        assert!(chat(&format!(",{member}")).is_ok(), "{member}");
    }
    assert!(read(Endpoint::Completions, r#"{"model":"m","prompt":"x","logprobs":5}"#).is_ok());
    assert!(read(Endpoint::Completions, r#"{"model":"m","prompt":"x","logprobs":1000000}"#).is_err());
}

#[test]
fn the_smaller_of_two_output_bounds_counts() {
    assert_eq!(chat(",\"max_tokens\":50,\"max_completion_tokens\":20").unwrap().max_tokens, Some(20));
    assert_eq!(chat(",\"max_tokens\":20,\"max_completion_tokens\":50").unwrap().max_tokens, Some(20));
    assert_eq!(chat("").unwrap().max_tokens, None);
}

#[test]
fn usage_asked_is_read_from_stream_options() {
    let asked = |options: &str| chat(&format!(",\"stream\":true,\"stream_options\":{options}")).unwrap().usage;
    assert_eq!(asked("{}"), UsageAsked::No);
    assert_eq!(asked("{\"include_usage\":true}"), UsageAsked::Final);
    assert_eq!(asked("{\"include_usage\":true,\"continuous_usage_stats\":true}"), UsageAsked::Continuous);
    assert_eq!(asked("{\"continuous_usage_stats\":true}"), UsageAsked::No, "without include_usage it means nothing");
}

#[test]
fn choices_are_multiplied_by_the_prompts_of_a_batch() {
    let choices = |body: &str| read(Endpoint::Completions, body).map(|facts| facts.choices);
    assert_eq!(choices(r#"{"model":"m","prompt":["a","b","c"],"n":2,"best_of":4}"#).unwrap(), 12);
    assert_eq!(choices(r#"{"model":"m","prompt":[1,2,3]}"#).unwrap(), 1);
    assert_eq!(choices(r#"{"model":"m","prompt":[[1,2],[3]]}"#).unwrap(), 2);
    for prompt in ["[]", "[1,\"a\"]", "[null]", "7", "{}"] {
        assert!(choices(&format!(r#"{{"model":"m","prompt":{prompt}}}"#)).is_err(), "{prompt}");
    }
    let prompts = |count: u64| format!(r#"{{"model":"m","prompt":[{}]}}"#, vec!["\"a\""; count as usize].join(","));
    assert_eq!(choices(&prompts(INPUTS_MAX)).unwrap(), INPUTS_MAX);
    assert!(choices(&prompts(INPUTS_MAX + 1)).is_err());
    let documents = |count: u64| {
        let list = vec!["\"a\""; count as usize].join(",");
        read(Endpoint::Rerank, &format!(r#"{{"model":"m","query":"q","documents":[{list}]}}"#))
    };
    assert!(documents(DOCUMENTS_MAX).is_ok());
    assert!(documents(DOCUMENTS_MAX + 1).is_err());
}

#[test]
fn the_prompt_bound_counts_text_once_unescaped_and_images_not_by_their_bytes() {
    let facts = chat("").unwrap();
    assert_eq!(facts.prompt_bytes, 2 + TEMPLATE_BASE + TEMPLATE_PER_MESSAGE);
    let image = "A".repeat(100_000);
    let body = format!(
        r#"{{"model":"m","messages":[{{"role":"user","content":[{{"type":"text","text":"\u00e9\n"}},
            {{"type":"image_url","image_url":{{"url":"data:image/png;base64,{image}"}}}}]}}]}}"#
    );
    let facts = read(Endpoint::ChatCompletions, &body).unwrap();
    assert_eq!((facts.images, facts.prompt_bytes - facts.template_tokens), (1, 3));
    assert!(facts.media_hosts.is_empty());
    let ids = read(Endpoint::Completions, r#"{"model":"m","prompt":[1,2,3]}"#).unwrap();
    assert_eq!((ids.token_ids, ids.prompt_bytes - ids.template_tokens), (3, 3));
    let anthropic = format!(
        r#"{{"model":"m","max_tokens":5,"system":"ab","messages":[{{"role":"user","content":[
            {{"type":"image","source":{{"type":"base64","media_type":"image/png","data":"{image}"}}}},
            {{"type":"tool_result","tool_use_id":"t","content":[{{"type":"text","text":"cd"}}]}}]}}]}}"#
    );
    let facts = read(Endpoint::Messages, &anthropic).unwrap();
    assert_eq!((facts.images, facts.prompt_bytes - facts.template_tokens), (1, 2 + 1 + 2), "tool_use_id counts too");
}

#[test]
fn tools_count_and_their_text_reaches_a_tokenizer() {
    let body = r#"{"model":"m","messages":[{"role":"user","content":"a\nb"}],"tools":[{"type":"function"}]}"#;
    let object = parse(body.as_bytes()).unwrap();
    let texts = request::prompt_text(Endpoint::ChatCompletions, &object).unwrap();
    assert_eq!(texts, ["a\nb", r#"[{"type":"function"}]"#]);
    let facts = request::read(Endpoint::ChatCompletions, &object).unwrap();
    let bytes: usize = texts.iter().map(|text| text.len()).sum();
    assert_eq!(facts.prompt_bytes - facts.template_tokens, bytes as u64);
}

#[test]
fn media_from_other_hosts_are_named_or_refused_wherever_they_stand() {
    let part = |part: &str| {
        let body = format!(r#"{{"model":"m","messages":[{{"role":"user","content":[{part}]}}]}}"#);
        read(Endpoint::ChatCompletions, &body)
    };
    for (text, host) in [
        (r#"{"type":"image_url","image_url":{"url":"https://Media.Example/a.png"}}"#, "media.example"),
        (r#"{"type":"image_url","image_url":"https://media.example/a.png"}"#, "media.example"),
        (r#"{"type":"video_url","video_url":{"url":"http://169.254.169.254/latest"}}"#, "169.254.169.254"),
        (r#"{"type":"audio_url","audio_url":{"url":"http://localhost:8000/"}}"#, "localhost:8000"),
        (r#"{"image_url":{"url":"http:\/\/localhost"}}"#, "localhost"),
        (r#"{"type":"text","text":"x","file_url":"http://a"}"#, "a"),
        (r#"{"type":"image","image":"http://a/b"}"#, "a"),
        (r#"{"type":"tool_result","content":[{"type":"image","source":{"type":"url","url":"http://a"}}]}"#, "a"),
    ] {
        let facts = part(text).unwrap();
        assert_eq!(facts.media_hosts, [Box::from(host)], "{text}");
        assert_eq!(facts.images, 1, "{text}");
    }
    for url in ["file:///etc/passwd", "/etc/passwd", "http://[::ffff:169.254.169.254]/", "http://a@b/", "x"] {
        let text = format!(r#"{{"type":"image_url","image_url":{{"url":"{url}"}}}}"#);
        assert_eq!(refused(part(&text)), (Case::InvalidValue, "messages".to_owned()), "{url}");
    }
    let facts = part(r#"{"type":"tool_use","name":"fetch","input":{"url":"http://a/"}}"#).unwrap();
    assert!(facts.media_hosts.is_empty(), "what a tool was called with is data");
    let facts = part(r#"{"type":"text","text":"see http://a/ and file:///b"}"#).unwrap();
    assert!(facts.media_hosts.is_empty());
}

#[test]
fn an_inline_medium_is_bounded() {
    let part = |len: usize| {
        let url = format!("data:,{}", "A".repeat(len - "\"data:,\"".len()));
        let content = format!(r#"[{{"type":"image_url","image_url":{{"url":"{url}"}}}}]"#);
        let body = format!(r#"{{"model":"m","messages":[{{"role":"user","content":{content}}}]}}"#);
        read(Endpoint::ChatCompletions, &body)
    };
    assert_eq!(part(DATA_URL_MAX).unwrap().images, 1);
    assert_eq!(refused(part(DATA_URL_MAX + 1)).0, Case::TooLarge);
}

#[test]
fn only_what_is_named_is_set_and_everything_else_stays() {
    let upstream = Upstream {
        model: "served",
        max_tokens: Some(100),
        usage: true,
        continuous_usage: true,
        priority: Some(-5),
        cache_salt: Some("s\"1"),
    };
    let body = "{ \"model\" : \"alias\",\n  \"messages\":[{\"role\":\"user\",\"content\":\"\\u0068i\"}] , \"stream\" : true, \"x\":1.50 }";
    assert_eq!(
        rewrite(Endpoint::ChatCompletions, body, &upstream),
        "{ \"model\" : \"served\",\n  \"messages\":[{\"role\":\"user\",\"content\":\"\\u0068i\"}] , \"stream\" : true, \"x\":1.50,\
         \"max_tokens\":100,\"stream_options\":{\"include_usage\":true,\"continuous_usage_stats\":true},\
         \"priority\":-5,\"cache_salt\":\"s\\\"1\" }"
    );
}

#[test]
fn output_bounds_are_set_under_every_name_in_use() {
    let upstream = Upstream { model: "m", max_tokens: Some(7), ..Upstream::default() };
    let rewritten = |endpoint, extra: &str| {
        let prompt = "\"messages\":[{\"content\":\"a\"}],\"prompt\":\"a\",\"input\":\"a\"";
        let body = format!("{{\"model\":\"m\",{prompt}{extra}}}");
        rewrite(endpoint, &body, &upstream).replace(&format!("\"model\":\"m\",{prompt}"), "")
    };
    for (endpoint, extra, expected) in [
        (Endpoint::ChatCompletions, "", r#"{,"max_tokens":7}"#),
        (Endpoint::ChatCompletions, ",\"max_tokens\":9", r#"{,"max_tokens":7}"#),
        (Endpoint::ChatCompletions, ",\"max_tokens\":null", r#"{,"max_tokens":7}"#),
        (Endpoint::ChatCompletions, ",\"max_completion_tokens\":9", r#"{,"max_completion_tokens":7,"max_tokens":7}"#),
        (Endpoint::Completions, "", r#"{,"max_tokens":7}"#),
        (Endpoint::Responses, ",\"max_output_tokens\":9", r#"{,"max_output_tokens":7}"#),
        (Endpoint::Messages, "", r#"{,"max_tokens":7}"#),
        (Endpoint::Embeddings, "", "{}"),
    ] {
        assert_eq!(rewritten(endpoint, extra), expected, "{endpoint:?} {extra}");
    }
}

#[test]
fn members_of_the_deny_list_are_dropped_at_the_top_level_only() {
    let upstream = Upstream { model: "m", ..Upstream::default() };
    let denied = [
        "api_base",
        "base_url",
        "extra_body",
        "chat_template",
        "lora_path",
        "kv_transfer_params",
        "priority",
        "cache_salt",
        "request_id",
        "custom_logit_processor",
        "rid",
        "data_parallel_rank",
        "bootstrap_host",
        "bootstrap_port",
        "bootstrap_room",
        "n_predict",
        "prompt_embeds",
        "service_tier",
    ];
    let members: Vec<String> = denied.iter().map(|key| format!(" \"{key}\" : {{\"priority\":1}}")).collect();
    let keep =
        r#""model":"m","messages":[{"content":"a","priority":5}],"metadata":{"request_id":"r"},"vendor":{"a":1}"#;
    for body in [format!("{{{},{keep}}}", members.join(",")), format!("{{{keep},{}}}", members.join(","))] {
        assert_eq!(rewrite(Endpoint::ChatCompletions, &body, &upstream), format!("{{{keep}}}"));
    }
    let escaped = format!("{{\"\\u0070riority\":9,{keep}}}");
    assert_eq!(rewrite(Endpoint::ChatCompletions, &escaped, &upstream), format!("{{{keep}}}"));
    let set = Upstream { priority: Some(3), cache_salt: Some("ours"), ..upstream };
    let body = format!("{{\"cache_salt\":\"theirs\",{keep},\"priority\":0}}");
    let expected = format!("{{\"cache_salt\":\"ours\",{keep},\"priority\":3}}");
    assert_eq!(rewrite(Endpoint::ChatCompletions, &body, &set), expected);
}

#[test]
fn stream_options_keep_what_they_hold() {
    let upstream = Upstream { model: "m", usage: true, ..Upstream::default() };
    let with = |options: &str| {
        let body = format!(r#"{{"model":"m","messages":[{{"content":"a"}}],"stream":true{options}}}"#);
        rewrite(Endpoint::ChatCompletions, &body, &upstream)
    };
    assert!(with("").ends_with(r#","stream_options":{"include_usage":true}}"#));
    assert!(with(r#","stream_options":null"#).ends_with(r#","stream_options":{"include_usage":true}}"#));
    assert!(
        with(r#","stream_options":{ "include_obfuscation":false,"include_usage":false }"#)
            .ends_with(r#","stream_options":{ "include_obfuscation":false,"include_usage":true }}"#)
    );
    let body = r#"{"model":"m","messages":[{"content":"a"}]}"#;
    assert_eq!(rewrite(Endpoint::ChatCompletions, body, &upstream), body, "without a stream there are no options");
    let messages = r#"{"model":"m","messages":[{"content":"a"}],"stream":true}"#;
    assert_eq!(rewrite(Endpoint::Messages, messages, &upstream), messages, "Anthropic's protocol has none");
}

proptest! {
    #[test]
    fn a_rewritten_body_has_the_new_values_and_every_other_member_byte_for_byte(
        members in prop::collection::btree_map("[a-z_]{1,12}", value(), 0..8),
        pretty in any::<bool>(), model in any::<String>(), tokens in 1_u64..100_000, salt in any::<String>(),
    ) {
        let mut body = serde_json::Map::new();
        for (key, value) in members {
            // Known fields have tests of their own.
            body.insert(format!("v_{key}"), value);
        }
        body.insert("model".into(), "alias".into());
        body.insert("priority".into(), 5.into());
        body.insert("messages".into(), serde_json::json!([{"role": "user", "content": "hi"}]));
        let text = if pretty { serde_json::to_vec_pretty(&body) } else { serde_json::to_vec(&body) }.unwrap();
        let before = parse(&text).unwrap();
        let facts = request::read(Endpoint::ChatCompletions, &before).unwrap();
        let upstream = Upstream { model: &model, max_tokens: Some(tokens), cache_salt: Some(&salt), ..Upstream::default() };
        let out = request::rewrite(Endpoint::ChatCompletions, &before, &facts, &upstream);
        let after = parse(&out).unwrap();
        prop_assert_eq!(after.get("model").unwrap().as_str().unwrap(), model.as_str());
        prop_assert_eq!(after.get("max_tokens").unwrap().as_u64(), Some(tokens));
        prop_assert_eq!(after.get("cache_salt").unwrap().as_str().unwrap(), salt.as_str());
        prop_assert!(after.get("priority").is_none());
        for (key, value) in before.members().filter(|(key, _)| key != "model" && key != "priority") {
            prop_assert_eq!(after.get(&key).unwrap().raw, value.raw);
        }
        prop_assert_eq!(after.members().count(), before.members().count() + 1);
    }
}
