//! The minder as a program of its own, for tests; the product re-executes itself instead.

use std::process::ExitCode;

fn main() -> ExitCode {
    tidegate_node::minder::main(std::env::args_os().skip(1))
}
