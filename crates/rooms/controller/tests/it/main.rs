//! The controller in a simulated world, in virtual time.

mod at_the_hour;
mod conformance;
mod gate;
mod phases;
mod pods;
mod processes;
mod restart;
mod stage;
mod switch;
mod verbs;
mod watch_window;
mod watchdog;
