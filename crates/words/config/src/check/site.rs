//! The Site document.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use jiff::tz::TimeZone;

use super::url::Url;
use super::{Documents, arcs, check_name, file, secret, within};
use crate::at::{At, Name, Report};
use crate::quantity::Share;
use crate::raw::{self, site as raw_site};
use crate::site::{
    Admin, AgentTls, Counters, Engine, EngineDialect, Gateway, Identity, KeepFree, KubernetesIssuer, Launcher,
    MessagesApi, ModelCache, OidcIssuer, Scrub, Server, Site, Stage, Store, Timeouts, Tls,
};

const GATEWAY_LISTEN: &str = "127.0.0.1:8000";
const ADMIN_LISTEN: &str = "127.0.0.1:8900";
const BODY_BYTES_DEFAULT: u64 = 32 << 20;
const BODY_BYTES_MIN: u64 = 1 << 10;
const BODY_BYTES_MAX: u64 = 1 << 30;
const DRAIN_DEFAULT: Duration = Duration::from_secs(30);
const WORKERS_MAX: u32 = 1_024;
const ATTEMPTS_MAX: u32 = 10;
const SCRUB_EVERY_MIN: Duration = Duration::from_hours(1);
const SCRUB_RATE_MIN: u64 = 1_000_000;
const SCRUB_RATE_MAX: u64 = 100_000_000_000;

/// Checks the Site document; the other kinds are filled in by their own checks.
pub(super) fn check(documents: &Documents, report: &mut Report) -> Option<Site> {
    let mut sites = documents.sites.iter();
    let Some(doc) = sites.next() else {
        if !documents.may_have("Site") {
            let hint =
                format!("write apiVersion: {}, kind: Site, metadata: {{name: NAME}}, spec: {{}}", crate::API_VERSION);
            report.about_file(
                Path::new(""),
                crate::node::Position::default(),
                "no Site document".to_owned(),
                Some(hint),
            );
        }
        // The others are checked all the same, against the defaults.
        return fallback(report);
    };
    for more in sites {
        let message = format!("a second Site document, the first is at {}", doc.origin.file.display());
        report.error(&At::root(&more.origin).key("kind"), message);
    }
    let root = At::root(&doc.origin);
    let Some(raw) = &doc.spec else { return fallback(report) };
    build(&root.key("spec"), &doc.name, raw, report)
}

/// A site of defaults, to check the other documents against when there is no Site that could be read.
fn fallback(report: &mut Report) -> Option<Site> {
    let root = crate::node::Node::new(Default::default(), crate::node::Data::Map(Vec::new()));
    let origin = crate::at::Origin { file: PathBuf::new(), title: None, root, wrong: BTreeSet::new() };
    build(&At::root(&origin), &Name::from(""), &raw_site::Site::default(), report)
}

fn build(at: &At<'_>, name: &Name, raw: &raw_site::Site, report: &mut Report) -> Option<Site> {
    let raw_site::Site {
        time_zone,
        stage,
        gateway,
        admin,
        engine_ports,
        store,
        counters,
        identity,
        model_store,
        model_cache,
        launcher,
        engines,
        agents,
        timeouts: raw_timeouts,
    } = raw;
    let gateway = self::gateway(&at.key("gateway"), gateway.as_ref(), report)?;
    let admin = self::admin(&at.key("admin"), admin.as_ref(), &gateway, report)?;
    Some(Site {
        name: Arc::clone(name),
        time_zone: time_zone.as_ref().map_or(TimeZone::UTC, |zone| zone.0.clone()),
        stage: match stage {
            None | Some(raw_site::Stage::Direct) => Stage::Direct,
            Some(raw_site::Stage::Pooled) => Stage::Pooled,
            Some(raw_site::Stage::Tiered) => Stage::Tiered,
        },
        gateway,
        admin,
        engine_ports: engine_ports.as_ref().map_or(8001..=8099, |ports| ports.0.clone()),
        store: self::store(&at.key("store"), store.as_ref(), report),
        counters: self::counters(&at.key("counters"), counters.as_ref(), report),
        identity: identity.as_ref().map(|raw| self::identity(&at.key("identity"), raw, report)).unwrap_or_default(),
        model_store: model_store.as_ref().and_then(|raw| super::model_store::check(&at.key("modelStore"), raw, report)),
        model_cache: self::model_cache(&at.key("modelCache"), model_cache.as_ref(), report),
        launcher: launcher.map_or(Launcher::Processes, raw_site::Launcher::checked),
        engines: self::engines(&at.key("engines"), engines, report),
        agents: agents.as_ref().and_then(|raw| self::agents(&at.key("agents"), raw, report)),
        timeouts: timeouts(&at.key("timeouts"), raw_timeouts.as_ref(), Timeouts::default(), report),
        nodes: BTreeMap::new(),
        reservations: BTreeMap::new(),
        models: BTreeMap::new(),
        deployments: BTreeMap::new(),
        aliases: BTreeMap::new(),
        schedules: BTreeMap::new(),
        teams: BTreeMap::new(),
    })
}

fn listen(at: &At<'_>, text: Option<&String>, default: &str, report: &mut Report) -> Option<SocketAddr> {
    let text = text.map_or(default, String::as_str);
    let address = text.parse().ok();
    if address.is_none() {
        report.error_hint(at, "expected an IP address and a port", format!("write {default} or \"0.0.0.0:8000\""));
    }
    // Checked against a good address further on, so that nothing else is left unsaid.
    address.or_else(|| default.parse().ok())
}

fn gateway(at: &At<'_>, raw: Option<&raw_site::Gateway>, report: &mut Report) -> Option<Gateway> {
    let default = raw_site::Gateway::default();
    let raw_site::Gateway { listen: address, tls, max_body, workers, drain } = raw.unwrap_or(&default);
    let max_body_bytes = max_body.map_or(BODY_BYTES_DEFAULT, |bytes| bytes.0);
    if !(BODY_BYTES_MIN..=BODY_BYTES_MAX).contains(&max_body_bytes) {
        report.error(&at.key("maxBody"), "expected from 1KiB to 1GiB");
    }
    let workers = workers.and_then(|workers| within(&at.key("workers"), workers, 1, WORKERS_MAX, report));
    Some(Gateway {
        listen: listen(&at.key("listen"), address.as_ref(), GATEWAY_LISTEN, report)?,
        tls: tls.as_ref().and_then(|raw| self::tls(&at.key("tls"), raw, report)),
        max_body_bytes,
        workers: workers.and_then(|workers| usize::try_from(workers).ok()),
        drain: drain.map_or(DRAIN_DEFAULT, |span| span.0),
    })
}

fn tls(at: &At<'_>, raw: &raw_site::Tls, report: &mut Report) -> Option<Tls> {
    let raw_site::Tls { cert, key } = raw;
    let cert = report.required(at, "cert", cert.as_ref()).and_then(|raw| secret(&at.key("cert"), raw, report));
    let key = report.required(at, "key", key.as_ref()).and_then(|raw| secret(&at.key("key"), raw, report));
    Some(Tls { cert: cert?, key: key? })
}

fn admin(at: &At<'_>, raw: Option<&raw_site::Admin>, gateway: &Gateway, report: &mut Report) -> Option<Admin> {
    let address = raw.and_then(|raw| raw.listen.as_ref());
    let listen = listen(&at.key("listen"), address, ADMIN_LISTEN, report)?;
    let is_same_ip =
        listen.ip() == gateway.listen.ip() || listen.ip().is_unspecified() || gateway.listen.ip().is_unspecified();
    if listen.port() != 0 && listen.port() == gateway.listen.port() && is_same_ip {
        report.error(&at.key("listen"), "the admin port is the user port");
    }
    Some(Admin { listen })
}

/// Reads a URL that must not hold a password.
fn url_without_password<'t>(at: &At<'_>, text: &'t str, what: &str, report: &mut Report) -> Option<Url<'t>> {
    let url = Url::parse(text);
    match url {
        None => report.error(at, format!("not the URL of {what}")),
        Some(url) if url.has_password => {
            // The value is left out on purpose.
            report.error_without_value(
                at,
                "a password stands in the URL",
                "leave it out and write password: {fromEnv: NAME} or {fromFile: PATH} beside it",
            );
        }
        Some(_) => {}
    }
    url.filter(|url| !url.has_password)
}

/// A server with its password, which stands beside its URL.
fn server(at: &At<'_>, url: &str, password: Option<&raw::SecretRef>, what: &str, report: &mut Report) -> Server {
    url_without_password(&at.key("url"), url, what, report);
    let password = password.and_then(|raw| secret(&at.key("password"), raw, report));
    Server { url: Arc::from(url), password }
}

/// What is kept in a file or in the process has no password.
fn no_password(at: &At<'_>, password: Option<&raw::SecretRef>, report: &mut Report) {
    if password.is_some() {
        report.error(&at.key("password"), "a password, and no server that asks for one");
    }
}

fn store(at: &At<'_>, raw: Option<&raw_site::Store>, report: &mut Report) -> Store {
    let default = Store::Sqlite(PathBuf::from("tidegate.db"));
    let Some(raw_site::Store { url, password }) = raw else { return default };
    let Some(text) = report.required(at, "url", url.as_ref()) else { return default };
    if let Some(file) = text.strip_prefix("sqlite:") {
        let path = file.strip_prefix("//").unwrap_or(file);
        if path.is_empty() || path.starts_with(':') || path.contains(['?', '\0']) {
            report.error_hint(&at.key("url"), "expected a file after `sqlite:`", "write sqlite:tidegate.db".to_owned());
        }
        no_password(at, password.as_ref(), report);
        return Store::Sqlite(PathBuf::from(path));
    }
    if !text.starts_with("postgres://") && !text.starts_with("postgresql://") {
        report.error_hint(
            &at.key("url"),
            "not the URL of a store",
            "write sqlite:tidegate.db or postgres://HOST/DATABASE".to_owned(),
        );
        return default;
    }
    Store::Postgres(server(at, text, password.as_ref(), "a PostgreSQL database", report))
}

fn counters(at: &At<'_>, raw: Option<&raw_site::Counters>, report: &mut Report) -> Counters {
    let Some(raw_site::Counters { url, password }) = raw else { return Counters::Memory };
    let Some(text) = report.required(at, "url", url.as_ref()) else { return Counters::Memory };
    if text == "memory:" {
        no_password(at, password.as_ref(), report);
        return Counters::Memory;
    }
    if !text.starts_with("redis://") && !text.starts_with("rediss://") {
        report.error_hint(&at.key("url"), "not the URL of counters", "write memory: or redis://HOST".to_owned());
        return Counters::Memory;
    }
    Counters::Redis(server(at, text, password.as_ref(), "a Redis server", report))
}

fn identity(at: &At<'_>, raw: &raw_site::Identity, report: &mut Report) -> Identity {
    let raw_site::Identity { oidc, kubernetes, keys } = raw;
    let mut names = BTreeSet::new();
    let mut identity = Identity::default();
    let list = at.key("oidc");
    for (index, raw) in oidc.iter().enumerate() {
        identity.oidc.extend(oidc_issuer(&list.index(index), raw, &mut names, report));
    }
    let list = at.key("kubernetes");
    for (index, raw) in kubernetes.iter().enumerate() {
        identity.kubernetes.extend(kubernetes_issuer(&list.index(index), raw, &mut names, report));
    }
    let pepper = keys.as_ref().and_then(|keys| keys.pepper.as_ref());
    identity.key_pepper = pepper.and_then(|raw| secret(&at.key("keys").key("pepper"), raw, report));
    identity
}

/// The name of an issuer: one namespace over both sorts, because callers and the ledger show it.
fn issuer_name(at: &At<'_>, name: Option<&String>, names: &mut BTreeSet<Name>, report: &mut Report) -> Option<Name> {
    let name = report.required(at, "name", name)?;
    let at = at.key("name");
    if !check_name(&at, name, report) {
        return None;
    }
    if name == "keyring" {
        report.error(&at, "`keyring` is the name of the site's own API keys");
    }
    let name = Name::from(name.as_str());
    if !names.insert(Arc::clone(&name)) {
        report.error(&at, format!("another issuer has the name `{name}`"));
    }
    Some(name)
}

fn https(at: &At<'_>, text: &str, report: &mut Report) -> Name {
    if !Url::parse(text).is_some_and(|url| matches!(url.scheme, "https" | "http") && url.user.is_none()) {
        report.error_hint(at, "expected a URL", "write https://HOST/PATH".to_owned());
    }
    Name::from(text)
}

fn oidc_issuer(
    at: &At<'_>,
    raw: &raw_site::OidcIssuer,
    names: &mut BTreeSet<Name>,
    report: &mut Report,
) -> Option<OidcIssuer> {
    let raw_site::OidcIssuer { name, issuer, audience, groups_claim, jwks_uri } = raw;
    let name = issuer_name(at, name.as_ref(), names, report);
    let issuer = report.required(at, "issuer", issuer.as_ref()).map(|text| https(&at.key("issuer"), text, report));
    let audience = report.required(at, "audience", audience.as_ref()).map(|text| Name::from(text.as_str()));
    let jwks_uri = jwks_uri.as_ref().map(|text| https(&at.key("jwksUri"), text, report));
    Some(OidcIssuer {
        name: name?,
        issuer: issuer?,
        audience: audience?,
        groups_claim: Name::from(groups_claim.as_deref().unwrap_or("groups")),
        jwks_uri,
    })
}

fn kubernetes_issuer(
    at: &At<'_>,
    raw: &raw_site::KubernetesIssuer,
    names: &mut BTreeSet<Name>,
    report: &mut Report,
) -> Option<KubernetesIssuer> {
    let raw_site::KubernetesIssuer { name, issuer, audience, token_review } = raw;
    let name = issuer_name(at, name.as_ref(), names, report);
    let issuer = report.required(at, "issuer", issuer.as_ref()).map(|text| https(&at.key("issuer"), text, report));
    let audience = report.required(at, "audience", audience.as_ref()).map(|text| Name::from(text.as_str()));
    Some(KubernetesIssuer {
        name: name?,
        issuer: issuer?,
        audience: audience?,
        token_review: token_review.unwrap_or(false),
    })
}

fn model_cache(at: &At<'_>, raw: Option<&raw_site::ModelCache>, report: &mut Report) -> ModelCache {
    let default = raw_site::ModelCache::default();
    let raw_site::ModelCache { path, keep_free, scrub } = raw.unwrap_or(&default);
    let path = path.as_ref().and_then(|path| file(&at.key("path"), path, report));
    let keep_free = match keep_free {
        None => KeepFree::Percent(10.0),
        Some(Share::Millipercent(share)) => KeepFree::Percent(f64::from(*share) / 1_000.0),
        Some(Share::Bytes(bytes)) => KeepFree::Bytes(bytes.0),
    };
    let scrub = scrub.as_ref().map(|raw| self::scrub(&at.key("scrub"), raw, report)).unwrap_or_default();
    ModelCache { path: path.unwrap_or_else(|| PathBuf::from("model-cache")), keep_free, scrub }
}

fn scrub(at: &At<'_>, raw: &raw_site::Scrub, report: &mut Report) -> Scrub {
    let raw_site::Scrub { every, rate } = raw;
    let default = Scrub::default();
    let every = every.map_or(default.every, |every| Some(every.0).filter(|every| !every.is_zero()));
    if every.is_some_and(|every| every < SCRUB_EVERY_MIN) {
        report.error_hint(&at.key("every"), "too often", "write 1h or more, or 0s for never".to_owned());
    }
    let rate = rate.map_or(default.rate, |rate| rate.0);
    if !(SCRUB_RATE_MIN..=SCRUB_RATE_MAX).contains(&rate) {
        report.error(&at.key("rate"), "expected from 1MB to 100GB");
    }
    Scrub { every, rate }
}

fn agents(at: &At<'_>, raw: &raw_site::Agents, report: &mut Report) -> Option<AgentTls> {
    let raw_site::Agents { ca, cert, key } = raw;
    let ca = report.required(at, "ca", ca.as_ref()).and_then(|raw| secret(&at.key("ca"), raw, report));
    let cert = report.required(at, "cert", cert.as_ref()).and_then(|raw| secret(&at.key("cert"), raw, report));
    let key = report.required(at, "key", key.as_ref()).and_then(|raw| secret(&at.key("key"), raw, report));
    Some(AgentTls { ca: ca?, cert: cert?, key: key? })
}

/// The dialect that an engine's name stands for.
pub(super) fn dialect(name: &str) -> Option<EngineDialect> {
    [EngineDialect::Vllm, EngineDialect::LlamaCpp].into_iter().find(|dialect| dialect.as_str() == name)
}

/// An engine that no document describes.
pub(super) fn default_engine(dialect: EngineDialect) -> Engine {
    let command: &[&str] = match dialect {
        EngineDialect::Vllm => &["vllm", "serve"],
        EngineDialect::LlamaCpp => &["llama-server"],
    };
    Engine {
        dialect,
        version: None,
        command: command.iter().map(|&word| Name::from(word)).collect(),
        image: None,
        env: BTreeMap::new(),
        messages: MessagesApi::Native,
    }
}

fn engines(at: &At<'_>, raw: &BTreeMap<String, raw_site::Engine>, report: &mut Report) -> BTreeMap<Name, Engine> {
    let mut engines = BTreeMap::new();
    for (name, raw) in raw {
        let at = at.key(name);
        if check_name(&at, name, report)
            && let Some(engine) = engine(&at, name, raw, report)
        {
            engines.insert(Name::from(name.as_str()), engine);
        }
    }
    engines
}

fn engine(at: &At<'_>, name: &str, raw: &raw_site::Engine, report: &mut Report) -> Option<Engine> {
    let raw_site::Engine { dialect: raw_dialect, version, command, image, env, messages } = raw;
    let dialect = match raw_dialect {
        Some(raw_site::Dialect::Vllm) => EngineDialect::Vllm,
        Some(raw_site::Dialect::LlamaCpp) => EngineDialect::LlamaCpp,
        None => match dialect(name) {
            Some(dialect) => dialect,
            None => {
                report.error_hint(
                    &at.key("dialect"),
                    format!("`dialect` is missing: `{name}` is no dialect"),
                    "one of vllm, llama.cpp".to_owned(),
                );
                return None;
            }
        },
    };
    if let Some(image) = image
        && !image.split_once("@sha256:").is_some_and(|(name, digest)| !name.is_empty() && !digest.is_empty())
    {
        report.error_hint(&at.key("image"), "image is not pinned by its digest", "write NAME@sha256:DIGEST".to_owned());
    }
    let default = default_engine(dialect);
    Some(Engine {
        dialect,
        version: version.as_deref().map(Name::from),
        command: if command.is_empty() { default.command } else { arcs(command) },
        image: image.as_deref().map(Name::from),
        env: environment(&at.key("env"), env, report),
        messages: match messages {
            None => default.messages,
            Some(raw_site::Messages::Native) => MessagesApi::Native,
            Some(raw_site::Messages::Translate) => MessagesApi::Translate,
        },
    })
}

/// Environment of a process.
pub(super) fn environment(at: &At<'_>, raw: &BTreeMap<String, String>, report: &mut Report) -> BTreeMap<Name, Name> {
    let mut env = BTreeMap::new();
    for (name, value) in raw {
        let at = at.key(name);
        if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
            report.error(&at, "not an environment variable");
        } else if crate::node::is_secret_key(name) && !value.is_empty() {
            report.warning(
                &at,
                "looks like a secret",
                "secrets never stand in documents: set it in the process's own environment".to_owned(),
            );
        }
        env.insert(Name::from(name.as_str()), Name::from(value.as_str()));
    }
    env
}

/// Deadlines: what the document leaves out is inherited.
pub(super) fn timeouts(at: &At<'_>, raw: Option<&raw::Timeouts>, inherited: Timeouts, report: &mut Report) -> Timeouts {
    let Some(raw) = raw else { return inherited };
    let raw::Timeouts { connect, first_byte, gap, whole, whole_streamed, attempts } = raw;
    let mut span = |key: &str, span: &Option<crate::quantity::Span>, inherited: Duration| {
        let duration = span.map_or(inherited, |span| span.0);
        if duration.is_zero() {
            report.error(&at.key(key), "a deadline of 0 lets nothing pass");
        }
        duration
    };
    Timeouts {
        connect: span("connect", connect, inherited.connect),
        first_byte: span("firstByte", first_byte, inherited.first_byte),
        gap: span("gap", gap, inherited.gap),
        whole: span("whole", whole, inherited.whole),
        whole_streamed: span("wholeStreamed", whole_streamed, inherited.whole_streamed),
        attempts: attempts
            .map_or(Some(inherited.attempts), |attempts| within(&at.key("attempts"), attempts, 1, ATTEMPTS_MAX, report))
            .unwrap_or(inherited.attempts),
    }
}
