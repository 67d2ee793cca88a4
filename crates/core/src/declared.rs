//! Declarations that are written once and serve several uses: [`named!`](crate::named), [`numbered!`](crate::numbered) and
//! [`counters!`](crate::counters!).

/// Declares an enum whose values have names. Each value is written once, with its name, and stands in `ALL` and in `name`.
///
/// ```
/// wayleave_core::named! {
///     /// Why a packet is dropped.
///     #[derive(Clone, Copy, PartialEq, Debug)]
///     pub enum Reason {
///         /// Nobody has its destination.
///         NoRoute = "no-route",
///         Expired = "expired",
///     }
/// }
///
/// assert_eq!(Reason::ALL, [Reason::NoRoute, Reason::Expired]);
/// assert_eq!(Reason::NoRoute.name(), "no-route");
/// ```
#[macro_export]
macro_rules! named {
    ($(#[$meta:meta])* $vis:vis enum $enum:ident { $($(#[$doc:meta])* $value:ident = $name:literal),+ $(,)? }) => {
        $(#[$meta])*
        $vis enum $enum { $($(#[$doc])* $value),+ }

        impl $enum {
            /// Every value, in the order of its declaration.
            $vis const ALL: [Self; [$($name),+].len()] = [$(Self::$value),+];

            /// The name in metrics, messages and configurations.
            #[must_use]
            $vis const fn name(self) -> &'static str {
                match self { $(Self::$value => $name),+ }
            }
        }
    };
}

/// Declares an enum whose values are octets on a wire, each written once.
///
/// ```
/// wayleave_core::numbered! {
///     #[derive(Clone, Copy, PartialEq, Debug)]
///     pub enum Kind {
///         Open = 1,
///         /// The last one.
///         Close = 4,
///     }
/// }
///
/// assert_eq!(Kind::Close.octet(), 4);
/// assert_eq!((Kind::from_octet(1), Kind::from_octet(2)), (Some(Kind::Open), None));
/// ```
#[macro_export]
macro_rules! numbered {
    ($(#[$meta:meta])* $vis:vis enum $enum:ident { $($(#[$doc:meta])* $value:ident = $octet:literal),+ $(,)? }) => {
        $(#[$meta])*
        $vis enum $enum { $($(#[$doc])* $value = $octet),+ }

        impl $enum {
            /// The octet on the wire.
            #[must_use]
            $vis const fn octet(self) -> u8 {
                self as u8
            }

            /// From the octet on the wire.
            #[must_use]
            $vis const fn from_octet(octet: u8) -> Option<Self> {
                match octet {
                    $($octet => Some(Self::$value),)+
                    _ => None,
                }
            }
        }
    };
}

/// Declares a struct of counters that are added field by field, with `+=`.
///
/// ```
/// wayleave_core::counters! {
///     #[derive(Clone, Copy, PartialEq, Debug, Default)]
///     pub struct Counts {
///         pub sent: u64,
///         /// Not sent.
///         pub dropped: u64,
///     }
/// }
///
/// let mut sum = Counts { sent: 1, dropped: 2 };
/// sum += Counts { sent: 10, ..Counts::default() };
/// assert_eq!(sum, Counts { sent: 11, dropped: 2 });
/// ```
#[macro_export]
macro_rules! counters {
    (
        $(#[$meta:meta])*
        $vis:vis struct $struct:ident { $($(#[$doc:meta])* $field_vis:vis $field:ident: $type:ty),+ $(,)? }
    ) => {
        $(#[$meta])*
        $vis struct $struct { $($(#[$doc])* $field_vis $field: $type),+ }

        impl ::std::ops::AddAssign for $struct {
            fn add_assign(&mut self, other: Self) {
                $(self.$field += other.$field;)+
            }
        }
    };
}
