//! `show routes --mrt`: a member's routes as a RIB dump (TABLE_DUMP_V2, RFC 6396), which other programs read.

use std::fs::{self, File};
use std::io::{BufWriter, Write as _};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use wayleave_bgp::Attributes;
use wayleave_bgp::mrt::{DumpedBy, DumpedPeer, DumpedRoute, write_rib};
use wayleave_core::{Asn, Prefix, UnixTime};
use wayleave_runtime::clock::unix_now;

use crate::failure::{Failure, Outcome};
use crate::fetch::{self, Target};
use crate::output::{print, warn};

/// Routes of one question.
const PAGE: usize = 10_000;

/// Which routes, as the page of routes is asked for them.
pub struct Dump<'a> {
    pub target: &'a Target,
    /// The parameters of a filter.
    pub filter: &'a str,
    pub pair: Option<&'a str>,
}

/// The routes of a dump, by prefix, in their order.
type Routes = Vec<(Prefix, Vec<DumpedRoute>)>;

impl Dump<'_> {
    /// Writes all of them to a file, which is there once it is whole.
    ///
    /// # Errors
    /// If the role does not say them, or the file cannot be written.
    pub fn write(&self, file: &Path) -> Outcome {
        let now = unix_now();
        let routes = self.read(now)?;
        let by = DumpedBy { collector: Ipv4Addr::UNSPECIFIED, view: self.pair.unwrap_or_default(), time: now };
        let part = PathBuf::from(format!("{}.part", file.display()));
        let failed = |error| Failure::system(file.display(), &error);
        let written = (|| {
            let mut out = BufWriter::new(File::create(&part)?);
            let left_out = write_rib(&by, &routes, &mut out)?;
            out.flush()?;
            fs::rename(&part, file).map(|()| left_out)
        })();
        let left_out = match written {
            Ok(left_out) => left_out,
            Err(error) => {
                let _ = fs::remove_file(&part); // it may not be there
                return Err(failed(error).into());
            }
        };
        let count: usize = routes.iter().map(|(_, routes)| routes.len()).sum();
        print(&format!("{} routes to {} prefixes in {}\n", count - left_out, routes.len(), file.display()));
        if left_out > 0 {
            warn(&format!(
                "{left_out} routes are left out: the format has no room for their attributes, or for so many"
            ));
        }
        Ok(())
    }

    fn read(&self, now: UnixTime) -> Outcome<Routes> {
        let (mut routes, mut after) = (Routes::new(), None::<String>);
        loop {
            let behind = after.map_or(String::new(), |after| format!("&after={after}"));
            let path = format!("/api/v1/routes?most={PAGE}&attributes=true{}{behind}", self.filter);
            let page = fetch::json(self.target, &fetch::of_pair(&path, self.pair))?;
            if self.pair.is_none()
                && (page["routes"][0]["pair"].is_string() || page["more"] == true && page["next"].is_null())
            {
                let help = "choose one by `--pair NAME`, as `show status` names them";
                return Err(Failure::usage("this member has several pairs of parties").help(help).into());
            }
            for row in page["routes"].as_array().into_iter().flatten() {
                let (prefix, route) = dumped(row, now).ok_or_else(|| {
                    Failure::new("the role says no attributes of its routes")
                        .help("`show routes --mrt` is of a member's proxy, of this version")
                })?;
                match routes.last_mut().filter(|(last, _)| *last == prefix) {
                    Some((_, of_prefix)) => of_prefix.push(route),
                    None => routes.push((prefix, vec![route])),
                }
            }
            after = page["next"].as_str().map(str::to_owned);
            if after.is_none() {
                return Ok(routes);
            }
        }
    }
}

/// A route of the page; `None` if it lacks something.
fn dumped(row: &Value, now: UnixTime) -> Option<(Prefix, DumpedRoute)> {
    let prefix = row["prefix"].as_str()?.parse().ok()?;
    let octets = STANDARD.decode(row["attributes"].as_str()?).ok()?;
    let asn = row["announcer"]["asn"].as_u64().and_then(|asn| u32::try_from(asn).ok())?;
    let peer = DumpedPeer {
        asn: Asn(asn),
        address: row["next_hop"].as_str()?.parse().ok()?,
        identifier: Ipv4Addr::UNSPECIFIED,
    };
    let age = row["age_secs"].as_u64().unwrap_or(0);
    let originated = UnixTime(now.secs().saturating_sub(age) * 1_000_000);
    Some((prefix, DumpedRoute { path_id: 0, peer, originated, attributes: Attributes::decode(&octets).ok()? }))
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use wayleave_bgp::Origin;

    use super::*;

    #[test]
    fn a_row_of_the_page_is_a_route_of_a_dump_and_one_that_lacks_something_is_none() {
        let mut editor = Attributes::builder();
        editor.prepend(Asn(64_497), 1).origin(Origin::Igp).ipv4_next_hop([192, 0, 2, 1].into());
        let attributes = editor.finish();
        let row = json!({
            "prefix": "198.51.100.0/24", "next_hop": "192.0.2.1", "age_secs": 7,
            "announcer": { "slot": 0, "name": "alpha", "asn": 64_497 }, "attributes": STANDARD.encode(attributes.encode()),
        });
        let (prefix, route) = dumped(&row, UnixTime(100_000_000)).expect("whole");
        assert_eq!((prefix.to_string().as_str(), route.originated.secs()), ("198.51.100.0/24", 93));
        assert_eq!((route.attributes, route.peer.asn), (attributes, Asn(64_497)));
        for field in ["prefix", "next_hop", "announcer", "attributes"] {
            let mut lacking = row.clone();
            lacking[field] = json!("?");
            assert!(dumped(&lacking, UnixTime(100_000_000)).is_none(), "{field}");
        }
    }
}
