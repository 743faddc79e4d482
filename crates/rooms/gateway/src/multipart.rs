//! Uploads: a form whose file streams through. The `model` field comes before the file and within 64 KiB, or the
//! header `x-model` names the model; the field is rewritten on the way.

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{HeaderMap, header};
use http_body::Frame;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tidegate_core::{Case, Fault};
use tidegate_wire::multipart::{Form, Step};
use tidegate_wire::request;

use crate::core::Core;
use crate::deadline::{Deadline, Elapsed};
use crate::read_body::allowed;

/// A form whose head was read; the rest is still with the caller.
#[derive(Debug)]
pub(crate) struct Upload {
    content_type: Box<str>,
    model: Box<str>,
    /// What a new head is made of, and the rest; `None` once it is on its way.
    rest: Option<Rest>,
}

#[derive(Debug)]
struct Rest {
    form: Form,
    body: Incoming,
    announced: Option<u64>,
    received: u64,
    max: u64,
    deadline: Deadline,
    core: Rc<Core>,
}

/// A form on its way to an engine.
#[derive(Debug)]
pub(crate) struct Passage {
    head: Option<Bytes>,
    rest: Rest,
}

/// Why a form cannot be sent on.
#[derive(Debug)]
pub(crate) struct Broken(&'static str);

impl std::fmt::Display for Broken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0)
    }
}

/// Reads a form up to its model.
///
/// # Errors
/// 400 when it is no form, names no model in time or two; 408 and 413 as for other bodies.
pub(crate) async fn begin(
    core: &Rc<Core>,
    headers: &HeaderMap,
    mut body: Incoming,
    max: u64,
    header_model: Option<&str>,
) -> Result<Upload, Fault> {
    let content_type = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let mut form = Form::new(content_type)?;
    let announced = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    let started = core.now();
    let deadline = core.deadlines.at(started.after(allowed(0)));
    let mut received = 0_u64;
    let mut step = Step::More;
    while step == Step::More {
        let data = match deadline.bound(body.frame()).await {
            Err(Elapsed) => return Err(Fault::new(Case::SlowBody)),
            Ok(None) => return Err(Fault::new(Case::Framing).saying("the form has no end")),
            Ok(Some(Err(_))) => return Err(Fault::new(Case::Framing).saying("the request body is broken")),
            Ok(Some(Ok(frame))) => frame.into_data().unwrap_or_default(),
        };
        received += data.len() as u64;
        if received > max {
            return Err(Fault::new(Case::TooLarge));
        }
        deadline.set(started.after(allowed(received)));
        step = form.push(&data)?;
    }
    let model = agreed(form.model(), header_model)?;
    let rest = Rest { form, body, announced, received, max, deadline, core: Rc::clone(core) };
    Ok(Upload { content_type: content_type.into(), model, rest: Some(rest) })
}

fn agreed(form: Option<&str>, header: Option<&str>) -> Result<Box<str>, Fault> {
    match (form, header) {
        (Some(form), Some(header)) if form != header => Err(request::conflict()),
        (Some(name), _) | (None, Some(name)) => Ok(name.into()),
        (None, None) => {
            let text = "model is missing: put it before the file and within 64 KiB, or send x-model";
            Err(Fault::new(Case::MissingParameter).saying(text).param("model"))
        }
    }
}

impl Upload {
    /// The model as the caller names it.
    pub(crate) fn model(&self) -> &str {
        &self.model
    }

    /// The form's content type, boundary included.
    pub(crate) fn content_type(&self) -> &str {
        &self.content_type
    }

    /// The form for an engine, with its length if that is known. `None` when it was taken before: it streams through
    /// once.
    pub(crate) fn take(&mut self, served_name: &str) -> Option<(Passage, Option<u64>)> {
        let rest = self.rest.take()?;
        let head = rest.form.head(served_name);
        let length = rest.announced.and_then(|announced| {
            let behind = announced.checked_sub(rest.form.read_len() as u64)?;
            Some(behind + head.len() as u64)
        });
        Some((Passage { head: Some(head), rest }, length))
    }
}

impl http_body::Body for Passage {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        let this = self.get_mut();
        if let Some(head) = this.head.take() {
            return Poll::Ready(Some(Ok(Frame::data(head))));
        }
        let rest = &mut this.rest;
        let frame = match Pin::new(&mut rest.body).poll_frame(context) {
            Poll::Pending => {
                ready!(rest.deadline.poll(context).map(|Elapsed| ()));
                return Poll::Ready(Some(Err(Broken("the upload is too slow"))));
            }
            Poll::Ready(frame) => frame,
        };
        Poll::Ready(match frame {
            None => match rest.form.end() {
                Ok(()) => None,
                Err(_) => Some(Err(Broken("the form has no end"))),
            },
            Some(Err(_)) => Some(Err(Broken("the caller broke off"))),
            Some(Ok(frame)) => Some(rest.pass(frame.into_data().unwrap_or_default())),
        })
    }
}

impl Rest {
    fn pass(&mut self, data: Bytes) -> Result<Frame<Bytes>, Broken> {
        self.received += data.len() as u64;
        if self.received > self.max {
            return Err(Broken("the upload is too large"));
        }
        self.form.watch(&data).map_err(|_| Broken("the form is broken behind its head"))?;
        // Each piece that arrives earns time for the next.
        self.deadline.set(self.core.now().after(allowed(0)));
        Ok(Frame::data(data))
    }
}
