//! Logs: one line per event on standard error, as text or JSON.

use std::io::{IsTerminal, stderr};

use tracing_subscriber::EnvFilter;

/// The variable that sets the level if no option does.
pub const VARIABLE: &str = "WAYLEAVE_LOG";

/// The form of a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Format {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// A log filter that cannot be parsed.
#[derive(Debug, thiserror::Error)]
#[error("`{filter}` is not a log filter: {why}; use error, warn, info, debug, trace, or module=level")]
pub struct FilterError {
    filter: String,
    why: String,
}

/// Starts logging for the process. `filter` is a level or directives (`info,wayleave_runtime::links=debug`); without
/// one, the variable [`VARIABLE`] applies, and without that, `info`. A second call changes nothing.
pub fn start(format: Format, filter: Option<&str>) -> Result<(), FilterError> {
    let from_environment = std::env::var(VARIABLE).ok().filter(|text| !text.is_empty());
    let text = filter.map(str::to_owned).or(from_environment).unwrap_or_else(|| "info".to_owned());
    let filter = EnvFilter::try_new(&text).map_err(|why| FilterError { filter: text, why: why.to_string() })?;
    let colour = stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(stderr);
    let started = match format {
        Format::Text => builder.with_ansi(colour).with_target(false).try_init(),
        Format::Json => builder.json().flatten_event(true).try_init(),
    };
    drop(started); // an error means only that logging was started before
    Ok(())
}
