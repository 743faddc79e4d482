//! An engine's minder, for tests: the binary becomes one by its first argument.

use std::process::ExitCode;

fn main() -> ExitCode {
    tidegate_node::minder::main(std::env::args_os().skip(1))
}
