//! Every symbol of rdma-core's version maps exists in the shared object, at its version.

#[path = "../exports.rs"]
#[allow(dead_code, unreachable_pub, missing_docs)]
mod exports;
mod support;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

/// `symbol@node` or `symbol@@node` of everything that a library defines.
fn defined(library: &Path) -> BTreeSet<String> {
    let listing = support::output(Command::new("nm").args(["-D", "--with-symbol-versions"]).arg(library));
    listing
        .lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace().skip(1);
            let (kind, symbol) = (words.next()?, words.next()?);
            matches!(kind, "T" | "D" | "B" | "R" | "W" | "i").then(|| symbol.to_owned())
        })
        .collect()
}

fn table() -> exports::Table {
    exports::parse(include_str!("../exports.txt"))
}

#[test]
fn every_symbol_of_the_table_is_defined_at_its_version() {
    if !support::have_program("nm") {
        eprintln!("skipped: needs nm (binutils)");
        return;
    }
    let found = defined(&support::library());
    let table = table();
    assert!(table.exports.len() > 900);
    let missing: Vec<String> = table
        .exports
        .iter()
        .map(|export| format!("{}{}{}", export.symbol, if export.default { "@@" } else { "@" }, export.node))
        .filter(|name| !found.contains(name))
        .collect();
    assert!(missing.is_empty(), "{missing:#?}");
}

/// Nothing but the table and the interposed functions of libc is visible: a stray symbol could take the place
/// of one of the program's own.
#[test]
fn nothing_else_is_exported() {
    if !support::have_program("nm") {
        return;
    }
    let table = table();
    let versioned: BTreeSet<String> = table
        .exports
        .iter()
        .map(|export| export.symbol.clone())
        .chain(table.nodes.iter().map(|node| node.name.clone()))
        .collect();
    let interposed: BTreeSet<&str> = include_str!("../interposed.txt").split_whitespace().collect();
    for symbol in defined(&support::library()) {
        let name = symbol.split('@').next().expect("a name");
        let known = match symbol.contains('@') {
            true => versioned.contains(name),
            false => interposed.contains(name),
        };
        assert!(known, "{symbol} is exported");
    }
}

/// The number of symbols in each public node of rdma-core 65's maps, counted there.
#[test]
fn the_table_is_complete() {
    let expected = [
        ("IBVERBS_1.0", 42),
        ("IBVERBS_1.1", 48),
        ("IBVERBS_1.5", 1),
        ("IBVERBS_1.6", 1),
        ("IBVERBS_1.7", 1),
        ("IBVERBS_1.8", 1),
        ("IBVERBS_1.9", 1),
        ("IBVERBS_1.10", 7),
        ("IBVERBS_1.11", 2),
        ("IBVERBS_1.12", 1),
        ("IBVERBS_1.13", 3),
        ("IBVERBS_1.14", 1),
        ("IBVERBS_1.15", 3),
        ("IBVERBS_1.16", 2),
        ("IBVERBS_1.17", 3),
        ("IBVERBS_1.18", 11),
        ("RDMACM_1.0", 62),
        ("RDMACM_1.1", 1),
        ("RDMACM_1.2", 2),
        ("RDMACM_1.3", 3),
        ("RDMACM_1.4", 3),
        ("RDMACM_1.5", 3),
    ];
    let table = table();
    for (node, count) in expected {
        let found = table.exports.iter().filter(|export| export.node == node).count();
        assert_eq!(found, count, "{node}");
    }
    for number in [22, 25, 33, 34, 57, 59, 64, 65] {
        let node = format!("IBVERBS_PRIVATE_{number}");
        let register = format!("verbs_register_driver_{number}");
        assert!(
            table.exports.iter().any(|export| export.node == node && export.symbol == register),
            "{node}"
        );
        assert!(table.exports.iter().filter(|export| export.node == node).count() > 90, "{node}");
    }
}

/// The system's own libraries are a second opinion: whatever they define, this one defines.
#[test]
fn every_symbol_of_the_installed_libraries_is_defined() {
    if !support::have_program("nm") {
        return;
    }
    let ours: BTreeSet<String> =
        defined(&support::library()).iter().map(|symbol| symbol.replace("@@", "@")).collect();
    for name in ["libibverbs.so.1", "librdmacm.so.1"] {
        for folder in
            ["/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/lib/aarch64-linux-gnu"]
        {
            let library = Path::new(folder).join(name);
            if !library.exists() {
                continue;
            }
            for symbol in defined(&library) {
                // Which version is the default one may differ: `name@node` is what a program asks for.
                let asked = symbol.replace("@@", "@");
                assert!(ours.contains(&asked), "{symbol} of {}", library.display());
            }
            break;
        }
    }
}
