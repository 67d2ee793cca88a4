//! `bench pocomon`: the experiments of the PoComON paper, section 5.2. Packets of 4 octets cross the chain of five nodes; the
//! throughput of each interval of 50 packets is a sample. `baseline` and `apart` ask the servers for path and consents before each
//! packet, as the paper's sender did, with the servers beside the sender and on a machine of their own; `cached` asks once.
//! `gateway` is what applications get: unmodified UDP through TUN at both ends, sealed.

use std::net::UdpSocket;
use std::path::Path as FilePath;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;
use wayleave_crypto::lanes::CpuKernel;
use wayleave_dataplane::frame::{Frame, Ingress};
use wayleave_dataplane::icing::{Action, Router};
use wayleave_packet::icing::header::Part;
use wayleave_packet::icing::mint::{Form, Nonce, encapsulate};
use wayleave_papers::plot::overlay::{self as plots, overall};
use wayleave_papers::report::{Report, mean, median, percentile};
use wayleave_runtime::Clock;
use wayleave_runtime::packets::Burst;

use super::chain::{CHAIN, Chain, Realm, Result, Servers, said};
use super::paper_node::PaperNode;
use super::{check_only, deviation, draw, enter};
use crate::commands::bench::Bench;
use wayleave_config::failure::{Failure, Outcome};
use wayleave_config::receiving;

const NAMES: [&str; 4] = ["baseline", "apart", "cached", "gateway"];
/// Packets of a sample, and octets of each packet's payload.
const INTERVAL: u64 = 50;
const PAYLOAD: [u8; 4] = *b"ping";
/// IANA's number for experiments.
const PROTOCOL: u8 = 253;
/// Packets on their way at a time: the sender waits for the receiver, or it would measure which queue is the longest.
const WINDOW: u64 = 128;
const LOST: Duration = Duration::from_millis(50);
/// Frames that are verified together. A divisor of [`INTERVAL`], so that no interval ends within them.
const TOGETHER: usize = 10;
/// Seconds for which consents are asked.
pub const CONSENT_SECS: u32 = 60;
const TIMEOUT: Duration = Duration::from_secs(30);
const POLICIES: &str = "[[policy]]\nname = \"long\"\norder = \"longest\"\n";

pub fn run(bench: &Bench) -> Outcome<Option<Report>> {
    check_only(bench, NAMES.map(str::to_owned).into_iter())?;
    let Some(rung) = enter([])? else { return Ok(None) };
    let count = bench.repetitions.unwrap_or(if bench.short { 100 } else { 1_000 });
    let measured = measure(bench, count).map_err(|error| Failure::new(format!("the benchmark's chain: {error}")))?;
    let paper: serde_json::Map<String, serde_json::Value> = plots::FIGURES
        .iter()
        .map(|(_, name, _, [mean, median, sigma])| {
            ((*name).to_owned(), json!({ "mean": mean, "median": median, "sigma": sigma }))
        })
        .collect();
    let ours: serde_json::Map<String, serde_json::Value> = measured
        .iter()
        .map(|(name, values)| {
            let spread = json!({ "median": median(values), "sigma": deviation(values), "overall": overall(values) });
            (name.clone(), spread)
        })
        .collect();
    let mut report = Report::new(
        "pocomon",
        json!({
            "rung": rung.to_string(), "interval": INTERVAL, "octets": PAYLOAD.len(), "nodes": 5,
            "paper": paper, "spread": ours,
        }),
    );
    for (name, values) in &measured {
        add(&mut report, name, values);
    }
    draw(bench, || plots::pocomon(&measured))?;
    Ok(Some(report))
}

/// The mean of the intervals' throughputs, as in the paper, how they are distributed, and packets a second over all of them.
fn add(report: &mut Report, name: &str, values: &[f64]) {
    report.summary(name.to_owned(), "packets/s", values, mean(values));
    for percent in plots::PERCENTILES {
        report.counted(format!("{name}.p{percent}"), "packets/s", percentile(values, percent), values.len());
    }
    report.counted(format!("{name}.overall"), "packets/s", overall(values), values.len());
}

fn measure(bench: &Bench, count: usize) -> Result<Vec<(String, Vec<f64>)>> {
    let chain = Chain::new()?;
    let mut all = Vec::new();
    for servers in [Servers::Beside, Servers::Apart] {
        let names: &[&str] = if servers == Servers::Beside { &["baseline"] } else { &["apart", "cached", "gateway"] };
        if !names.iter().any(|name| bench.wants(name)) {
            continue;
        }
        let mut realm = Realm::start(&chain, servers, &[&CHAIN], POLICIES)?;
        for name in names.iter().filter(|name| bench.wants(name)) {
            let values = if *name == "gateway" {
                through_gateways(&chain, &mut realm, count)
            } else {
                by_library(&chain, &realm, count, name)
            };
            all.push(((*name).to_owned(), values.map_err(|why| format!("{name}: {why}"))?));
        }
    }
    Ok(all)
}

/// What arrived, and when each interval ended.
#[derive(Default)]
struct Arrivals {
    count: AtomicU64,
    ends: Mutex<Vec<Instant>>,
}

impl Arrivals {
    fn add(&self, more: u64) {
        let before = self.count.fetch_add(more, Ordering::Release);
        let ended = (before + more) / INTERVAL - before / INTERVAL;
        if ended > 0
            && let Ok(mut ends) = self.ends.lock()
        {
            ends.extend((0..ended).map(|_| Instant::now()));
        }
    }

    fn intervals(&self) -> usize {
        self.count.load(Ordering::Acquire) as usize / INTERVAL as usize
    }

    /// Packets a second of each interval; the first one is discarded, as the paper does.
    fn samples(&self, count: usize) -> Vec<f64> {
        let Ok(ends) = self.ends.lock() else { return Vec::new() };
        let rate = |pair: &[Instant]| INTERVAL as f64 / (pair[1] - pair[0]).as_secs_f64().max(1e-9);
        ends.windows(2).map(rate).take(count).collect()
    }
}

/// Lets no more than [`WINDOW`] packets be on their way.
struct Window {
    out: u64,
    seen: u64,
    last: Instant,
}

impl Window {
    fn new() -> Self {
        Self { out: 0, seen: 0, last: Instant::now() }
    }

    /// Whether one more may leave; then it has. Waits a moment if not.
    fn take(&mut self, arrivals: &Arrivals) -> bool {
        let came = arrivals.count.load(Ordering::Acquire);
        if came != self.seen {
            (self.seen, self.last) = (came, Instant::now());
        }
        if self.out.saturating_sub(came) < WINDOW {
            self.out += 1;
            return true;
        }
        if self.last.elapsed() > LOST {
            // What has not arrived by now is lost.
            self.out = came;
        } else {
            thread::sleep(Duration::from_micros(20));
        }
        false
    }
}

/// Through two gateways: a plain UDP socket at either end.
fn through_gateways(chain: &Chain, realm: &mut Realm, count: usize) -> Result<Vec<f64>> {
    realm.gateways(chain, &["b", "a"])?;
    realm.reach(chain, &CHAIN, "long", CHAIN.nodes)?;
    let open = |at: &'static str| move || UdpSocket::bind(at);
    let receiver = chain.place("b").within(open("0.0.0.0:5300")).map_err(said)?.map_err(said)?;
    receiver.set_read_timeout(Some(Duration::from_millis(20))).map_err(said)?;
    let sender = chain.place("a").within(open("0.0.0.0:0")).map_err(said)?.map_err(said)?;
    sender.connect((CHAIN.inner[1], 5_300)).map_err(said)?;
    let (arrivals, is_done) = (Arrivals::default(), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| note_so_far("gateway", &arrivals, count, &is_done));
        scope.spawn(|| {
            while !is_done.load(Ordering::Acquire) {
                if receiver.recv(&mut [0; 64]).is_ok() {
                    arrivals.add(1);
                }
            }
        });
        let (mut window, begin) = (Window::new(), Instant::now());
        while arrivals.intervals() < count + 1 && begin.elapsed() < TIMEOUT * 4 {
            if window.take(&arrivals) {
                let _ = sender.send(&PAYLOAD);
            }
        }
        is_done.store(true, Ordering::Release);
    });
    enough(&arrivals, count)
}

/// Keeps, for who stops the benchmark, what there is until now; the final summary takes its place.
fn note_so_far(name: &str, arrivals: &Arrivals, count: usize, is_done: &AtomicBool) {
    while !is_done.load(Ordering::Acquire) {
        let samples = arrivals.samples(count);
        if !samples.is_empty() {
            add(&mut Report::new("pocomon", json!({})), name, &samples);
        }
        thread::sleep(Duration::from_millis(200));
    }
}

fn enough(arrivals: &Arrivals, count: usize) -> Result<Vec<f64>> {
    let samples = arrivals.samples(count);
    if samples.len() == count { Ok(samples) } else { Err(format!("only {} intervals arrived", samples.len())) }
}

/// The two ends as programs of their own: the sender asks, stamps and sends; the receiver verifies and counts.
fn by_library(chain: &Chain, realm: &Realm, count: usize, name: &str) -> Result<Vec<f64>> {
    let (arrivals, is_done) = (Arrivals::default(), AtomicBool::new(false));
    let (is_ready, is_cached) = (AtomicBool::new(false), name == "cached");
    thread::scope(|scope| {
        scope.spawn(|| note_so_far(name, &arrivals, count, &is_done));
        let receiver = scope.spawn(|| {
            let config = realm.folder("b").join("gateway.toml");
            let received = chain.place("b").within(|| receive(&config, &arrivals, &is_ready, &is_done));
            received.map_err(said)?
        });
        let begin = Instant::now();
        while !is_ready.load(Ordering::Acquire) && begin.elapsed() < TIMEOUT && !receiver.is_finished() {
            thread::sleep(Duration::from_millis(10));
        }
        let config = realm.folder("a").join("gateway.toml");
        let sent = chain.place("a").within(|| send(&config, &arrivals, count, is_cached));
        is_done.store(true, Ordering::Release);
        receiver.join().map_err(|_| "the receiver panicked".to_owned())??;
        sent.map_err(said)?
    })?;
    enough(&arrivals, count)
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(said)
}

/// Verifies and counts what arrives, until it is done.
fn receive(config: &FilePath, arrivals: &Arrivals, is_ready: &AtomicBool, is_done: &AtomicBool) -> Result<()> {
    let runtime = runtime()?;
    let mut node = runtime.block_on(PaperNode::start(config))?;
    let clock = Clock::start();
    let receiver = receiving::receiver(&node.known, clock.now().unix).map_err(said)?;
    let mut router = Router::new(receiver, CpuKernel::best()).map_err(said)?;
    let mut end = node.end()?;
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut burst = Burst::default();
            while !is_done.load(Ordering::Acquire) {
                if end.turn(&mut burst) > 0 {
                    count_verified(&mut router, &mut burst, end.link, &clock, arrivals);
                } else {
                    end.wait();
                }
            }
        });
        is_ready.store(true, Ordering::Release);
        // The node's advert is renewed meanwhile.
        runtime.block_on(async {
            while !is_done.load(Ordering::Acquire) {
                node.serve(Duration::from_millis(20)).await?;
            }
            Ok(())
        })
    })
}

fn count_verified(router: &mut Router, burst: &mut Burst, link: u16, clock: &Clock, arrivals: &Arrivals) {
    let mut frames: Vec<Frame<'_>> = Vec::with_capacity(TOGETHER);
    let mut packets = burst.packets_mut(0);
    loop {
        frames.clear();
        frames.extend(
            packets.by_ref().take(TOGETHER).map(|(_, octets)| Frame { octets, ingress: Ingress::External(link) }),
        );
        if frames.is_empty() {
            return;
        }
        let actions = router.process(&mut frames, clock.now());
        let delivered = actions[..frames.len()].iter().filter(|action| matches!(action, Action::Deliver { .. }));
        arrivals.add(delivered.count() as u64);
    }
}

/// Sends until enough has arrived.
fn send(config: &FilePath, arrivals: &Arrivals, count: usize, is_cached: bool) -> Result<()> {
    runtime()?.block_on(async {
        let mut node = PaperNode::start(config).await?;
        let receiver = node.known.identity_of("b").ok_or("b is not a member")?;
        let (mut end, mut burst) = (node.end()?, Burst::default());
        // The receiver's advert may not have reached the path server yet, nor the forwarders each other's.
        let begin = Instant::now();
        let mut sender = loop {
            match node.ask(receiver).await {
                Ok(sender) if sender.count() == 5 => break sender,
                other if begin.elapsed() > TIMEOUT => {
                    return Err(other.err().unwrap_or_else(|| "no path over all nodes".to_owned()));
                }
                _ => {
                    end.turn(&mut burst);
                    node.serve(Duration::from_millis(100)).await?;
                }
            }
        };
        let (clock, mut nonce, mut octets) = (Clock::start(), Nonce(0), Vec::new());
        let (mut window, begin) = (Window::new(), Instant::now());
        while arrivals.intervals() < count + 1 && begin.elapsed() < TIMEOUT * 20 {
            if !window.take(arrivals) {
                // Links go on.
                end.turn(&mut burst);
                node.serve(Duration::ZERO).await?;
                continue;
            }
            if !is_cached {
                sender = node.ask(receiver).await?;
            }
            nonce = Nonce((nonce.0 + 1).max(Nonce::new(clock.now().unix, 0).0));
            encapsulate(&sender, (Form::Path, Part::Whole), PROTOCOL, nonce, &PAYLOAD, &mut octets).map_err(said)?;
            end.send(&octets);
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use wayleave_papers::report::so_far;

    use super::*;

    #[test]
    fn an_interval_ends_with_each_fiftieth_packet_and_the_first_one_is_discarded() {
        let arrivals = Arrivals::default();
        (0..4 * INTERVAL + 7).for_each(|_| arrivals.add(1));
        assert_eq!((arrivals.intervals(), arrivals.samples(10).len(), arrivals.samples(2).len()), (4, 3, 2));
    }

    #[test]
    fn who_stops_it_has_what_was_measured_until_then() {
        let (arrivals, is_done) = (Arrivals::default(), AtomicBool::new(false));
        thread::scope(|scope| {
            scope.spawn(|| note_so_far("tested", &arrivals, 10, &is_done));
            arrivals.add(INTERVAL);
            arrivals.add(INTERVAL);
            arrivals.add(INTERVAL);
            while !so_far().iter().any(|one| one.name == "tested" && one.n == 2) {
                thread::sleep(Duration::from_millis(10));
            }
            is_done.store(true, Ordering::Release);
        });
        let named = |name: String| so_far().iter().filter(|one| one.name == name.as_str()).count();
        let names = plots::PERCENTILES.map(|percent| format!("tested.p{percent}"));
        assert!(names.into_iter().chain(["tested.overall".to_owned()]).all(|name| named(name) == 1));
    }
}
