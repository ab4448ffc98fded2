//! Where the daemon's messages go.

use std::fs::File;
use std::path::Path;

use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt;
use urxe::config::{Config, LogLevel, Source};

/// In the foreground to standard error, at level `info` unless the configuration says otherwise; else only to a
/// configured file.
pub(crate) fn install(config: &Config, file: Option<&Path>, detached: bool) {
    let level = match config.log {
        LogLevel::Off if !detached && config.source("log") == Some(&Source::Default) => LevelFilter::INFO,
        LogLevel::Off => return,
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    };
    let builder = fmt().with_max_level(level).with_ansi(false).with_target(false).event_format(Line);
    let file = file.map(|path| (path, File::options().append(true).create(true).open(path)));
    // Only the first one counts; there is none before.
    let _ = match file {
        Some((_, Ok(file))) => builder.with_writer(file).try_init(),
        Some((path, Err(e))) => {
            let result = builder.with_writer(std::io::stderr).try_init();
            tracing::warn!("log_file {} cannot be written ({e})", path.display());
            result
        }
        None if detached => return,
        None => builder.with_writer(std::io::stderr).try_init(),
    };
}

/// `urxe daemon: warning: ...`, as the library writes its lines.
struct Line;

impl<S, N> fmt::FormatEvent<S, N> for Line
where
    S: tracing::Subscriber + for<'a> tracing_subscriber::registry::LookupSpan<'a>,
    N: for<'a> fmt::FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &fmt::FmtContext<'_, S, N>,
        mut writer: fmt::format::Writer<'_>,
        event: &tracing::Event<'_>,
    ) -> std::fmt::Result {
        let level = match *event.metadata().level() {
            tracing::Level::ERROR => "error",
            tracing::Level::WARN => "warning",
            tracing::Level::INFO => "info",
            tracing::Level::DEBUG => "debug",
            tracing::Level::TRACE => "trace",
        };
        write!(writer, "urxe daemon: {level}: ")?;
        context.field_format().format_fields(writer.by_ref(), event)?;
        writeln!(writer)
    }
}
