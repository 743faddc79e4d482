//! Third room: what is asked for, and whether this caller may have it.
//!
//! Order (gateway contract A3): path and method, the key's purpose, draining, encoding, length, the body itself, JSON
//! and `model`, the grant, presence in this shift, the fields. "Unknown" and "not granted" are one answer, made by one
//! line of code.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;

use http::{HeaderMap, header};
use jiff::tz::TimeZone;
use tidegate_core::{AliasName, Case, Dimension, Fault, Unix};
use tidegate_engine::dialect::Serves;
use tidegate_identity::{Authenticated, Door, KeyRecord};
use tidegate_policy::grants::{self, Granted};
use tidegate_policy::limiter::{Rules, SubjectKey, Subjects};
use tidegate_wire::endpoint::Endpoint;
use tidegate_wire::json::Document;
use tidegate_wire::request::{self, Facts};

use crate::accept::{self, Inbound};
use crate::account::Tail;
use crate::caller_body::CallerBody;
use crate::catalogue::{AliasView, Catalogue};
use crate::core::Core;
use crate::multipart::{self, Upload};
use crate::read_body::read_body;

/// What an authenticated caller asks for.
#[derive(Debug)]
pub(crate) enum Authorised {
    /// A model is to be called.
    Call(Box<Grant>),
    /// The catalogue is asked.
    Models(Listing),
}

/// A question about the catalogue, already restricted to what the caller may use.
#[derive(Debug)]
pub(crate) struct Listing {
    pub(crate) catalogue: Arc<Catalogue>,
    pub(crate) aliases: Vec<Arc<AliasView>>,
    /// Set when one was asked for by name, and `aliases` holds just that: whether it can be called now.
    pub(crate) single: Option<bool>,
    /// When it was asked.
    pub(crate) at: Unix,
}

/// The proof that the caller may call the alias.
#[derive(Debug)]
pub(crate) struct Grant {
    pub(crate) endpoint: Endpoint,
    pub(crate) catalogue: Arc<Catalogue>,
    pub(crate) key: Arc<KeyRecord>,
    /// The alias that serves: the one asked for, or its substitute.
    pub(crate) alias: Arc<AliasView>,
    pub(crate) standing: Rc<Standing>,
    pub(crate) request: RequestBody,
}

/// The body, as far as it was read.
#[derive(Debug)]
pub(crate) enum RequestBody {
    /// Read in full.
    Json(JsonBody),
    /// A file that streams through.
    Upload(Box<Upload>),
}

/// A JSON body and what was read of it.
#[derive(Debug)]
pub(crate) struct JsonBody {
    pub(crate) document: Document,
    pub(crate) facts: Facts,
}

/// A caller's standing with an alias: the grant and the limits that count. Resolved once per key, alias and state of
/// the documents.
#[derive(Debug)]
pub(crate) struct Standing {
    /// The key as it was then: a change makes a new record of it.
    pub(crate) key: Arc<KeyRecord>,
    pub(crate) granted: Granted,
    pub(crate) subjects: Arc<Subjects>,
    /// Whether a daily or monthly quota is among the limits.
    pub(crate) has_quota: bool,
}

/// Reads what is asked for and decides whether the caller may have it.
///
/// # Errors
/// Every refusal up to and including the fields of the request.
pub(crate) async fn authorise(inbound: Inbound, caller: Authenticated, tail: &mut Tail) -> Result<Authorised, Fault> {
    let core = Rc::clone(&tail.core);
    let path = accept::raw_path(&inbound.parts.uri);
    let found = Endpoint::of_path(path);
    core.shared.metrics.route(found.map(|(endpoint, _)| endpoint));
    let (endpoint, id) = found.ok_or_else(|| Fault::new(Case::UnknownPath))?;
    tail.endpoint = endpoint.path();
    if !endpoint.methods().contains(&inbound.parts.method.as_str()) {
        return Err(Fault::new(Case::MethodNotAllowed).internal(endpoint.methods().join(", ")));
    }
    caller.may_enter(Door::Gate)?;
    let key = caller.key;
    check_team(&inbound.parts.headers, &key)?;
    if core.is_draining() {
        return Err(Fault::new(Case::Draining).retry_after(std::time::Duration::from_secs(1)));
    }
    let catalogue = core.shared.catalogue.load_full();
    match endpoint {
        Endpoint::Models => Ok(Authorised::Models(listing(&catalogue, &key, tail.at))),
        Endpoint::Model => single(&catalogue, &key, id.unwrap_or_default(), tail.at).map(Authorised::Models),
        _ => call(endpoint, catalogue, inbound, key, tail).await.map(|grant| Authorised::Call(Box::new(grant))),
    }
}

fn listing(catalogue: &Arc<Catalogue>, key: &KeyRecord, at: Unix) -> Listing {
    let visible: BTreeSet<_> = grants::visible(&catalogue.site, &key.team).map(|(name, _)| name).collect();
    let usable = |name: &AliasName| key.covers(name);
    let aliases = visible
        .into_iter()
        .filter(|name| usable(name))
        .filter_map(|name| catalogue.aliases.get(name))
        .filter(|alias| is_usable(catalogue, key, alias))
        .map(Arc::clone)
        .collect();
    Listing { catalogue: Arc::clone(catalogue), aliases, single: None, at }
}

fn single(catalogue: &Arc<Catalogue>, key: &KeyRecord, id: &str, at: Unix) -> Result<Listing, Fault> {
    let (alias, _) = granted(catalogue, key, id)?;
    let is_available = is_usable(catalogue, key, &alias);
    Ok(Listing { catalogue: Arc::clone(catalogue), aliases: vec![alias], single: Some(is_available), at })
}

/// Whether a call would be served now: by the alias, by its substitute, or in a gap by a fallback that is granted.
fn is_usable(catalogue: &Catalogue, key: &KeyRecord, alias: &Arc<AliasView>) -> bool {
    let Ok(Some(serving)) = serving(catalogue, key, alias) else { return false };
    let is_there = |name: &AliasName| {
        granted(catalogue, key, name.as_str()).is_ok_and(|(alias, _)| !alias.is_absent() && alias.gap.is_none())
    };
    serving.gap.is_none() || serving.fallback.iter().any(is_there)
}

/// The one place where an alias is looked up for a caller.
fn granted(catalogue: &Catalogue, key: &KeyRecord, name: &str) -> Result<(Arc<AliasView>, Granted), Fault> {
    let not_found = || Fault::new(Case::ModelNotFound).param("model");
    let alias = catalogue.aliases.get(name).ok_or_else(not_found)?;
    if !key.covers(&alias.name) {
        return Err(not_found());
    }
    let granted = grants::resolve(&catalogue.site, &key.team, &alias.name).ok_or_else(not_found)?;
    Ok((Arc::clone(alias), granted))
}

async fn call(
    endpoint: Endpoint,
    catalogue: Arc<Catalogue>,
    inbound: Inbound,
    key: Arc<KeyRecord>,
    tail: &mut Tail,
) -> Result<Grant, Fault> {
    let Inbound { parts, body } = inbound;
    check_encoding(&parts.headers)?;
    let max = catalogue.site.gateway.max_body_bytes;
    check_length(&parts.headers, max)?;
    // Looked at here, said after what the body is refused for.
    let header_model = header_model(&parts.headers);
    let (alias, request) = if endpoint == Endpoint::Transcriptions {
        // On the heap, as all that few requests need: what every request carries along is copied at every step.
        let upload = Box::pin(multipart::begin(&tail.core, &parts.headers, body, max, header_model)).await?;
        let alias = present(&catalogue, &key, upload.model(), tail)?;
        tail.upload_streams = upload.asks_stream();
        (alias, RequestBody::Upload(Box::new(upload)))
    } else {
        let document = json(&tail.core, body, max).await?;
        let header_model = header_model?;
        let name = request::model(&document.object(), header_model.as_deref())?;
        let alias = present(&catalogue, &key, &name, tail)?;
        let facts = request::read_as(endpoint, &document.object(), header_model.as_deref())?;
        tail.streamed = facts.stream;
        (alias, RequestBody::Json(JsonBody { document, facts }))
    };
    let standing = standing(&tail.core, &catalogue, &key, &alias)?;
    let grant = Grant { endpoint, catalogue, key, alias, standing, request };
    check_fields(&grant)?;
    Ok(grant)
}

/// A key belongs to one team; naming another is refused rather than ignored.
fn check_team(headers: &HeaderMap, key: &KeyRecord) -> Result<(), Fault> {
    match headers.get("x-tidegate-team") {
        Some(team) if team.as_bytes() != key.team.as_str().as_bytes() => {
            Err(Fault::new(Case::Forbidden).saying("this key does not belong to the team in x-tidegate-team"))
        }
        Some(_) | None => Ok(()),
    }
}

fn check_encoding(headers: &HeaderMap) -> Result<(), Fault> {
    let plain = |value: &header::HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"identity");
    if headers.get_all(header::CONTENT_ENCODING).iter().all(plain) { Ok(()) } else { Err(Fault::new(Case::Encoding)) }
}

fn check_length(headers: &HeaderMap, max: u64) -> Result<(), Fault> {
    let announced = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|length| length > max) { Err(Fault::new(Case::TooLarge)) } else { Ok(()) }
}

fn header_model(headers: &HeaderMap) -> Result<Option<String>, Fault> {
    let mut values = headers.get_all("x-model").iter();
    let Some(value) = values.next() else { return Ok(None) };
    let invalid = || Fault::new(Case::InvalidValue).saying("x-model must be given once, as plain text").param("model");
    if values.next().is_some() {
        return Err(invalid());
    }
    value.to_str().map(|name| Some(name.to_owned())).map_err(|_| invalid())
}

/// Reads a JSON body.
async fn json(core: &Rc<Core>, body: CallerBody, max: u64) -> Result<Document, Fault> {
    let bytes = read_body(core, body, max).await?;
    Document::parse(bytes)
        .map_err(|error| Fault::new(Case::JsonParse).saying(format!("the body is not valid JSON: {error}")))
}

/// The alias that serves calls to `alias` in this shift: itself, or its substitute, whose own grants apply; `None` when
/// both are absent.
fn serving(catalogue: &Catalogue, key: &KeyRecord, alias: &Arc<AliasView>) -> Result<Option<Arc<AliasView>>, Fault> {
    if !alias.is_absent() {
        return Ok(Some(Arc::clone(alias)));
    }
    let Some(substitute) = &alias.substitute else { return Ok(None) };
    let (substitute, _) = granted(catalogue, key, substitute.as_str())?;
    Ok(Some(substitute).filter(|substitute| !substitute.is_absent()))
}

/// The alias that a call is made to and which this shift has.
fn present(catalogue: &Catalogue, key: &KeyRecord, name: &str, tail: &mut Tail) -> Result<Arc<AliasView>, Fault> {
    let (alias, _) = granted(catalogue, key, name)?;
    tail.alias = Some(alias.name.clone());
    let serving = serving(catalogue, key, &alias)?.ok_or_else(|| absent(catalogue, &alias, tail.at))?;
    if serving.name != alias.name {
        tail.served_alias = Some(serving.name.clone());
    }
    Ok(serving)
}

fn absent(catalogue: &Catalogue, alias: &AliasView, at: Unix) -> Fault {
    let fault = Fault::new(Case::ModelUnavailable).param("model");
    match catalogue.back_in(&alias.name, at.to_timestamp()) {
        Some((wait, start)) => {
            let instant = start.strftime("%Y-%m-%dT%H:%M:%S%:z");
            fault.saying(format!("the model is not served in this shift; it is back at {instant}")).retry_after(wait)
        }
        None => Fault { should_retry: Some(false), ..fault.saying("the model is not served in this shift") },
    }
}

/// The caller's standing with an alias, from this core's memory or made anew.
pub(crate) fn standing(
    core: &Core,
    catalogue: &Catalogue,
    key: &Arc<KeyRecord>,
    alias: &AliasView,
) -> Result<Rc<Standing>, Fault> {
    core.standing(catalogue.generation, key, &alias.name, || {
        let (_, granted) = granted(catalogue, key, alias.name.as_str())?;
        let team = catalogue.site.teams.get(&key.team).ok_or_else(|| Fault::new(Case::ModelNotFound).param("model"))?;
        let rules = |limits, zone: &TimeZone| Rules { generation: catalogue.generation, limits, zone: zone.clone() };
        let (zone, site_zone) = (&team.time_zone, &catalogue.site.time_zone);
        let wanted = [
            (SubjectKey::alias(&alias.name), rules(alias.limits, site_zone)),
            (SubjectKey::team(&key.team), rules(team.limits, zone)),
            (SubjectKey::team_alias(&key.team, &alias.name), rules(granted.limits, zone)),
            (SubjectKey::caller(&key.caller()), rules(team.per_caller, zone)),
            (SubjectKey::key(&key.id), rules(key.limits, zone)),
        ];
        let has_quota = wanted.iter().any(|(_, rules)| {
            Dimension::ALL.into_iter().any(|dimension| dimension.is_quota() && rules.limits.get(dimension).is_some())
        });
        let wall = core.wall();
        let subjects = core.shared.counters.subjects_now(&wanted, core.now(), wall);
        let subjects = subjects.map_err(|error| error.to_fault(wall))?;
        Ok(Standing { key: Arc::clone(key), granted, subjects, has_quota })
    })
}

/// Checks that need the alias: hosts of media, and whether its deployments speak this endpoint at all.
fn check_fields(grant: &Grant) -> Result<(), Fault> {
    check_hosts(&grant.request, &grant.alias)?;
    if serves(&grant.alias, grant.endpoint) {
        Ok(())
    } else {
        Err(Fault::new(Case::InvalidValue).saying("this model does not serve this endpoint").param("model"))
    }
}

/// Whether an alias may be sent these media: each alias that is to serve lists the hosts that its engines may fetch from.
///
/// # Errors
/// 400 that names the host.
pub(crate) fn check_hosts(request: &RequestBody, alias: &AliasView) -> Result<(), Fault> {
    let RequestBody::Json(json) = request else { return Ok(()) };
    let allowed = |host: &str| alias.media_hosts.contains(host);
    match json.facts.media_hosts.iter().find(|host| !allowed(host)) {
        None => Ok(()),
        Some(host) => {
            let text = format!("media may only be given as data: URLs, not from {:?}", cut(host));
            Err(Fault::new(Case::InvalidValue).saying(text).param("messages"))
        }
    }
}

/// Whether any deployment of the alias speaks an endpoint.
pub(crate) fn serves(alias: &AliasView, endpoint: Endpoint) -> bool {
    alias.targets.iter().any(|target| target.deployment.serves(endpoint) != Serves::No)
}

/// A caller's text in a message is cut: it is theirs, but not of any length.
fn cut(text: &str) -> String {
    text.chars().take(64).collect()
}
