//! Logs: one line per event on standard error, as text or JSON. Whoever reads it may go away, or stop reading: lines are then lost
//! and counted, and the process goes on.

use std::fmt::{self, Debug};
use std::io::{self, IsTerminal, Write, stderr};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::{Value, json};
use tracing::field::{Field, Visit};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::FmtContext;
use tracing_subscriber::fmt::format::{FormatEvent, FormatFields, Writer, debug_fn};
use tracing_subscriber::registry::LookupSpan;

use crate::clock::unix_now;

/// The variable that sets the level if no option does.
pub const VARIABLE: &str = "WAYLEAVE_LOG";
/// How long a line waits for a reader that is slow. Once one has waited in vain, no other waits until the reader reads again.
const WAIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 250_000_000 };
/// The field whose display is fields: ` name=value` for each, or `,"name":value` with `#`. For events whose fields are no constants
/// of the program, as those of `tracing` are.
const FIELDS: &str = "fields";
const NO_WAIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
/// Octets written at a time: a pipe or socket that can be written takes so many without waiting (`PIPE_BUF`).
const AT_ONCE: usize = 4096;

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

static FORMAT: OnceLock<Format> = OnceLock::new();
/// Lines that nobody has read since the last that somebody could.
static LOST: AtomicU64 = AtomicU64::new(0);
static IS_STALLED: AtomicBool = AtomicBool::new(false);

/// Starts logging for the process. `filter` is a level or directives (`info,wayleave_runtime::links=debug`); without
/// one, the variable [`VARIABLE`] applies, and without that, `info`. A second call changes nothing.
pub fn start(format: Format, filter: Option<&str>) -> Result<(), FilterError> {
    let from_environment = std::env::var(VARIABLE).ok().filter(|text| !text.is_empty());
    let text = filter.map(str::to_owned).or(from_environment).unwrap_or_else(|| "info".to_owned());
    let filter = EnvFilter::try_new(&text).map_err(|why| FilterError { filter: text, why: why.to_string() })?;
    let colour = stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    // An error of the writer would be reported by a print that panics; there is none.
    let builder =
        tracing_subscriber::fmt().with_env_filter(filter).log_internal_errors(false).with_writer(|| BestEffort);
    let started = match format {
        Format::Text => builder.with_ansi(colour).with_target(false).fmt_fields(debug_fn(text_field)).try_init(),
        Format::Json => builder.event_format(JsonLine).try_init(),
    };
    drop(started); // an error means only that logging was started before
    let _ = FORMAT.set(format); // fails likewise
    Ok(())
}

/// A field behind the message.
fn text_field(out: &mut Writer<'_>, field: &Field, value: &dyn Debug) -> fmt::Result {
    match field.name() {
        // What peers sent may be in it: a control character would move the cursor of whoever reads it, or begin a line of its own.
        "message" | FIELDS => fmt::Write::write_fmt(&mut Printable(out), format_args!("{value:?}")),
        name if out.has_ansi_escapes() => write!(out, " \x1b[3m{name}\x1b[0m\x1b[2m=\x1b[0m{value:?}"),
        name => write!(out, " {name}={value:?}"),
    }
}

/// Writes control characters as their escapes.
struct Printable<'a, W>(&'a mut W);

impl<W: fmt::Write> fmt::Write for Printable<'_, W> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for piece in text.split_inclusive(char::is_control) {
            match piece.chars().next_back().filter(|last| last.is_control()) {
                Some(last) => {
                    self.0.write_str(piece.strip_suffix(last).unwrap_or(piece))?;
                    self.0.write_fmt(format_args!("{}", last.escape_default()))?;
                }
                None => self.0.write_str(piece)?,
            }
        }
        Ok(())
    }
}

/// Lines as JSON objects.
struct JsonLine;

impl<S, N> FormatEvent<S, N> for JsonLine
where
    S: tracing::Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut out: Writer<'_>, event: &tracing::Event<'_>) -> fmt::Result {
        let (of, mut fields) = (event.metadata(), JsonMembers::default());
        event.record(&mut fields);
        let (at, level, target) = (json!(timestamp()), json!(of.level().as_str()), json!(of.target()));
        writeln!(out, "{{\"timestamp\":{at},\"level\":{level}{},\"target\":{target}}}", fields.0)
    }
}

/// Members of a JSON object, each with a comma before it.
#[derive(Default)]
struct JsonMembers(String);

impl JsonMembers {
    fn put(&mut self, field: &Field, value: &Value) {
        self.0 += &format!(",{}:{value}", json!(field.name()));
    }
}

impl Visit for JsonMembers {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        match field.name() {
            FIELDS => self.0 += &format!("{value:#?}"),
            _ => self.put(field, &json!(format!("{value:?}"))),
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, &json!(value));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, &json!(value));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, &json!(value));
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field, &json!(value));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, &json!(value));
    }
}

/// A line of the log in the form that [`start`] was given, without its end.
pub(crate) fn line(level: &str, message: &str) -> String {
    let timestamp = timestamp();
    match FORMAT.get().copied().unwrap_or_default() {
        Format::Text => format!("{timestamp} {level:>5} {message}"),
        Format::Json => json!({ "timestamp": timestamp, "level": level, "message": message }).to_string(),
    }
}

/// As the lines of `tracing` begin (RFC 3339, in microseconds).
fn timestamp() -> String {
    let now = unix_now().0;
    let at = time::OffsetDateTime::from_unix_timestamp(i64::try_from(now / 1_000_000).unwrap_or(i64::MAX));
    let at = at.unwrap_or(time::OffsetDateTime::UNIX_EPOCH);
    let (hour, minute, second) = at.to_hms();
    format!("{}T{hour:02}:{minute:02}:{second:02}.{:06}Z", at.date(), now % 1_000_000)
}

/// Writes to standard error without its lock, and gives up rather than wait for a reader: for a process that ends.
pub(crate) fn write_last(line: &str) {
    write_bounded(format!("{line}\n").as_bytes(), &NO_WAIT);
}

/// Standard error, of which no writer hears that it failed.
struct BestEffort;

impl Write for BestEffort {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        put(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes a line, or counts it as lost.
fn put(octets: &[u8]) {
    let _turn = stderr().lock(); // one line after the other
    let lost = LOST.load(Ordering::Relaxed);
    let wait = if IS_STALLED.load(Ordering::Relaxed) { &NO_WAIT } else { &WAIT };
    let is_reported = lost == 0 || write_bounded(lost_lines(lost).as_bytes(), wait);
    let is_written = is_reported && write_bounded(octets, wait);
    LOST.store(if is_reported { 0 } else { lost } + u64::from(!is_written), Ordering::Relaxed);
    IS_STALLED.store(!is_written, Ordering::Relaxed);
}

fn lost_lines(lost: u64) -> String {
    let text = format!("{lost} lines of this log are lost: whoever reads it did not read them in time");
    line("WARN", &text) + "\n"
}

/// Writes to standard error; `false` if not all could be written.
fn write_bounded(mut octets: &[u8], wait: &Timespec) -> bool {
    let to = stderr();
    while !octets.is_empty() {
        let mut ready = [PollFd::new(&to, PollFlags::OUT)];
        match poll(&mut ready, Some(wait)) {
            Ok(1..) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Ok(0) | Err(_) => return false,
        }
        match rustix::io::write(&to, &octets[..octets.len().min(AT_ONCE)]) {
            Ok(written @ 1..) => octets = &octets[written..],
            Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => {}
            Ok(0) | Err(_) => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_moves_no_cursor_and_begins_no_line() {
        let mut out = String::new();
        fmt::Write::write_str(&mut Printable(&mut out), "of \u{1b}[2J\nERROR é\u{9b}").expect("text");
        assert_eq!(out, "of \\u{1b}[2J\\nERROR é\\u{9b}");
    }

    #[test]
    fn a_line_of_our_own_looks_as_those_of_tracing() {
        let text = line("WARN", "a thing");
        let (at, rest) = text.split_once(' ').expect("a time");
        assert!(at.len() == "2026-11-26T14:13:40.123456Z".len() && at.ends_with('Z') && at.contains('T'), "{text}");
        assert_eq!(rest, " WARN a thing");
    }
}
