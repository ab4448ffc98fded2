//! Where the library's messages go: one line each, to standard error or a file, and only at the level that the
//! configuration asks for. It is not the program's logger, so it must not be in its way: without `log` nothing
//! is ever written.

use std::fmt::{self, Write as _};
use std::fs::{File, OpenOptions};
use std::io::Write as _;

use device::config::{Config, LogLevel};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Metadata, Subscriber, span};

struct Logger {
    level: LevelFilter,
    file: Option<File>,
}

/// Sends messages where the configuration says, from now on. Only the first call counts.
pub fn install(config: &Config) {
    let level = match config.log {
        LogLevel::Off => return,
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    };
    let opened = config.log_file.as_ref().map(|path| {
        OpenOptions::new().append(true).create(true).open(path).map_err(|error| (path.clone(), error))
    });
    let (file, failed) = match opened {
        Some(Ok(file)) => (Some(file), None),
        Some(Err(failed)) => (None, Some(failed)),
        None => (None, None),
    };
    if tracing::subscriber::set_global_default(Logger { level, file }).is_ok()
        && let Some((path, error)) = failed
    {
        tracing::warn!(
            "log_file {} cannot be written ({error}): messages go to standard error",
            path.display()
        );
    }
}

/// The message first, then the fields.
#[derive(Default)]
struct Line {
    message: String,
    fields: String,
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }
    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }
}

impl Subscriber for Logger {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= self.level
    }
    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(self.level)
    }
    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }
    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        let level = match *event.metadata().level() {
            tracing::Level::ERROR => "error",
            tracing::Level::WARN => "warning",
            tracing::Level::INFO => "info",
            tracing::Level::DEBUG => "debug",
            tracing::Level::TRACE => "trace",
        };
        let text = format!("urxe: {level}: {}{}\n", line.message, line.fields);
        // In one write, so that lines of several processes do not mix. There is nobody to tell of a failure.
        match &self.file {
            Some(file) => _ = (&*file).write(text.as_bytes()),
            // SAFETY: the buffer is as long as said.
            None => _ = unsafe { libc::write(2, text.as_ptr().cast(), text.len()) },
        }
    }
}
