//! Turns `exports.txt` into the version script and the entry points of the shared object.
//!
//! A version script alone is not enough: rustc writes one too, and lld then drops the versions without a word.
//! What binds a name to its version is a `.symver` directive on a symbol of the same object file. So every
//! implementation gets one entry point in assembly, a jump, and the directives for all its names.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::{env, fs};

#[path = "exports.rs"]
#[allow(unreachable_pub)]
mod exports;

fn main() {
    println!("cargo:rerun-if-changed=exports.txt");
    println!("cargo:rerun-if-changed=exports.rs");
    println!("cargo:rerun-if-changed=build.rs");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let table = exports::parse(&fs::read_to_string("exports.txt").expect("exports.txt is beside build.rs"));

    let script = out.join("versions.map");
    fs::write(&script, version_script(&table)).expect("OUT_DIR is writable");
    println!("cargo:rustc-cdylib-link-arg=-Wl,--version-script={}", script.display());
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libibverbs.so.1");

    let arch = env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default();
    fs::write(out.join("entries.rs"), entries(&table, &arch)).expect("OUT_DIR is writable");
}

fn version_script(table: &exports::Table) -> String {
    let mut script = String::new();
    for node in &table.nodes {
        let _ = writeln!(script, "{} {{\n  global:", node.name);
        for export in table.exports.iter().filter(|export| export.node == node.name) {
            let _ = writeln!(script, "    {};", export.symbol);
        }
        let _ = writeln!(script, "}} {};", node.parent.as_deref().unwrap_or(""));
    }
    script
}

/// One `global_asm!` for each implementation: the entry point and the names it is known by.
fn entries(table: &exports::Table, arch: &str) -> String {
    let mut implementations: BTreeMap<&str, Vec<&exports::Export>> = BTreeMap::new();
    for export in &table.exports {
        implementations.entry(&export.implementation).or_default().push(export);
    }
    let jump = match arch {
        "x86_64" => "jmp",
        "aarch64" => "b",
        "riscv64" => "tail",
        other => panic!("no jump instruction is known here for {other}: add it"),
    };
    let mut code = String::new();
    for (implementation, names) in implementations {
        let label = format!("urxe_entry_{implementation}");
        let data = names.iter().any(|name| name.data);
        let mut asm = String::new();
        if data {
            let _ = write!(
                asm,
                ".section .data.{label},\\\"aw\\\"\\n.globl {label}\\n.type {label}, %object\\n{label}:\\n.byte 1\\n.size {label}, 1\\n"
            );
        } else {
            let _ = write!(
                asm,
                ".section .text.{label},\\\"ax\\\",%progbits\\n.globl {label}\\n.type {label}, %function\\n{label}:\\n{jump} {{f}}\\n.size {label}, . - {label}\\n"
            );
        }
        for name in names {
            let at = if name.default { "@@" } else { "@" };
            let _ = write!(asm, ".symver {label}, {}{at}{}\\n", name.symbol, name.node);
        }
        let operand = if data { String::new() } else { format!(", f = sym {implementation}") };
        let _ = writeln!(code, "core::arch::global_asm!(\"{asm}.text\\n\"{operand});");
    }
    code
}
