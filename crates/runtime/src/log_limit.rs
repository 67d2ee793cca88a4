//! Limits lines of the log that others cause: a peer that misbehaves without end must not fill a disk.

use std::time::Duration;

use tokio::time::Instant;

/// Lines of one kind at once.
const LINES: u32 = 20;
/// When one line more may follow, and again: some 8,640 a day.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// The limit of lines of one kind.
#[derive(Debug)]
pub struct LogLimit {
    /// Lines at once.
    lines: u32,
    /// When one line more may follow.
    line_every: Duration,
    /// When as many lines as may be logged at once may be so again.
    full_at: Option<Instant>,
    /// Lines that were not logged since the last one that was.
    waiting: u64,
    /// All lines that were not logged.
    suppressed: u64,
}

/// A line that is logged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Line {
    /// How many of its kind were not logged since the last one.
    pub suppressed: Option<u64>,
}

impl Default for LogLimit {
    fn default() -> Self {
        Self::new(LINES, LINE_EVERY)
    }
}

impl LogLimit {
    /// So many lines at once, and one more after each such time.
    #[must_use]
    pub fn new(lines: u32, line_every: Duration) -> Self {
        Self { lines, line_every, full_at: None, waiting: 0, suppressed: 0 }
    }

    /// Whether one more line is logged now; if not, it is counted.
    pub fn note(&mut self, now: Instant) -> Option<Line> {
        let full_at = self.full_at.map_or(now, |at| at.max(now));
        if full_at - now > self.line_every * self.lines.saturating_sub(1) {
            self.waiting += 1;
            self.suppressed += 1;
            return None;
        }
        self.full_at = Some(full_at + self.line_every);
        let suppressed = std::mem::take(&mut self.waiting);
        Some(Line { suppressed: (suppressed > 0).then_some(suppressed) })
    }

    /// Lines that were not logged since the start.
    #[must_use]
    pub fn suppressed(&self) -> u64 {
        self.suppressed
    }
}

#[cfg(test)]
mod tests {
    //! KCX-38: 10,000 lines of one kind: a few lines, and every one that is left out is counted.

    use super::*;

    #[test]
    fn an_endless_cause_gives_few_lines_and_each_says_how_many_were_not_logged() {
        let (mut limit, begin) = (LogLimit::default(), Instant::now());
        let at_once = (0..10_000).filter(|_| limit.note(begin).is_some()).count();
        assert_eq!((at_once, limit.suppressed()), (LINES as usize, 10_000 - u64::from(LINES)));
        assert_eq!(limit.note(begin + LINE_EVERY), Some(Line { suppressed: Some(10_000 - u64::from(LINES)) }));
        assert_eq!(limit.note(begin + LINE_EVERY), None);
        // A day of a thousand a second, less the first seconds.
        let lines: Vec<Line> = (1..8_640).filter_map(|step| limit.note(begin + LINE_EVERY * (1 + step))).collect();
        assert_eq!(lines.len(), 8_639);
        assert_eq!((lines[0].suppressed, lines[1].suppressed), (Some(1), None));
        let mut one_a_minute = LogLimit::new(1, Duration::from_secs(60));
        let lines: Vec<_> = (0..120).map(|second| one_a_minute.note(begin + Duration::from_secs(second))).collect();
        assert_eq!((lines[0], lines[60]), (Some(Line::default()), Some(Line { suppressed: Some(59) })));
        assert_eq!(lines.into_iter().flatten().count(), 2);
        // After a silence as many at once as before.
        let later = begin + LINE_EVERY * 10_000;
        assert_eq!((0..100).filter(|_| limit.note(later).is_some()).count(), LINES as usize);
    }
}
