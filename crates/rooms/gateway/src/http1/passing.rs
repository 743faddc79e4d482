//! A request body on its way from the connection to whoever reads it. Both live in one task: the connection polls the
//! request, and between two polls reads what the request asked for.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use tidegate_core::Fault;

/// What passes: at most one piece, and only when it was asked for.
#[derive(Debug, Default)]
pub(super) struct Passing {
    piece: RefCell<Option<Result<Bytes, Fault>>>,
    is_wanted: Cell<bool>,
    has_ended: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl Passing {
    /// Whether a piece was asked for that is not there yet.
    pub(super) fn is_wanted(&self) -> bool {
        self.is_wanted.get()
    }

    /// Hands over what came; nothing follows the last, or a fault.
    pub(super) fn hand(&self, piece: Result<Bytes, Fault>, is_last: bool) {
        self.has_ended.set(is_last || piece.is_err());
        if piece.as_ref().is_ok_and(|piece| !piece.is_empty()) || piece.is_err() {
            self.piece.replace(Some(piece));
        }
        self.is_wanted.set(false);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

/// The reader's end.
#[derive(Debug)]
pub(crate) struct PassingBody(pub(super) Rc<Passing>);

impl PassingBody {
    /// The next piece, as it arrived; `None` at the end.
    pub(crate) fn poll_data(&mut self, context: &Context<'_>) -> Poll<Option<Result<Bytes, Fault>>> {
        if let Some(piece) = self.0.piece.take() {
            return Poll::Ready(Some(piece));
        }
        if self.0.has_ended.get() {
            return Poll::Ready(None);
        }
        self.0.is_wanted.set(true);
        self.0.waker.replace(Some(context.waker().clone()));
        Poll::Pending
    }

    /// Whether everything was handed over.
    pub(crate) fn is_end(&self) -> bool {
        self.0.has_ended.get() && self.0.piece.borrow().is_none()
    }
}
