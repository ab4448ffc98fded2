//! The TOML file: flat keys; a list or a table becomes the text that the environment would carry.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use toml::de::{DeTable, DeValue};

use super::{Config, Error, Source};

impl Config {
    pub(super) fn apply_file(&mut self, path: PathBuf, must_exist: bool) -> Result<(), Error> {
        match std::fs::read_to_string(&path) {
            Ok(text) => self.apply_toml(&path, &text),
            // ENOTDIR: the home directory of some service users is /dev/null.
            Err(e)
                if !must_exist
                    && matches!(
                        e.kind(),
                        ErrorKind::NotFound | ErrorKind::NotADirectory | ErrorKind::PermissionDenied
                    ) =>
            {
                Ok(())
            }
            Err(e) => Err(Error::File { path, why: e.to_string() }),
        }
    }

    pub(super) fn apply_toml(&mut self, path: &Path, text: &str) -> Result<(), Error> {
        let line_at = |offset: usize| 1 + text.bytes().take(offset).filter(|b| *b == b'\n').count();
        let table = DeTable::parse(text).map_err(|e| Error::Syntax {
            path: path.into(),
            line: line_at(e.span().map_or(0, |s| s.start)),
            what: e.message().replace('\n', " "),
        })?;
        let mut entries: Vec<_> = table.into_inner().into_iter().collect();
        entries.sort_by_key(|(key, _)| key.span().start);
        for (key, value) in entries {
            let from = Source::File { path: path.into(), line: line_at(key.span().start) };
            let value = text_of(value.get_ref());
            self.set(key.get_ref(), &value, from)?;
        }
        Ok(())
    }
}

fn text_of(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(s) => s.to_string(),
        DeValue::Integer(i) => match i.radix() {
            16 => format!("0x{}", i.as_str()),
            _ => i64::from_str_radix(i.as_str(), i.radix()).map_or(i.as_str().into(), |n| n.to_string()),
        },
        DeValue::Float(x) => x.as_str().into(),
        DeValue::Boolean(b) => b.to_string(),
        DeValue::Datetime(d) => d.to_string(),
        DeValue::Array(a) => a.iter().map(|v| text_of(v.get_ref())).collect::<Vec<_>>().join(","),
        DeValue::Table(t) => {
            let pair = |(k, v): (&toml::Spanned<_>, &toml::Spanned<DeValue<'_>>)| {
                format!("{}={}", AsRef::<str>::as_ref(k.get_ref()), text_of(v.get_ref()))
            };
            t.iter().map(pair).collect::<Vec<_>>().join(",")
        }
    }
}
