//! How long a check of 100 documents takes: `cargo run --release -p tidegate-config --example check_speed`.

use std::fmt::Write as _;
use std::io::Write as _;
use std::time::Instant;

use tidegate_config::{Source, check};

const ROUNDS: usize = 51;

fn main() -> std::io::Result<()> {
    let sources = sources();
    let mut times: Vec<u128> = Vec::new();
    let mut documents = 0;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        let checked = check(&sources);
        times.push(start.elapsed().as_micros());
        let Some(site) = checked.site else {
            return Err(std::io::Error::other(format!("{:?}", checked.diagnostics)));
        };
        documents =
            1 + site.models.len() + site.deployments.len() + site.aliases.len() + site.teams.len() + site.nodes.len();
    }
    times.sort_unstable();
    let mut out = std::io::stdout().lock();
    writeln!(out, "documents {documents}, median {} µs, worst {} µs of {ROUNDS}", times[ROUNDS / 2], times[ROUNDS - 1])
}

/// One Site, one Node, and 98 others, in four files.
fn sources() -> Vec<Source> {
    let head = "apiVersion: tidegate.dev/v1alpha1\n";
    let mut texts = [
        format!(
            "{head}kind: Site\nmetadata: {{name: s}}\n---\nkind: Node\nmetadata: {{name: n}}\nspec: {{gpus: {{count: 8, memory: 288GB}}, numa: [{{node: 0, gpus: 0-3, cpus: 0-63}}]}}\n"
        ),
        head.to_owned(),
        head.to_owned(),
        head.to_owned(),
    ];
    for index in 0..24 {
        let _ = write!(
            texts[1],
            "kind: Model\nmetadata: {{name: m{index}}}\nspec: {{engine: vllm, precision: fp8}}\n---\n"
        );
        let _ = write!(
            texts[1],
            "kind: Deployment\nmetadata: {{name: d{index}}}\nspec:\n  model: m{index}\n  profile: {{concurrency: 30, rpm: 600, tpm: 2M, capacity: 48}}\n  endpoints: [{{url: \"http://10.0.0.{index}:8000\", apiKey: {{fromEnv: ENGINE_KEY}}}}]\n  limits: {{contextTokens: 128Ki, maxOutputTokens: 8Ki}}\n---\n"
        );
        let _ = write!(
            texts[2],
            "kind: Alias\nmetadata: {{name: a{index}}}\nspec: {{targets: [{{deployment: d{index}, weight: 90}}], class: interactive}}\n---\n"
        );
    }
    for index in 0..26 {
        let grants: Vec<String> = (0..8)
            .map(|alias| format!("    - {{alias: a{alias}, rpm: 60, tpm: 500k, concurrency: 1, dailyTokens: 20M}}\n"))
            .collect();
        let _ = write!(
            texts[3],
            "kind: Team\nmetadata: {{name: t{index}}}\nspec:\n  limits: {{rpm: 100, tpm: 2M}}\n  models:\n{}  perCaller: {{rpm: 20}}\n---\n",
            grants.concat()
        );
    }
    texts.into_iter().enumerate().map(|(index, text)| Source::new(format!("{index}.yaml"), text)).collect()
}
