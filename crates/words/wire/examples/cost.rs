//! What one event, one request and one answer cost on this machine: `cargo run --release -p tidegate-wire --example cost`.

#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "a program that prints a table")]

use std::hint::black_box;
use std::time::Instant;

use bytes::Bytes;
use tidegate_wire::request::{self, Upstream};
use tidegate_wire::sse::{Stream, StreamOptions};
use tidegate_wire::{Endpoint, Flavour, UsageAsked, answer, json};

const ROUNDS: u32 = 20_000;

/// Median of nine, in nanoseconds for each of `units`.
fn measure(name: &str, units: usize, mut work: impl FnMut()) {
    let mut times: Vec<f64> = (0..9)
        .map(|_| {
            let start = Instant::now();
            for _ in 0..ROUNDS {
                work();
            }
            start.elapsed().as_nanos() as f64 / f64::from(ROUNDS) / units as f64
        })
        .collect();
    times.sort_by(f64::total_cmp);
    println!("{name:<44} {:>8.0} ns", times[4]);
}

/// 67 events of about 200 bytes, as vLLM writes them.
fn events(usage: bool) -> Vec<Bytes> {
    let mut events = Vec::new();
    for index in 0..65 {
        let usage = match usage {
            true => format!(
                ",\"usage\":{{\"prompt_tokens\":37,\"total_tokens\":{},\"completion_tokens\":{index}}}",
                37 + index
            ),
            false => String::new(),
        };
        let reason = if index == 64 { "\"stop\"" } else { "null" };
        events.push(Bytes::from(format!(
            "data: {{\"id\":\"chatcmpl-a4004210e57bd70a\",\"object\":\"chat.completion.chunk\",\"created\":1796049951,\
             \"model\":\"served-model\",\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\" token\"}},\"logprobs\":null,\
             \"finish_reason\":{reason},\"token_ids\":null}}]{usage}}}\n\n"
        )));
    }
    events.push(Bytes::from_static(
        b"data: {\"id\":\"chatcmpl-a4004210e57bd70a\",\"object\":\"chat.completion.chunk\",\"created\":1796049951,\"model\":\"served-model\",\"choices\":[],\"usage\":{\"prompt_tokens\":37,\"total_tokens\":101,\"completion_tokens\":64}}\n\n",
    ));
    events.push(Bytes::from_static(b"data: [DONE]\n\n"));
    events
}

fn relay(name: &str, reads: &[Bytes], events: usize, alias: &str, asked: UsageAsked) {
    measure(name, events, || {
        let mut stream = Stream::new(StreamOptions { flavour: Flavour::Chat, alias: alias.into(), asked });
        for read in reads {
            black_box(stream.push(read.clone()).unwrap());
        }
        black_box(stream.end().unwrap());
    });
}

fn main() {
    let request = format!(
        r#"{{"model":"glm-flash","messages":[{{"role":"system","content":"You are a helpful assistant."}},{{"role":"user","content":"{}"}}],"max_tokens":64,"temperature":0.7,"top_p":0.9,"stream":true,"user":"someone"}}"#,
        "What is the capital of France? ".repeat(3)
    );
    let endpoint = Endpoint::ChatCompletions;
    let upstream = Upstream {
        model: "served-model",
        max_tokens: Some(64),
        usage: true,
        continuous_usage: true,
        priority: None,
        cache_salt: None,
    };
    println!("request of {} bytes", request.len());
    let object = json::parse(request.as_bytes()).unwrap();
    let facts = request::read(endpoint, &object).unwrap();
    measure("  parse", 1, || {
        black_box(json::parse(black_box(request.as_bytes())).unwrap());
    });
    measure("  read", 1, || {
        black_box(request::read(endpoint, black_box(&object)).unwrap());
    });
    measure("  rewrite", 1, || {
        black_box(request::rewrite(endpoint, black_box(&object), &facts, &upstream));
    });

    for usage in [false, true] {
        let paced = events(usage);
        let burst = [Bytes::from(paced.concat())];
        println!("event of {} bytes, one of {}", paced[0].len(), paced.len());
        relay("  nothing changes, one event a read", &paced, paced.len(), "served-model", UsageAsked::Continuous);
        relay("  nothing changes, one read", &burst, paced.len(), "served-model", UsageAsked::Continuous);
        relay("  alias and usage, one event a read", &paced, paced.len(), "glm-flash", UsageAsked::No);
        relay("  alias and usage, one read", &burst, paced.len(), "glm-flash", UsageAsked::No);
    }

    let filler = "word ".repeat(120);
    let body = Bytes::from(format!(
        r#"{{"id":"chatcmpl-1","object":"chat.completion","created":1796049949,"model":"served-model","choices":[{{"index":0,"message":{{"role":"assistant","content":"{filler}"}},"finish_reason":"stop"}}],"usage":{{"prompt_tokens":37,"total_tokens":45,"completion_tokens":8}}}}"#
    ));
    println!("answer of {} bytes", body.len());
    measure("  rewrite", 1, || {
        black_box(answer::rewrite(endpoint, body.clone(), "glm-flash"));
    });
}
