//! `/v1/models` and `/v1/models/{id}`: answered from the catalogue and the caller's grants, never by asking replicas.

use http::{HeaderValue, Response, header};
use serde::Serialize;

use crate::authorise::Listing;
use crate::body::Body;
use crate::catalogue::{AliasView, Catalogue};

#[derive(Debug, Serialize)]
struct List<'a> {
    object: &'static str,
    data: Vec<Model<'a>>,
}

#[derive(Debug, Serialize)]
struct Model<'a> {
    id: &'a str,
    object: &'static str,
    created: i64,
    owned_by: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_model_len: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tidegate: Option<Availability>,
}

/// Said of one model that was asked for by name.
#[derive(Debug, Serialize)]
struct Availability {
    available: bool,
    /// When it is back, if a Schedule says so.
    #[serde(skip_serializing_if = "Option::is_none")]
    from: Option<String>,
}

/// Answers a listing.
pub(crate) fn answer(listing: &Listing) -> Response<Body> {
    let catalogue = &listing.catalogue;
    let text = match (listing.single, listing.aliases.as_slice()) {
        (Some(available), [alias]) => {
            let availability = availability(listing, alias, available);
            serde_json::to_vec(&Model { tidegate: Some(availability), ..model(catalogue, alias) })
        }
        (_, aliases) => {
            let data = aliases.iter().map(|alias| model(catalogue, alias)).collect();
            serde_json::to_vec(&List { object: "list", data })
        }
    };
    // Strings and numbers always serialise.
    let mut response = Response::new(Body::full(text.unwrap_or_default()));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

fn model<'a>(catalogue: &Catalogue, alias: &'a AliasView) -> Model<'a> {
    Model {
        id: alias.name.as_str(),
        object: "model",
        created: catalogue.created,
        owned_by: "tidegate",
        max_model_len: alias.context(),
        tidegate: None,
    }
}

fn availability(listing: &Listing, alias: &AliasView, available: bool) -> Availability {
    let catalogue = &listing.catalogue;
    let from = match alias.gap {
        _ if available => None,
        Some(gap) => gap.until.map(|until| until.to_timestamp().to_zoned(catalogue.site.time_zone.clone())),
        None => catalogue.back_in(&alias.name, listing.at.to_timestamp()).map(|(_, start)| start),
    };
    Availability { available, from: from.map(|start| start.strftime("%Y-%m-%dT%H:%M:%S%:z").to_string()) }
}
