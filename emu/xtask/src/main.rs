//! Developer commands: `cargo xtask demo`, `test`, `bench`, `interop`.
fn main() {}
