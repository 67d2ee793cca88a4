//! Lists of the Internet routing registries (IRR) as programs write them: `bgpq4 -j` (prefixes with `-A` or `-R`, ASes with `-t` or `-f`), and
//! arouteserver's cache, which has the same in another form.

use std::fmt;

use serde::de::{Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, de};
use wayleave_core::{Asn, Prefix};
use wayleave_route_server::data::{MAX_ORIGINS, MAX_PREFIXES, PrefixRange};

/// Octets of a file; whoever reads one reads no more.
pub const MAX_REGISTRY_OCTETS: u64 = 256 << 20;

/// What a file has: one kind, or both.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RegistryLists {
    pub origins: Vec<Asn>,
    pub prefixes: Vec<PrefixRange>,
}

/// Reads a file.
///
/// # Errors
/// What is wrong, with line and column.
pub fn parse_registry(octets: &[u8]) -> Result<RegistryLists, String> {
    serde_json::from_slice::<RegistryLists>(octets).map_err(|error| super::one_line(&error.to_string()))
}

impl RegistryLists {
    fn take<E: de::Error>(&mut self, element: Element) -> Result<(), E> {
        match element {
            Element::Origin(asn) => self.origins.push(asn),
            Element::Prefix(range) => self.prefixes.push(range),
        }
        if self.origins.len() > MAX_ORIGINS || self.prefixes.len() > 2 * MAX_PREFIXES {
            return Err(E::custom(format!("more than {MAX_ORIGINS} ASes, or {} prefixes", 2 * MAX_PREFIXES)));
        }
        Ok(())
    }
}

/// A list by itself, or lists by their names.
impl<'de> Deserialize<'de> for RegistryLists {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Lists { is_inside: false })
    }
}

struct Lists {
    /// Whether this is a value of an object, which may be no list.
    is_inside: bool,
}

impl<'de> Visitor<'de> for Lists {
    type Value = RegistryLists;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of AS numbers or of prefixes")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<RegistryLists, A::Error> {
        let mut lists = RegistryLists::default();
        while let Some(element) = list.next_element()? {
            lists.take(element)?;
        }
        Ok(lists)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RegistryLists, A::Error> {
        if self.is_inside {
            return Err(A::Error::custom("an object in an object, expected a list"));
        }
        let mut lists = RegistryLists::default();
        while map.next_key::<String>()?.is_some() {
            let RegistryLists { origins, prefixes } = map.next_value::<Inside>()?.0;
            origins.into_iter().map(Element::Origin).try_for_each(|element| lists.take::<A::Error>(element))?;
            prefixes.into_iter().map(Element::Prefix).try_for_each(|element| lists.take::<A::Error>(element))?;
        }
        Ok(lists)
    }

    // When a cache was filled stands beside its list.
    fn visit_u64<E: de::Error>(self, _: u64) -> Result<RegistryLists, E> {
        self.no_list()
    }

    fn visit_f64<E: de::Error>(self, _: f64) -> Result<RegistryLists, E> {
        self.no_list()
    }

    fn visit_str<E: de::Error>(self, _: &str) -> Result<RegistryLists, E> {
        self.no_list()
    }
}

impl Lists {
    fn no_list<E: de::Error>(&self) -> Result<RegistryLists, E> {
        match self.is_inside {
            true => Ok(RegistryLists::default()),
            false => Err(E::custom("one value, expected a list of AS numbers or of prefixes")),
        }
    }
}

/// A value of an object.
struct Inside(RegistryLists);

impl<'de> Deserialize<'de> for Inside {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Lists { is_inside: true }).map(Self)
    }
}

enum Element {
    Origin(Asn),
    Prefix(PrefixRange),
}

impl<'de> Deserialize<'de> for Element {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ElementVisitor)
    }
}

struct ElementVisitor;

impl<'de> Visitor<'de> for ElementVisitor {
    type Value = Element;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an AS number, or an object with `prefix`")
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<Element, E> {
        let asn = u32::try_from(number).map_err(|_| E::custom(format!("{number} is no AS number")))?;
        Ok(Element::Origin(Asn(asn)))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Element, A::Error> {
        let entry = PrefixEntry::deserialize(de::value::MapAccessDeserializer::new(map))?;
        entry.range().map(Element::Prefix).map_err(A::Error::custom)
    }
}

/// As bgpq4 writes it: `{"prefix": "192.0.2.0/24", "exact": false, "greater-equal": 24, "less-equal": 28}`; and as arouteserver keeps it, with
/// `length`, `ge` and `le`.
#[derive(Deserialize)]
struct PrefixEntry {
    prefix: String,
    length: Option<u8>,
    #[serde(default)]
    exact: bool,
    #[serde(rename = "greater-equal", alias = "ge")]
    least: Option<u8>,
    #[serde(rename = "less-equal", alias = "le")]
    most: Option<u8>,
}

impl PrefixEntry {
    fn range(&self) -> Result<PrefixRange, String> {
        let text = match self.length {
            Some(length) => format!("{}/{length}", self.prefix),
            None => self.prefix.clone(),
        };
        let prefix: Prefix = text.parse().map_err(|error: wayleave_core::ParsePrefixError| error.to_string())?;
        let of_range = |value: Option<u8>| value.filter(|_| !self.exact);
        let least = of_range(self.least).unwrap_or(prefix.len());
        // A least length alone means all from there on.
        let longest = if of_range(self.least).is_some() { prefix.afi().bits() } else { prefix.len() };
        let most = of_range(self.most).unwrap_or(longest);
        if prefix.len() <= least && least <= most && most <= prefix.afi().bits() {
            Ok(PrefixRange { prefix, least, most })
        } else {
            Err(format!("{prefix} with lengths from {least} to {most}: there are none"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(text: &str) -> Vec<(String, u8, u8)> {
        let lists = parse_registry(text.as_bytes()).expect(text);
        lists.prefixes.iter().map(|range| (range.prefix.to_string(), range.least, range.most)).collect()
    }

    #[test]
    fn prefixes_are_read_as_bgpq4_writes_them() {
        let text = r#"{ "NN": [
            { "prefix": "192.0.2.0\/24", "exact": true },
            { "prefix": "198.51.100.0\/22", "exact": false, "greater-equal": 23, "less-equal": 24 },
            { "prefix": "2001:db8::\/32", "exact": false, "less-equal": 48 },
            { "prefix": "203.0.112.0\/20", "exact": false, "greater-equal": 24 }
        ] }"#;
        let expected = [
            ("192.0.2.0/24", 24, 24),
            ("198.51.100.0/22", 23, 24),
            ("2001:db8::/32", 32, 48),
            ("203.0.112.0/20", 24, 32),
        ];
        assert_eq!(ranges(text), expected.map(|(prefix, least, most)| (prefix.to_owned(), least, most)));
    }

    #[test]
    fn ases_are_read_as_bgpq4_writes_them_and_an_empty_list_is_none() {
        let origins = |text: &str| parse_registry(text.as_bytes()).expect(text).origins;
        assert_eq!(origins(r#"{"NN": [64496, 64497]}"#), [Asn(64_496), Asn(64_497)]);
        assert_eq!(origins("[4200000000]"), [Asn(4_200_000_000)]);
        assert_eq!(parse_registry(br#"{"NN": []}"#), Ok(RegistryLists::default()));
    }

    #[test]
    fn arouteservers_cache_has_the_same() {
        let text = r#"{ "ts": 1700000000, "data": [
            { "prefix": "192.0.2.0", "length": 24, "exact": true, "ge": null, "le": null, "comment": "AS-FOO" },
            { "prefix": "2001:db8::", "length": 32, "exact": false, "ge": 32, "le": 128, "comment": "AS-FOO" }
        ] }"#;
        assert_eq!(ranges(text), [("192.0.2.0/24".to_owned(), 24, 24), ("2001:db8::/32".to_owned(), 32, 128)]);
    }

    #[test]
    fn what_is_no_list_is_refused_with_its_place() {
        for (text, why) in [
            ("", "EOF"),
            ("7", "one value, expected a list"),
            ("{\"a\": {\"b\": []}}", "an object in an object"),
            ("[-1]", "invalid type"),
            ("[4294967296]", "4294967296 is no AS number"),
            ("[{\"prefix\": \"192.0.2.1/24\"}]", "a bit beyond the prefix length is set"),
            ("[{\"prefix\": \"192.0.2.0/24\", \"less-equal\": 23}]", "with lengths from 24 to 23"),
            ("[{\"prefix\": \"192.0.2.0/24\", \"less-equal\": 33}]", "with lengths from 24 to 33"),
            ("[\"AS64496\"]", "invalid type"),
            ("[64496", "EOF"),
        ] {
            let said = parse_registry(text.as_bytes()).expect_err(text);
            assert!(said.contains(why) && (text.is_empty() || said.contains("line 1")), "{text}: {said}");
        }
    }
}
