use std::process::ExitCode;

fn main() -> ExitCode {
    hapax::cli::main()
}
