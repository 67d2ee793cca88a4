//! The sections of a configuration with their keys, as `Deserialize` of its types asks for them: so no list of keys can fall behind.

use serde::Deserializer;
use serde::de::value::{BorrowedStrDeserializer, Error};
use serde::de::{DeserializeOwned, DeserializeSeed, Error as _, MapAccess, SeqAccess, Visitor};
use serde::forward_to_deserialize_any;

/// Names by which `toml::Spanned` asks for a value with its position.
const SPANNED: &str = "$__serde_spanned_private_Spanned";
const SPANNED_VALUE: &str = "$__serde_spanned_private_value";

/// A table of a configuration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Section {
    /// From the file's root, such as `overlay.neighbour`. Empty for the root.
    pub(crate) path: String,
    pub(crate) fields: Fields,
}

/// A type's name and its keys. Roles that share a section share its type.
pub(crate) type Fields = (&'static str, &'static [&'static str]);

/// All tables of a file of type `T`. A table with keys of the operator's choice has none of its own.
pub(crate) fn sections<T: DeserializeOwned>() -> Vec<Section> {
    let (mut sections, mut unread) = (Vec::new(), vec![Vec::new()]);
    while let Some(path) = unread.pop() {
        let mut found = None;
        // It never succeeds: the answer is what was asked for.
        let _ = T::deserialize(Probe { path: &path, found: &mut found });
        let Some(fields) = found else { continue };
        unread.extend(fields.1.iter().map(|key| [&path[..], &[*key]].concat()));
        sections.push(Section { path: path.join("."), fields });
    }
    sections
}

/// Gives each table on the way one key, the next of `path`, and notes the fields of the table at the end.
struct Probe<'a> {
    path: &'a [&'static str],
    found: &'a mut Option<Fields>,
}

impl<'de> Deserializer<'de> for Probe<'_> {
    type Error = Error;

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        if name == SPANNED {
            return visitor.visit_map(One { key: Some(SPANNED_VALUE), value: Some(self) });
        }
        let Some((key, rest)) = self.path.split_first() else {
            *self.found = Some((name, fields));
            return self.deserialize_any(visitor);
        };
        visitor.visit_map(One { key: Some(key), value: Some(Probe { path: rest, found: self.found }) })
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_seq(One { key: None, value: Some(self) })
    }

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Error> {
        Err(Error::custom("a value that no test needs"))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 char str string bytes byte_buf unit unit_struct
        tuple tuple_struct map enum identifier ignored_any
    }
}

/// A table of one key, or a list of one value.
struct One<'a> {
    key: Option<&'static str>,
    value: Option<Probe<'a>>,
}

impl<'de> MapAccess<'de> for One<'_> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Error> {
        self.key.take().map(|key| seed.deserialize(BorrowedStrDeserializer::new(key))).transpose()
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Error> {
        seed.deserialize(self.value.take().ok_or_else(|| Error::custom("one value"))?)
    }
}

impl<'de> SeqAccess<'de> for One<'_> {
    type Error = Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Error> {
        self.value.take().map(|value| seed.deserialize(value)).transpose()
    }
}
