//! The controller in a simulated world, in virtual time.

mod restart;
mod stage;
mod switch;
mod verbs;
