//! Names with values, in order: an object in the file, a list in the program.

use std::fmt;

use serde::de::{Deserializer, Error, MapAccess, Visitor};
use serde::ser::Serializer;

type Pairs = Vec<(String, String)>;

pub(crate) fn serialize<S: Serializer>(pairs: &Pairs, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(pairs.iter().map(|(name, value)| (name, value)))
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Pairs, D::Error> {
    deserializer.deserialize_map(InOrder)
}

struct InOrder;

impl<'de> Visitor<'de> for InOrder {
    type Value = Pairs;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of strings")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pairs, A::Error> {
        let mut pairs = Pairs::new();
        while let Some((name, value)) = map.next_entry::<String, String>()? {
            if pairs.iter().any(|(known, _)| *known == name) {
                return Err(A::Error::custom(format!("'{name}' is there twice")));
            }
            pairs.push((name, value));
        }
        Ok(pairs)
    }
}
