//! docs/verbs.md names every public function that is not implemented, and no other.

use std::collections::BTreeSet;
use std::path::Path;

#[test]
fn the_document_names_exactly_what_is_not_implemented() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let exports = std::fs::read_to_string(here.join("exports.txt")).unwrap();
    let document = std::fs::read_to_string(here.join("../../docs/verbs.md")).unwrap();
    let refused: BTreeSet<&str> = exports
        .lines()
        .filter_map(|line| line.split_once(" = "))
        .filter(|(_, implementation)| implementation.starts_with("unsupported"))
        .map(|(symbol, _)| symbol.trim())
        .filter(|symbol| {
            !["ibv_cmd_", "verbs_", "__", "execute_ioctl", "_verbs"].iter().any(|p| symbol.starts_with(p))
        })
        .collect();
    let list =
        document.split("Functions of the library:").nth(1).unwrap().split("\n\nAll of").next().unwrap();
    let named: BTreeSet<&str> = list.split_whitespace().map(|word| word.trim_matches('`')).collect();
    assert_eq!(named, refused);
}
