//! Refusals of the admin API, in the same shape as the gate's.

use axum::response::{IntoResponse, Response};
use http::{StatusCode, header};
use tidegate_core::{Case, Fault};
use tidegate_store::StoreError;
use tidegate_wire::endpoint::Api;
use tidegate_wire::error;

/// A refusal.
#[derive(Debug)]
pub(crate) struct Problem(pub(crate) Fault);

impl From<Fault> for Problem {
    fn from(fault: Fault) -> Self {
        Self(fault)
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        let text = error.to_string();
        let fault = match error {
            StoreError::NotFound(_) => Fault::new(Case::UnknownPath).saying(text),
            StoreError::Exists(_) | StoreError::Conflict(_) | StoreError::Refused(_) => {
                Fault::new(Case::InvalidValue).status(409).saying(text)
            }
            other => {
                tracing::error!(error = %other, "the store failed");
                Fault::new(Case::Internal).saying("the store failed; the log says why").internal(text)
            }
        };
        Self(fault)
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let rendered = error::render(&self.0, Api::OpenAi, "");
        let status = StatusCode::from_u16(rendered.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, [(header::CONTENT_TYPE, "application/json")], rendered.body).into_response();
        for (name, value) in error::headers(&self.0) {
            if let Ok(value) = http::HeaderValue::from_str(&value) {
                response.headers_mut().insert(http::HeaderName::from_static(name), value);
            }
        }
        response
    }
}

/// A field that cannot be accepted.
pub(crate) fn invalid(param: &'static str, text: impl Into<String>) -> Problem {
    Problem(Fault::new(Case::InvalidValue).param(param).saying(text.into()))
}

pub(crate) fn body(rejection: &axum::extract::rejection::JsonRejection) -> Problem {
    Problem(Fault::new(Case::JsonParse).saying(rejection.body_text()))
}

pub(crate) async fn unknown_path() -> Problem {
    std::future::ready(Problem(Fault::new(Case::UnknownPath))).await
}

pub(crate) async fn wrong_method() -> Problem {
    std::future::ready(Problem(Fault::new(Case::MethodNotAllowed))).await
}
