//! Reads `exports.txt`; shared by the build script and the symbol test.

/// A version node and the one it follows.
pub struct Node {
    pub name: String,
    pub parent: Option<String>,
}

/// One symbol at one version.
pub struct Export {
    pub symbol: String,
    pub node: String,
    pub implementation: String,
    /// Whether this is what a lookup without a version finds.
    pub default: bool,
    /// A data object instead of a function.
    pub data: bool,
}

/// All of `exports.txt`.
pub struct Table {
    pub nodes: Vec<Node>,
    pub exports: Vec<Export>,
}

/// Parses the table. A malformed line panics: that is an error of the build, and it names the line.
pub fn parse(text: &str) -> Table {
    let mut table = Table { nodes: Vec::new(), exports: Vec::<Export>::new() };
    let mut current: Vec<String> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some(header) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            let (names, parent) = match header.split_once(" : ") {
                Some((names, parent)) => (names, Some(parent.trim().to_owned())),
                None => (header, None),
            };
            current = names.split_whitespace().map(str::to_owned).collect();
            for name in &current {
                if !table.nodes.iter().any(|node| node.name == *name) {
                    table.nodes.push(Node { name: name.clone(), parent: parent.clone() });
                }
            }
            continue;
        }
        assert!(!current.is_empty(), "exports.txt line {}: a symbol before the first node", number + 1);
        let (symbol, implementation) = line.split_once(" = ").unwrap_or((line, line));
        let (implementation, data) = match implementation.strip_suffix(" object") {
            Some(name) => (name, true),
            None => (implementation, false),
        };
        let symbol = symbol.strip_suffix(" object").unwrap_or(symbol);
        for node in &current {
            if let Some(earlier) = table.exports.iter_mut().rev().find(|export| export.symbol == symbol) {
                assert!(earlier.node != *node, "exports.txt line {}: {symbol} is listed twice", number + 1);
                earlier.default = false;
            }
            table.exports.push(Export {
                symbol: symbol.to_owned(),
                node: node.clone(),
                implementation: implementation.to_owned(),
                default: true,
                data,
            });
        }
    }
    table
}
