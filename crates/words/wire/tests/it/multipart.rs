use proptest::prelude::*;
use tidegate_core::{Case, Fault};
use tidegate_wire::multipart::{Form, HEAD_MAX, HEADERS_MAX, MODEL_MAX, PARTS_MAX, Step, VALUE_MAX};

const TYPE: &str = "multipart/form-data; boundary=XyZ";

fn field(name: &str, value: &str) -> String {
    format!("--XyZ\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n")
}

fn file(content: &str) -> String {
    format!(
        "--XyZ\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\nContent-Type: audio/wav\r\n\r\n{content}\r\n"
    )
}

fn form(parts: &[String]) -> String {
    parts.concat() + "--XyZ--\r\n"
}

/// How the head was decided, the model, and what goes to the engine under the name `served`.
fn run(body: &[u8], read: usize) -> Result<(Step, Option<String>, Vec<u8>), Fault> {
    let mut form = Form::new(TYPE)?;
    let mut reads = body.chunks(read);
    let mut step = Step::More;
    for read in reads.by_ref() {
        step = form.push(read)?;
        if step != Step::More {
            break;
        }
    }
    let mut out = form.head("served", None).to_vec();
    for read in reads {
        form.watch(read)?;
        out.extend_from_slice(read);
    }
    form.end()?;
    Ok((step, form.model().map(str::to_owned), out))
}

#[test]
fn the_model_before_the_file_is_found_and_rewritten_at_every_split() {
    let body = form(&[field("language", "en"), field("model", "whisper"), file("RIFF\r\n--Xy\r\n--\0data")]);
    let expected = body.replace("whisper", "served");
    for read in 1..=body.len() {
        let (step, model, out) = run(body.as_bytes(), read).unwrap();
        assert_eq!((step, model.as_deref()), (Step::Done, Some("whisper")), "reads of {read}");
        assert_eq!(std::str::from_utf8(&out).unwrap(), expected, "reads of {read}");
    }
}

#[test]
fn without_a_model_one_is_put_in_front() {
    for body in [form(&[file("abc")]), form(&[field("language", "en")])] {
        for read in [1, 7, body.len()] {
            let (step, model, out) = run(body.as_bytes(), read).unwrap();
            assert_eq!((step, model), (Step::Done, None));
            assert_eq!(std::str::from_utf8(&out).unwrap(), field("model", "served") + &body);
        }
    }
}

#[test]
fn a_model_behind_the_file_or_given_twice_is_refused_wherever_the_reads_are_cut() {
    for body in [
        form(&[file("abc"), field("model", "m")]),
        form(&[field("model", "m"), file("abc"), field("model", "other")]),
        form(&[field("model", "m"), field("model", "m"), file("abc")]),
        form(&[field("model", "")]),
        form(&[field("model", "a\tb")]),
        form(&[field("model", &"m".repeat(MODEL_MAX + 1))]),
        form(&["--XyZ\r\nContent-Disposition: form-data; name=\"model\"; filename=\"x\"\r\n\r\nm\r\n".to_owned()]),
    ] {
        for read in [1, 3, body.len()] {
            let fault = run(body.as_bytes(), read).unwrap_err();
            assert!(matches!(fault.case, Case::InvalidValue | Case::MissingParameter), "{body}");
            assert_eq!(fault.param.as_deref(), Some("model"), "{body}");
        }
    }
    assert!(run(form(&[field("model", &"m".repeat(MODEL_MAX))]).as_bytes(), 5).is_ok());
}

/// What the head says of the answer, and the head for an engine.
fn asked(body: &str, read: usize, max_tokens: Option<u64>) -> Result<(bool, Option<u64>, String), Fault> {
    let mut form = Form::new(TYPE)?;
    for read in body.as_bytes().chunks(read) {
        if form.push(read)? == Step::Done {
            break;
        }
    }
    let head = String::from_utf8(form.head("served", max_tokens).to_vec()).unwrap();
    Ok((form.stream(), form.max_tokens(), head))
}

#[test]
fn a_form_that_asks_for_a_stream_or_fewer_tokens_is_understood_at_every_split() {
    let fields =
        |tokens, model| [field("stream", "true"), field("max_completion_tokens", tokens), field("model", model)];
    let body = form(&[&fields("900", "whisper")[..], &[file("abc")]].concat());
    let clamped = fields("77", "served").concat();
    for read in 1..=body.len() {
        let (stream, tokens, head) = asked(&body, read, Some(77)).unwrap();
        assert_eq!((stream, tokens), (true, Some(900)), "reads of {read}");
        assert!(head.starts_with(&clamped), "reads of {read}: {head}");
    }
    let (.., head) = asked(&body, 5, None).unwrap();
    assert!(head.starts_with(&fields("900", "served").concat()), "what is not bounded stays: {head}");
    let plain = form(&[field("model", "whisper"), file("abc")]);
    let (stream, tokens, head) = asked(&plain, 9, Some(77)).unwrap();
    assert_eq!((stream, tokens), (false, None));
    assert!(head.starts_with(&(field("max_completion_tokens", "77") + &field("model", "served"))), "{head}");
    for (text, stream) in [("True", true), ("1", true), ("false", false), ("0", false), ("OFF", false)] {
        assert_eq!(asked(&form(&[field("stream", text)]), 4, None).unwrap().0, stream, "{text}");
    }
}

#[test]
fn a_forms_stream_and_token_bound_have_one_reading_or_are_refused() {
    let tokens = "max_completion_tokens";
    let long = "1".repeat(VALUE_MAX + 1);
    for (name, value) in [
        ("stream", ""),
        ("stream", "maybe"),
        ("stream", " true"),
        (tokens, ""),
        (tokens, "0"),
        (tokens, "-1"),
        (tokens, "+1"),
        (tokens, "1.5"),
        (tokens, "1e3"),
        (tokens, "007"),
        (tokens, "18446744073709551616"),
        (tokens, &long),
    ] {
        for read in [1, 1_000] {
            let fault = asked(&form(&[field(name, value)]), read, None).unwrap_err();
            assert_eq!((fault.case, fault.param.as_deref()), (Case::InvalidValue, Some(name)), "{name} {value:?}");
        }
    }
    assert_eq!(asked(&form(&[field(tokens, "18446744073709551615")]), 7, None).unwrap().1, Some(u64::MAX));
    for name in ["stream", tokens] {
        let twice = form(&[field(name, "1"), field(name, "1")]);
        assert!(asked(&twice, 3, None).is_err(), "{name}");
        let late = form(&[field("model", "m"), file("abc"), field(name, "1")]);
        for read in [1, 40, late.len()] {
            let fault = run(late.as_bytes(), read).unwrap_err();
            assert_eq!(fault.param.as_deref(), Some(name), "reads of {read}");
        }
    }
}

#[test]
fn the_model_must_end_within_the_head() {
    let before = field("prompt", "").len() + field("model", "m").len() - "\r\n".len() + "\r\n--XyZ".len();
    for (padding, good) in [(HEAD_MAX - before, true), (HEAD_MAX - before + 1, false)] {
        let body = form(&[field("prompt", &"p".repeat(padding)), field("model", "m"), file("abc")]);
        for read in [4096, 1000, body.len()] {
            assert_eq!(run(body.as_bytes(), read).is_ok(), good, "{padding} in reads of {read}");
        }
    }
}

#[test]
fn headers_with_two_readings_are_refused() {
    for headers in [
        "Content-Disposition: form-data; name=\"model\"; name=\"x\"",
        "Content-Disposition: form-data; name=\"mod\\el\"",
        "Content-Disposition: form-data; name*=utf-8''model",
        "Content-Disposition: form-data; name=\"a\"\r\nContent-Disposition: form-data; name=\"model\"",
        "Content-Disposition: form-data; name=\"a\"\r\n folded: x",
        "Content-Disposition : form-data; name=\"a\"",
        "Content-Disposition: form-data; name=\"a\nContent-Disposition: form-data; name=\"model\"",
        "Content-Disposition: form-data; name=\"a\" x",
        "Content-Disposition: form-data; name=\"a",
        "Content-Disposition: form-data",
        "Content-Disposition: attachment; name=\"a\"",
        "Content-Type: text/plain",
        "Content-Disposition: form-data; name=\"a\"\r\nContent-Transfer-Encoding: base64",
        "Content-Disposition: form-data; name=\"kv_transfer_params\"",
        "no colon",
    ] {
        let body = form(&[field("model", "m"), format!("--XyZ\r\n{headers}\r\n\r\nv\r\n")]);
        assert_eq!(run(body.as_bytes(), body.len()).unwrap_err().case, Case::InvalidValue, "{headers}");
    }
    let token = form(&["--XyZ\r\ncontent-disposition: FORM-DATA; Name=model\r\n\r\nm\r\n".to_owned()]);
    assert_eq!(run(token.as_bytes(), 1).unwrap().1.as_deref(), Some("m"));
}

#[test]
fn broken_framing_is_refused() {
    let good = form(&[field("model", "m"), file("abc")]);
    for body in [
        format!("preamble\r\n{good}"),
        format!("{good}trailer"),
        good.replacen("--XyZ\r\n", "--XyZ \r\n", 1),
        good.replace("--XyZ--\r\n", ""),
        good.replace("--XyZ--\r\n", "--XyZ-\r\n"),
        good.replace("--XyZ--\r\n", "--XyZzz\r\n"),
        String::new(),
    ] {
        assert!(run(body.as_bytes(), body.len().max(1)).is_err(), "{body}");
        assert!(run(body.as_bytes(), 1).is_err(), "{body}");
    }
    assert!(run(good.strip_suffix("\r\n").unwrap().as_bytes(), 3).is_ok());
}

#[test]
fn parts_and_their_headers_are_bounded() {
    let parts = |count: usize| form(&vec![field("a", "b"); count]);
    assert!(run(parts(PARTS_MAX).as_bytes(), 4096).is_ok());
    assert!(run(parts(PARTS_MAX + 1).as_bytes(), 4096).is_err());
    let disposition = "Content-Disposition: form-data; name=\"a\"\r\nX: ";
    let part = |len: usize| {
        let filler = "x".repeat(len - disposition.len());
        form(&[format!("--XyZ\r\n{disposition}{filler}\r\n\r\nv\r\n")])
    };
    assert!(run(part(HEADERS_MAX).as_bytes(), 4096).is_ok());
    for read in [4096, 100_000] {
        assert!(run(part(HEADERS_MAX + 1).as_bytes(), read).is_err());
    }
}

#[test]
fn a_boundary_is_read_from_the_content_type_or_refused() {
    for good in ["multipart/form-data; boundary=a", "Multipart/Form-Data;charset=utf-8; boundary=\"a-b_c\""] {
        assert!(Form::new(good).is_ok(), "{good}");
    }
    for bad in [
        "application/json",
        "multipart/form-data",
        "multipart/form-data; boundary=",
        "multipart/form-data; boundary=\"a",
        "multipart/form-data; boundary=a; boundary=b",
        "multipart/form-data; boundary=a b",
        "multipart/mixed; boundary=a",
        &format!("multipart/form-data; boundary={}", "a".repeat(71)),
    ] {
        assert_eq!(Form::new(bad).unwrap_err().case, Case::InvalidValue, "{bad}");
    }
}

proptest! {
    #[test]
    fn any_form_passes_byte_for_byte_but_for_the_model_at_any_split(
        before in prop::collection::vec(("[a-z]{1,8}x", "[^\r\n-]{0,20}"), 0..4),
        model in "[a-zA-Z0-9/._-]{1,40}",
        content in prop::collection::vec(prop_oneof![any::<u8>(), prop::sample::select(&b"\r\n-Xy"[..])], 0..300),
        read in 1_usize..400,
    ) {
        prop_assume!(memchr::memmem::find(&content, b"\r\n--XyZ").is_none());
        let mut parts: Vec<String> = before.iter().map(|(name, value)| field(name, value)).collect();
        parts.push(field("model", &model));
        let head = parts.concat();
        let (open, close) = ("--XyZ\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a\"\r\n\r\n", "\r\n--XyZ--\r\n");
        let body = [head.as_bytes(), open.as_bytes(), &content, close.as_bytes()].concat();
        let (step, found, out) = run(&body, read).unwrap();
        prop_assert_eq!(step, Step::Done);
        prop_assert_eq!(found.unwrap(), model.clone());
        parts.pop();
        let expected = [parts.concat().as_bytes(), field("model", "served").as_bytes(), open.as_bytes(), &content, close.as_bytes()].concat();
        prop_assert_eq!(out, expected);
    }
}
