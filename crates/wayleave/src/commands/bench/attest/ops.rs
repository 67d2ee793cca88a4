//! `attest-ops`: what one operation and one UPDATE cost, and what figure 4 says of HORS trees.

use serde_json::json;
use wayleave_attestation::bench::hors::{self, Cost, MEAN_PATH};
use wayleave_attestation::bench::memory::signature_bytes;
use wayleave_attestation::bench::workload::{Route, routes};
use wayleave_attestation::bench::{Contender, Operations, generate, operations};
use wayleave_attestation::paper::hors::{KC_MT, SPV, Shape};
use wayleave_attestation::paper::origin::OriginStatement;
use wayleave_attestation::paper::raw::Exponent;
use wayleave_attestation::{Scheme, SuiteId};

use super::super::Report;
use super::{BURST, SEED, World, cannot, contenders, draw, note_missing, now, plots, world};
use crate::cli::Bench;
use crate::failure::Outcome;

/// ASes of each kind in the internet of the UPDATEs.
const FEW_ASES: u32 = 4;

/// Who is compared with whom.
const PAIRS: [(SuiteId, SuiteId); 4] = [
    (SuiteId::KcMtPaper, SuiteId::SBgp),
    (SuiteId::KcMtPaper, SuiteId::Spv),
    (SuiteId::KcEd25519, SuiteId::Bgpsec),
    (SuiteId::KcHbs, SuiteId::KcEd25519),
];

/// A contender in one of its ways to verify, and what was measured of it, in nanoseconds.
struct Measured {
    contender: Contender,
    world: World,
    operations: Operations,
}

impl Measured {
    fn hops(&self) -> usize {
        self.world.1.iter().map(|one| one.announcement.path.len()).sum()
    }

    /// The paper's table III: one verification, with everything but the origin's RSA signature in it.
    fn verification(&self) -> Vec<f64> {
        let own: usize =
            self.world.1.iter().map(|one| self.contender.own_signatures(one.announcement.path.len())).sum();
        let ratio = self.hops() as f64 / own as f64;
        self.operations.verify.iter().map(|each| each * ratio).collect()
    }

    /// Equation (1): Length(ASPATH) * Time(verify) + Time(sign).
    fn equation_1(&self) -> Vec<f64> {
        self.verification().iter().zip(&self.operations.sign).map(|(verify, sign)| MEAN_PATH * verify + sign).collect()
    }

    /// One more round of all operations, the second of two: what the others have left in the caches is not of this suite.
    fn round(&mut self) {
        let (scheme, received) = &mut self.world;
        operations(scheme.as_mut(), received, BURST, 1, &mut now);
        let Operations { sign, verify, verify_burst, update_alone, update } =
            operations(scheme.as_mut(), received, BURST, 1, &mut now);
        let all = &mut self.operations;
        all.sign.extend(sign);
        all.verify.extend(verify);
        all.verify_burst.extend(verify_burst);
        all.update_alone.extend(update_alone);
        all.update.extend(update);
    }
}

pub fn ops(bench: &Bench) -> Outcome<Report> {
    let count = if bench.short { 120 } else { 240 };
    let repetitions = bench.repetitions.unwrap_or(if bench.short { 5 } else { 15 }).max(1);
    let routes = routes(count, FEW_ASES, SEED);
    let params = json!({
        "updates": count, "mean_path": MEAN_PATH, "burst": BURST, "origin_statements": "remembered",
        "clock": "processor time",
    });
    let mut report = Report::new("attest-ops", params);
    let (mut missing, mut measured) = (Vec::new(), Vec::new());
    for contender in contenders(bench)? {
        match measure(contender, &routes)? {
            Some(ways) => measured.extend(ways),
            None => missing.push(contender.name()),
        }
    }
    // Suite by suite within each round, so that a machine that becomes slower does so for all of them.
    for _ in 0..repetitions {
        measured.iter_mut().for_each(Measured::round);
    }
    for one in &mut measured {
        add(&mut report, one, if bench.short { 3 } else { 9 })?;
    }
    add_ratios(&mut report, &measured);
    add_figure_4(&mut report, bench, repetitions);
    note_missing(&mut report, &missing);
    draw(bench, || plots::ops(&report))?;
    Ok(report)
}

/// The contender in each of its ways: KC-MT and SPV with each handling of the origin's statement, S-BGP with and without
/// tables of public keys.
fn measure(contender: Contender, routes: &[Route]) -> Outcome<Option<Vec<Measured>>> {
    let mut ways = vec![contender];
    match contender.suite {
        SuiteId::KcMtPaper | SuiteId::Spv => ways.extend([
            Contender { statement: OriginStatement::AllRemembered, ..contender },
            Contender { statement: OriginStatement::EachTime, ..contender },
            Contender { statement: OriginStatement::EachTime, exponent: Exponent::Three, ..contender },
        ]),
        SuiteId::SBgp => ways.push(Contender { tables: false, ..contender }),
        _ => {}
    }
    let measured = |contender: Contender| {
        let world = world(contender, routes)?;
        Ok(world.map(|world| Measured { contender, world, operations: Operations::default() }))
    };
    ways.into_iter().map(measured).collect()
}

/// Which way it is, if not the usual one.
fn way(contender: Contender) -> &'static str {
    match (contender.statement, contender.exponent) {
        (OriginStatement::Remembered, _) => "",
        (OriginStatement::AllRemembered, _) => "_all_statements_known",
        (OriginStatement::EachTime, Exponent::F4) => "_each_statement",
        (OriginStatement::EachTime, Exponent::Three) => "_each_statement_e3",
    }
}

fn in_seconds(nanoseconds: &[f64]) -> Vec<f64> {
    nanoseconds.iter().map(|each| each / 1e9).collect()
}

fn add(report: &mut Report, one: &mut Measured, generations: u8) -> Outcome<()> {
    let (contender, name) = (one.contender, one.contender.name());
    let mut add = |what: &str, samples: &[f64]| report.add(format!("{what}.{name}"), "s", &in_seconds(samples));
    let Operations { sign, verify, verify_burst, update_alone, update } = &one.operations;
    match contender.statement {
        OriginStatement::Remembered => {
            add("sign", sign);
            add("verify", verify);
            add("verify_burst", verify_burst);
            add("update", update);
            add("update_alone", update_alone);
            add("generate", &generation(contender.suite, generations));
        }
        OriginStatement::AllRemembered => {}
        OriginStatement::EachTime => add(&format!("update{}", way(contender)), update),
    }
    if counts_as_the_paper(contender) {
        add("verification", &one.verification());
        add("equation_1", &one.equation_1());
    }
    if contender.statement != OriginStatement::Remembered || !contender.tables {
        return Ok(());
    }
    let (hops, (scheme, received)) = (one.hops(), &mut one.world);
    let bytes: usize = received.iter().map(|one| scheme.signature_bytes(&one.attestation)).sum();
    report.exact(format!("bytes_per_hop.{name}"), "bytes", bytes as f64 / hops as f64);
    // What one more hop adds.
    let mut of = |hops| signature_bytes(scheme.as_mut() as &mut dyn Scheme, hops, 200).map_err(cannot(contender));
    let (shorter, longer) = (of(3)?, of(4)?);
    report.exact(format!("bytes_next_hop.{name}"), "bytes", longer - shorter);
    Ok(())
}

/// Whether equation (1) is taken from this way: that which leaves the origin's RSA signature out, where there is one.
fn counts_as_the_paper(contender: Contender) -> bool {
    match contender.suite {
        SuiteId::KcMtPaper | SuiteId::Spv => contender.statement == OriginStatement::AllRemembered,
        _ => true,
    }
}

/// How many times longer an UPDATE takes, round by round.
fn add_ratios(report: &mut Report, measured: &[Measured]) {
    let of = |suite: SuiteId, is: &dyn Fn(Contender) -> bool| {
        measured.iter().find(|one| one.contender.suite == suite && one.contender.tables && is(one.contender))
    };
    let mut add = |what: &str, (one, other): (SuiteId, SuiteId), samples: Option<(Vec<f64>, Vec<f64>)>| {
        let Some((mine, theirs)) = samples else { return };
        let ratios: Vec<f64> = mine.iter().zip(theirs).map(|(mine, theirs)| theirs / mine).collect();
        report.add(format!("{what}.{one}.than.{other}"), "ratio", &ratios);
    };
    for pair @ (one, other) in PAIRS {
        let updates = |is: &dyn Fn(Contender) -> bool| {
            let both = of(one, is).zip(of(other, is).or_else(|| of(other, &|_| true)));
            both.map(|(one, other)| (one.operations.update.clone(), other.operations.update.clone()))
        };
        let remembered = updates(&|contender| contender.statement == OriginStatement::Remembered);
        if one != SuiteId::KcMtPaper {
            add("faster", pair, remembered);
            continue;
        }
        let both = of(one, &counts_as_the_paper).zip(of(other, &counts_as_the_paper));
        add("faster", pair, both.map(|(one, other)| (one.equation_1(), other.equation_1())));
        add("faster_update", pair, remembered);
        for exponent in [Exponent::F4, Exponent::Three] {
            let each = Contender { statement: OriginStatement::EachTime, exponent, ..Contender::new(one) };
            let same = |contender: Contender| (contender.statement, contender.exponent) == (each.statement, exponent);
            add(&format!("faster{}", way(each)), pair, updates(&same));
        }
    }
}

/// Nanoseconds of each of `repetitions` key generations.
fn generation(suite: SuiteId, repetitions: u8) -> Vec<f64> {
    let one = |number: u8| {
        let start = now();
        generate(suite, &wayleave_crypto::secret::Secret::new([number; 32]));
        (now() - start) as f64
    };
    (0..repetitions).map(one).collect()
}

/// Signatures after which the probability of a forgery is computed and tried.
pub const AFTER: [u32; 9] = [10, 15, 20, 25, 30, 35, 40, 50, 60];

fn add_figure_4(report: &mut Report, bench: &Bench, repetitions: usize) {
    if !bench.suite.is_empty() && !bench.suite.iter().any(|name| name == SuiteId::KcMtPaper.name()) {
        return;
    }
    let trees = if bench.short { 8 } else { 32 };
    for shape in hors::shapes() {
        let costs: Vec<Cost> = (0..repetitions).map(|_| hors::cost(shape, trees, &mut now)).collect();
        let name = shape_name(shape);
        let mut add = |what: &str, of: fn(&Cost) -> f64| {
            let samples: Vec<f64> = costs.iter().map(of).collect();
            report.add(format!("hors_{what}.{name}"), "s", &in_seconds(&samples));
        };
        add("sign_first", |cost| cost.first);
        add("sign_next", |cost| cost.next);
        add("verify", |cost| cost.verify);
        add("update", Cost::update);
        report.exact(format!("hors_sigma.{name}"), "signatures", f64::from(costs[0].sigma));
        report.exact(format!("hors_bytes.{name}"), "bytes", costs[0].bytes);
    }
    let tries = if bench.short { 2_000 } else { 20_000 };
    for shape in [KC_MT, SPV] {
        for signatures in AFTER {
            let name = format!("{}.{signatures}", shape_name(shape));
            let (computed, tried) =
                (hors::forgery_probability(shape, signatures), hors::forgeries(shape, signatures, 200, tries));
            report.exact(format!("hors_forgery_computed.{name}"), "ratio", computed);
            report.counted(format!("hors_forgery_tried.{name}"), "ratio", tried, 200 * tries as usize);
        }
    }
}

/// The name in the results: leaves and disclosed leaves.
pub fn shape_name(shape: Shape) -> String {
    format!("{}-{}", shape.leaves(), shape.m)
}
