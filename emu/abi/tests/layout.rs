//! Compares every structure and constant with the C headers that are installed.
//!
//! `URXE_RDMA_HEADERS` names another directory to take `infiniband/` and `rdma/` from, and
//! `URXE_RDMA_RELEASE` the rdma-core release it is of.

#[path = "../../capi/tests/support/mod.rs"]
mod support;

use std::collections::HashMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::Command;

use urxe_abi as abi;

/// What is newer than rdma-core 44, the oldest release that the test is run with: the type, the field (or
/// none for the whole type), and the release that brought it.
const NEWER: &[(&str, Option<&str>, u32)] = &[
    ("struct ibv_port_attr", Some("active_speed_ex"), 49),
    ("struct ibv_qp_ex", Some("wr_flush"), 45),
    ("struct verbs_context", Some("free_buf"), 64),
    ("struct verbs_context", Some("alloc_buf"), 64),
    ("struct verbs_context", Some("dm_export_dmabuf_fd"), 62),
    ("struct verbs_context", Some("reg_mr_ex"), 59),
    ("struct verbs_context", Some("dealloc_dmah"), 59),
    ("struct verbs_context", Some("alloc_dmah"), 59),
    ("struct ibv_mr_init_attr", None, 59),
    ("struct ibv_mr_init_attr", Some("buf"), 64),
    ("struct ibv_dmah", None, 59),
    ("struct ibv_dmah_init_attr", None, 59),
    ("struct ibv_comp_cntr", None, 65),
    ("struct ibv_comp_cntr_caps", None, 65),
    ("struct ibv_comp_cntr_init_attr", None, 65),
    ("struct ibv_qp_attach_comp_cntr_attr", None, 65),
];

/// Constants newer than release 44.
const NEWER_CONSTANTS: &[(&str, u32)] = &[
    ("IBV_ODP_SUPPORT_FLUSH", 59),
    ("IBV_ODP_SUPPORT_ATOMIC_WRITE", 59),
    ("IBV_EVENT_DEVICE_SPEED_CHANGE", 62),
    ("IBV_WC_FLUSH", 45),
    ("IBV_ACCESS_FLUSH_GLOBAL", 45),
    ("IBV_ACCESS_FLUSH_PERSISTENT", 45),
    ("IBV_REG_MR_MASK_IOVA", 59),
    ("IBV_REG_MR_MASK_ADDR", 59),
    ("IBV_REG_MR_MASK_FD", 59),
    ("IBV_REG_MR_MASK_FD_OFFSET", 59),
    ("IBV_REG_MR_MASK_DMAH", 59),
    ("IBV_REG_MR_MASK_BUF", 64),
    ("IBV_RATE_800_GBPS", 50),
    ("IBV_RATE_1200_GBPS", 50),
    ("IBV_QP_EX_WITH_FLUSH", 45),
    ("IBV_WR_FLUSH", 45),
    ("IBV_QUERY_QP_DATA_IN_ORDER_RETURN_CAPS", 46),
    ("IBV_QUERY_QP_DATA_IN_ORDER_DEVICE_ONLY", 59),
    ("IBV_QUERY_QP_DATA_IN_ORDER_WHOLE_MSG", 46),
    ("IBV_QUERY_QP_DATA_IN_ORDER_ALIGNED_128_BYTES", 46),
    ("IBV_PARENT_DOMAIN_INIT_ATTR_ALLOW_CC_UNPROTECTED_ALLOC", 64),
];

fn since(name: &str, field: Option<&str>) -> u32 {
    NEWER
        .iter()
        .filter(|(n, f, _)| *n == name && *f == field)
        .map(|(.., release)| *release)
        .max()
        .unwrap_or(0)
}

/// The rdma-core release of the headers: pkg-config's version is ABI.release (1.14.44.0).
fn release() -> u32 {
    if let Ok(release) = std::env::var("URXE_RDMA_RELEASE") {
        return release.parse().expect("URXE_RDMA_RELEASE is a number");
    }
    let version = support::output(Command::new("pkg-config").args(["--modversion", "libibverbs"]));
    version.trim().split('.').nth(2).and_then(|part| part.parse().ok()).expect("libibverbs.pc has a version")
}

fn run_c(name: &str, body: &str) -> HashMap<String, i64> {
    let source = format!(
        "#include <stdio.h>\n#include <stddef.h>\n#include <infiniband/verbs.h>\n#include <infiniband/sa.h>\n\
         #include <rdma/rdma_cma.h>\n#include <rdma/ib_user_verbs.h>\n#include <rdma/ib_user_sa.h>\n\
         int main(void) {{\n{body}\nreturn 0; }}\n"
    );
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let (file, program) = (folder.join(format!("{name}.c")), folder.join(name));
    std::fs::write(&file, source).expect("the target folder is writable");
    let mut cc = Command::new("cc");
    if let Some(headers) = std::env::var_os("URXE_RDMA_HEADERS") {
        cc.arg("-I").arg(headers);
    }
    support::output(cc.arg("-o").arg(&program).arg(&file));
    support::output(&mut Command::new(&program))
        .lines()
        .map(|line| {
            let (key, value) = line.rsplit_once('=').expect("the program prints key=value");
            (key.to_owned(), value.parse().expect("a number"))
        })
        .collect()
}

#[test]
fn structures_have_the_layout_of_the_installed_headers() {
    if !support::have_headers() {
        return;
    }
    let release = release();
    let mut body = String::new();
    let mut expected: Vec<(String, i64)> = Vec::new();
    for layout in abi::LAYOUTS.iter().copied().flatten() {
        let name = layout.name;
        if since(name, None) > release {
            continue;
        }
        // The size is comparable only if the headers know the newest field.
        let grew = NEWER.iter().any(|(n, field, since)| *n == name && field.is_some() && *since > release);
        if !grew {
            let _ = writeln!(body, "printf(\"{name}=%zu\\n\", sizeof({name}));");
            expected.push((name.to_owned(), layout.size as i64));
        }
        // verbs_context grows at the front, so what counts is the distance from the end.
        let from_end = name == "struct verbs_context";
        for (field, offset) in layout.fields {
            if since(name, Some(field)) > release {
                continue;
            }
            let key = format!("{name}.{field}");
            if from_end {
                let _ =
                    writeln!(body, "printf(\"{key}=%zu\\n\", sizeof({name}) - offsetof({name}, {field}));");
                expected.push((key, (layout.size - offset) as i64));
            } else {
                let _ = writeln!(body, "printf(\"{key}=%zu\\n\", offsetof({name}, {field}));");
                expected.push((key, *offset as i64));
            }
        }
    }
    let found = run_c("layout_structures", &body);
    assert!(expected.len() > 600, "the table of types is not empty: {}", expected.len());
    compare(&expected, &found);
}

#[test]
fn constants_have_the_values_of_the_installed_headers() {
    if !support::have_headers() {
        return;
    }
    let release = release();
    let mut body = String::new();
    let mut expected = Vec::new();
    for line in include_str!("../src/constants.rs").lines() {
        let Some(rest) = line.strip_prefix("pub const ") else { continue };
        let (name, rest) = rest.split_once(':').expect("a constant has a type");
        let (_, value) = rest.trim_end_matches(';').split_once("= ").expect("a constant has a value");
        if NEWER_CONSTANTS.iter().any(|(newer, since)| *newer == name && *since > release) {
            continue;
        }
        let _ = writeln!(body, "printf(\"{name}=%lld\\n\", (long long)({name}));");
        expected.push((name.to_owned(), evaluate(value)));
    }
    let found = run_c("layout_constants", &body);
    assert!(expected.len() > 300);
    compare(&expected, &found);
}

/// The forms that occur in constants.rs: decimal, hexadecimal, a shifted one.
fn evaluate(text: &str) -> i64 {
    let text = text.replace('_', "");
    if let Some((left, right)) = text.split_once(" << ") {
        return evaluate(left) << evaluate(right);
    }
    match text.strip_prefix("0x") {
        Some(hexadecimal) => i64::from_str_radix(hexadecimal, 16).expect("hexadecimal"),
        None => text.parse().expect("decimal"),
    }
}

fn compare(expected: &[(String, i64)], found: &HashMap<String, i64>) {
    let mut wrong = String::new();
    for (key, value) in expected {
        match found.get(key) {
            Some(c) if c == value => {}
            other => _ = writeln!(wrong, "{key}: {value} in Rust, {other:?} in C"),
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

/// The sizes that programs linked against rdma-core 65 rely on and older headers cannot tell.
#[test]
fn structures_that_grew_have_their_newest_size() {
    assert_eq!(size_of::<abi::verbs_context>(), 696);
    assert_eq!(size_of::<abi::ibv_port_attr>(), 56);
    assert_eq!(size_of::<abi::ibv_qp_ex>(), 360);
    assert_eq!(
        std::mem::offset_of!(abi::verbs_context, sz) + 8,
        std::mem::offset_of!(abi::verbs_context, context)
    );
}
