//! A router as a queue with one server in virtual time: UPDATEs arrive as the workload says, and the server is busy for the
//! measured time of their cryptography.

/// Delays at the queue.
#[derive(Clone, Debug, Default)]
pub struct Delays {
    /// Sum of all delays: nanoseconds from the arrival of an UPDATE until it is sent on.
    pub sum: u128,
    /// The longest delay.
    pub max: u64,
    /// UPDATEs that were served.
    pub served: usize,
    /// Nanoseconds of work.
    pub busy: u64,
    /// The longest burst.
    pub longest_burst: usize,
    /// UPDATEs sent on in each second.
    pub outgoing: Vec<u32>,
}

impl Delays {
    /// The mean delay, in seconds.
    #[must_use]
    pub fn mean(&self) -> f64 {
        self.sum as f64 / self.served.max(1) as f64 / 1e9
    }
}

/// Serves all `arrivals` (nanoseconds, in order). Whenever the server is free it takes the UPDATEs that wait, at most `burst`;
/// `serve` does the work and returns its time in nanoseconds. The UPDATEs of a burst leave together. After `budget`
/// nanoseconds of work it stops, and only the UPDATEs served until then count.
///
/// # Errors
/// The first error of `serve`.
pub fn run<E>(
    arrivals: &[u64],
    burst: usize,
    budget: u64,
    mut serve: impl FnMut(std::ops::Range<usize>) -> Result<u64, E>,
) -> Result<Delays, E> {
    let mut out = Delays::default();
    let (mut now, mut next) = (0u64, 0);
    while next < arrivals.len() && out.busy < budget {
        now = now.max(arrivals[next]);
        let waiting = arrivals[next..].iter().take(burst.max(1)).take_while(|at| **at <= now).count();
        let taken = serve(next..next + waiting)?;
        now += taken;
        out.busy += taken;
        out.longest_burst = out.longest_burst.max(waiting);
        for at in &arrivals[next..next + waiting] {
            out.sum += u128::from(now - at);
            out.max = out.max.max(now - at);
        }
        let second = (now / 1_000_000_000) as usize;
        if out.outgoing.len() <= second {
            out.outgoing.resize(second + 1, 0);
        }
        out.outgoing[second] += waiting as u32;
        out.served += waiting;
        next += waiting;
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that takes so long for each burst.
    fn served(arrivals: &[u64], burst: usize, budget: u64, mut takes: impl FnMut(usize) -> u64) -> Delays {
        let serve = |burst: std::ops::Range<usize>| Ok::<_, std::convert::Infallible>(takes(burst.len()));
        run(arrivals, burst, budget, serve).expect("it cannot fail")
    }

    #[test]
    fn what_waits_is_served_together_and_leaves_together() {
        let mut bursts = Vec::new();
        let delays = served(&[0, 1, 2, 3, 100], 2, u64::MAX, |burst| {
            bursts.push(burst);
            10
        });
        // The first is served alone until 10, then two until 20, one until 30; the last comes to an idle server.
        assert_eq!(bursts, [1, 2, 1, 1]);
        assert_eq!((delays.sum, delays.max, delays.served, delays.busy), (10 + 19 + 18 + 27 + 10, 27, 5, 40));
        assert_eq!(delays.outgoing, [5]);
    }

    #[test]
    fn an_overloaded_server_falls_behind_by_what_it_cannot_do() {
        let arrivals: Vec<u64> = (0..1_000).map(|i| i * 10).collect();
        let delays = served(&arrivals, 1, u64::MAX, |_| 15);
        assert_eq!(delays.max, 1_000 * 15 - 999 * 10);
        assert_eq!(served(&arrivals, 1, 150, |_| 15).served, 10);
    }
}
