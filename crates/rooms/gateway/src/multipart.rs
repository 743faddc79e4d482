//! Uploads: a form whose file streams through. The `model` field comes before the file and within 64 KiB, or the
//! header `x-model` names the model; it and the bound of tokens are rewritten on the way.

use std::cell::RefCell;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, header};
use http_body::Frame;
use tidegate_core::{Case, Fault, Monotonic};
use tidegate_wire::multipart::{Form, Step};
use tidegate_wire::request;

use crate::caller_body::CallerBody;
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
    body: CallerBody,
    announced: Option<u64>,
    received: u64,
    max: u64,
    deadline: Deadline,
    /// How long the caller has been waited for, pauses of the engine not counted.
    waited: Duration,
    waits_since: Option<Monotonic>,
    core: Rc<Core>,
}

/// A form on its way to an engine.
#[derive(Debug)]
pub(crate) struct Passage {
    head: Option<Bytes>,
    rest: Rest,
    verdict: Verdict,
}

/// What became of a form behind its head: known only while it is on its way.
#[derive(Clone, Debug, Default)]
pub(crate) struct Verdict(Rc<RefCell<Found>>);

#[derive(Debug, Default)]
enum Found {
    /// Some of it is still to come.
    #[default]
    Open,
    /// All of it was passed on.
    Whole,
    /// It is refused for this.
    Bad(Fault),
}

impl Verdict {
    /// The refusal of the form; `None` when nothing was wrong with it.
    pub(crate) fn fault(&self) -> Option<Fault> {
        match &*self.0.borrow() {
            Found::Bad(fault) => Some(fault.clone()),
            Found::Open | Found::Whole => None,
        }
    }

    /// Whether the engine was given all of it: before that it has nothing to run.
    pub(crate) fn is_whole(&self) -> bool {
        matches!(*self.0.borrow(), Found::Whole)
    }
}

/// The form cannot be sent on; its [`Verdict`] says why.
#[derive(Debug)]
pub(crate) struct Broken;

impl std::fmt::Display for Broken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the form cannot be sent on")
    }
}

/// Reads a form up to its file.
///
/// # Errors
/// 400 when it is no form, names no model in time or two, or asks for what cannot be read; 408 and 413 as for other bodies.
pub(crate) async fn begin(
    core: &Rc<Core>,
    headers: &HeaderMap,
    mut body: CallerBody,
    max: u64,
    header_model: Result<Option<String>, Fault>,
) -> Result<Upload, Fault> {
    let content_type = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let mut form = Form::new(content_type)?;
    let announced = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    let started = core.now();
    let deadline = core.deadlines.at(started.after(allowed(0)));
    let mut received = 0_u64;
    let mut step = Step::More;
    while step == Step::More {
        let data = match deadline.bound(body.data()).await {
            Err(Elapsed) => return Err(Fault::new(Case::SlowBody)),
            Ok(None) => return Err(Fault::new(Case::Framing).saying("the form has no end")),
            Ok(Some(data)) => data?,
        };
        received += data.len() as u64;
        if received > max {
            return Err(Fault::new(Case::TooLarge));
        }
        deadline.set(started.after(allowed(received)));
        step = form.push(&data)?;
    }
    let model = agreed(form.model(), header_model?.as_deref())?;
    let waited = core.now().since(started);
    let core = Rc::clone(core);
    let rest = Rest { form, body, announced, received, max, deadline, waited, waits_since: None, core };
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

    /// Whether the answer is to be a stream.
    pub(crate) fn asks_stream(&self) -> bool {
        self.rest.as_ref().is_some_and(|rest| rest.form.stream())
    }

    /// The most tokens of the answer, as the caller asks for; unknown once the form is on its way.
    pub(crate) fn max_tokens(&self) -> Option<u64> {
        self.rest.as_ref()?.form.max_tokens()
    }

    /// The form for an engine, with its length if that is known. `None` when it was taken before: it streams through
    /// once.
    pub(crate) fn take(&mut self, served_name: &str, max_tokens: Option<u64>) -> Option<(Passage, Option<u64>)> {
        let rest = self.rest.take()?;
        let head = rest.form.head(served_name, max_tokens);
        let length = rest.announced.and_then(|announced| {
            let behind = announced.checked_sub(rest.form.read_len() as u64)?;
            Some(behind + head.len() as u64)
        });
        Some((Passage { head: Some(head), rest, verdict: Verdict::default() }, length))
    }
}

impl Passage {
    /// Where it will be said what was wrong.
    pub(crate) fn verdict(&self) -> Verdict {
        self.verdict.clone()
    }

    fn refuse(&self, fault: Fault) -> Broken {
        self.verdict.0.replace(Found::Bad(fault));
        Broken
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
        let data = match this.rest.body.poll_data(context) {
            Poll::Pending => {
                this.rest.wait();
                ready!(this.rest.deadline.poll(context).map(|Elapsed| ()));
                return Poll::Ready(Some(Err(this.refuse(Fault::new(Case::SlowBody)))));
            }
            Poll::Ready(data) => data,
        };
        this.rest.waited_enough();
        Poll::Ready(match data {
            None => match this.rest.form.end() {
                Ok(()) => {
                    this.verdict.0.replace(Found::Whole);
                    None
                }
                Err(fault) => Some(Err(this.refuse(fault))),
            },
            Some(Err(fault)) => Some(Err(this.refuse(fault))),
            Some(Ok(data)) => {
                Some(this.rest.pass(&data).map_err(|fault| this.refuse(fault)).map(|()| Frame::data(data)))
            }
        })
    }
}

impl Rest {
    /// The caller is waited for, for as long as what has come so far allows.
    fn wait(&mut self) {
        if self.waits_since.is_none() {
            let now = self.core.now();
            self.waits_since = Some(now);
            self.deadline.set(now.after(allowed(self.received).saturating_sub(self.waited)));
        }
    }

    fn waited_enough(&mut self) {
        if let Some(since) = self.waits_since.take() {
            self.waited += self.core.now().since(since);
        }
    }

    fn pass(&mut self, data: &[u8]) -> Result<(), Fault> {
        self.received += data.len() as u64;
        if self.received > self.max {
            return Err(Fault::new(Case::TooLarge));
        }
        self.form.watch(data)
    }
}
