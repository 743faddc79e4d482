//! What a fake engine is between requests: asleep, awake with the wrong weights, or stuck.

use bytes::{Bytes, BytesMut};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::Shared;
use super::plan;
use super::wire::{self, Played, Recorded, Wire};

/// What the weights are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Weights {
    /// As they were loaded.
    Good,
    /// Discarded, or whatever was in that memory before.
    Wrong,
}

/// What the engine is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Life {
    /// The level it sleeps at.
    asleep: Option<u8>,
    /// Parts that were woken one by one.
    has_weights: bool,
    has_kv_cache: bool,
    weights: Weights,
    /// Whether it was ever woken.
    has_woken: bool,
    /// Whether it takes requests and never answers one.
    pub(super) is_stuck: bool,
}

impl Default for Life {
    fn default() -> Self {
        Self {
            asleep: None,
            has_weights: true,
            has_kv_cache: true,
            weights: Weights::Good,
            has_woken: false,
            is_stuck: false,
        }
    }
}

impl Life {
    /// Whether requests run.
    pub(super) const fn is_awake(&self) -> bool {
        self.asleep.is_none()
    }

    /// Whether what it says is garbage.
    pub(super) fn says_garbage(&self, wakes_wrong: bool) -> bool {
        self.weights == Weights::Wrong || (wakes_wrong && self.has_woken)
    }

    fn sleep(&mut self, level: u8) {
        if self.asleep.is_some() {
            return;
        }
        *self = Self { asleep: Some(level), has_weights: false, has_kv_cache: false, ..*self };
        if level == 2 {
            self.weights = Weights::Wrong;
        }
    }

    /// Wakes parts; both, when none is named.
    fn wake(&mut self, tags: &[&str]) {
        if self.asleep.is_none() {
            return;
        }
        self.has_weights |= tags.is_empty() || tags.contains(&"weights");
        self.has_kv_cache |= tags.is_empty() || tags.contains(&"kv_cache");
        if self.has_weights && self.has_kv_cache {
            self.asleep = None;
            self.has_woken = true;
        }
    }

    /// What vLLM's `engine_sleep_state` shows.
    pub(super) fn metrics(&self, model: &str) -> String {
        let mut text = "# TYPE vllm:engine_sleep_state gauge\n".to_owned();
        let level = self.asleep.unwrap_or(0);
        for (state, of) in [("awake", 0), ("weights_offloaded", 1), ("discard_all", 2)] {
            let value = u8::from(level == of);
            text.push_str(&format!(
                "vllm:engine_sleep_state{{engine=\"0\",model_name=\"{model}\",sleep_state=\"{state}\"}} {value}.0\n"
            ));
        }
        text
    }
}

/// Waits until requests run; false: the peer left before.
pub(super) async fn awake<W: Wire>(wire: &mut W, buffer: &mut BytesMut, life: &mut watch::Receiver<Life>) -> bool {
    tokio::select! {
        biased;
        // The sender lives as long as the engine.
        _ = life.wait_for(Life::is_awake) => true,
        () = wire::peer_left(wire, buffer) => false,
    }
}

/// Answers vLLM's development routes; `None` for other paths.
pub(super) async fn answer<W: Wire>(
    wire: &mut W,
    buffer: &mut BytesMut,
    request: &Recorded,
    shared: &Shared,
) -> Option<std::io::Result<Played>> {
    let query = |name: &str| {
        let query = request.target.split_once('?').map_or("", |(_, query)| query);
        query.split('&').filter_map(|pair| pair.split_once('=')).find(|(key, _)| *key == name).map(|(_, value)| value)
    };
    let (status, body) = match (request.method.as_str(), request.path()) {
        ("POST", "/sleep") => {
            let level = query("level").and_then(|level| level.parse().ok()).unwrap_or(1);
            match query("mode") {
                Some("wait") => {
                    let mut log = shared.log.subscribe();
                    tokio::select! {
                        biased;
                        _ = log.wait_for(|log| log.running == 0) => {}
                        () = wire::peer_left(wire, buffer) => return Some(Ok(Played::PeerLeft)),
                    }
                }
                Some("keep") => {}
                // The default aborts what runs; nobody here may ask for that, and whoever does shall notice.
                _ => return Some(say(wire, buffer, shared, 500, &json!({"error": "aborts what runs"})).await),
            }
            shared.life.send_modify(|life| life.sleep(level));
            (200, json!({"status": "sleeping", "level": level}))
        }
        ("POST", "/wake_up") => {
            let tags: Vec<_> = query("tags").into_iter().collect();
            shared.life.send_modify(|life| life.wake(&tags));
            (200, json!({"status": "awake", "tags": if tags.is_empty() { Value::Null } else { json!(tags) }}))
        }
        ("POST", "/collective_rpc") if request.json()["method"] == "reload_weights" => {
            let can = shared.life.borrow().has_weights;
            shared.life.send_if_modified(|life| {
                life.weights = if life.has_weights { Weights::Good } else { life.weights };
                life.has_weights
            });
            if can { (200, json!({"results": [null]})) } else { (500, json!({"error": "no memory for weights"})) }
        }
        ("GET", "/is_sleeping") => (200, json!({"is_sleeping": !shared.life.borrow().is_awake()})),
        _ => return None,
    };
    Some(say(wire, buffer, shared, status, &body).await)
}

async fn say<W: Wire>(
    wire: &mut W,
    buffer: &mut BytesMut,
    shared: &Shared,
    status: u16,
    body: &Value,
) -> std::io::Result<Played> {
    let steps = plan::said(&shared.script.lock(), status, "application/json", &body.to_string());
    wire::play(wire, buffer, steps, None, |_| {}).await
}

/// vLLM's first words when its memory is used up; it then takes requests and answers none.
pub(super) const OUT_OF_MEMORY: (u16, &str) = (
    500,
    r#"{"error":{"message":"CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB of which 1.44 GiB is free.","type":"InternalServerError","param":null,"code":500}}"#,
);

/// Tokens of a text, as the fake engine counts them.
pub(super) fn tokenize(is_vllm: bool, context: u64, body: &Bytes) -> String {
    let body: Value = serde_json::from_slice(body).unwrap_or_default();
    let text = if is_vllm {
        body["prompt"].as_str().map_or_else(|| body["messages"].to_string(), ToOwned::to_owned)
    } else {
        body["content"].as_str().unwrap_or_default().to_owned()
    };
    let count = text.len().div_ceil(4);
    let tokens: Vec<usize> = (0..count).collect();
    if is_vllm {
        json!({"count": count, "max_model_len": context, "tokens": tokens, "token_strs": null}).to_string()
    } else {
        json!({"tokens": tokens}).to_string()
    }
}
