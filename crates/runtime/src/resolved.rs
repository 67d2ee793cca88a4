//! A client of systemd-resolved: it is told by D-Bus which names are asked for at a server of ours, on the link of an interface.
//!
//! What it was told of a link ends with the interface. It is never started for this: where nobody has its name on the bus, there
//! is nothing to tell.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::num::NonZeroUsize;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use zbus::export::futures_core::Stream as _;
use zbus::export::serde::Serialize;
use zbus::{
    Connection, DynamicType, Error, Message, MessageStream, OwnedObjectPath, OwnedVariant, Variant, connection,
};

const NAME: &str = "org.freedesktop.resolve1";
const PATH: &str = "/org/freedesktop/resolve1";
const MANAGER: &str = "org.freedesktop.resolve1.Manager";
const LINK: &str = "org.freedesktop.resolve1.Link";
const PROPERTIES: &str = "org.freedesktop.DBus.Properties";
const BUS: &str = "org.freedesktop.DBus";
/// How long an answer takes, at most: polkit may ask somebody.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Signals that wait; each says the same.
const SIGNALS: NonZeroUsize = NonZeroUsize::new(8).expect("not zero");
/// Families of addresses, as `AF_INET` and `AF_INET6` on Linux.
const FAMILIES: [i32; 2] = [libc::AF_INET, libc::AF_INET6];

/// Which names are asked for where, on one link.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LinkNames {
    /// The interface's number.
    pub index: u32,
    pub server: SocketAddr,
    /// What the names end in, without a dot at either end.
    pub zones: Vec<String>,
}

/// A connection to the system's bus.
pub struct Resolved {
    connection: Connection,
    owners: MessageStream,
    settings: MessageStream,
}

impl Resolved {
    /// Connects to the system's bus, that of `DBUS_SYSTEM_BUS_ADDRESS` if this is set.
    ///
    /// # Errors
    /// There is none, or it does not answer.
    pub async fn connect() -> io::Result<Self> {
        let connecting = connection::Builder::system().method_timeout(TIMEOUT).build();
        let connection = tokio::time::timeout(TIMEOUT, connecting).await?.map_err(fault)?;
        let rule = format!("type='signal',sender='{BUS}',interface='{BUS}',member='NameOwnerChanged',arg0='{NAME}'");
        let owners = MessageStream::for_match_rule(&*rule, &connection, Some(SIGNALS)).await.map_err(fault)?;
        let rule =
            format!("type='signal',sender='{NAME}',path='{PATH}',interface='{PROPERTIES}',member='PropertiesChanged'");
        let settings = MessageStream::for_match_rule(&*rule, &connection, Some(SIGNALS)).await.map_err(fault)?;
        Ok(Self { connection, owners, settings })
    }

    /// Whether systemd-resolved runs.
    ///
    /// # Errors
    /// What the bus said.
    pub async fn is_there(&self) -> io::Result<bool> {
        let answer = self.connection.call_method(Some(BUS), "/org/freedesktop/DBus", Some(BUS), "NameHasOwner", &NAME);
        answer.await.and_then(|answer| answer.body().deserialize()).map_err(fault)
    }

    /// Returns when systemd-resolved has begun or ended, and so forgotten what it was told, or when it says that it was told something.
    ///
    /// # Errors
    /// The bus has ended.
    pub async fn changed(&mut self) -> io::Result<()> {
        let Self { owners, settings, .. } = self;
        let next = std::future::poll_fn(|context| {
            let mut last = Poll::Pending;
            // All say the same, and the bus waits for whoever leaves some unread.
            for signals in [&mut *owners, &mut *settings] {
                while let Poll::Ready(next) = Pin::new(&mut *signals).poll_next(context) {
                    let has_ended = !matches!(next, Some(Ok(_)));
                    last = Poll::Ready(next);
                    if has_ended {
                        return last;
                    }
                }
            }
            last
        })
        .await;
        match next {
            Some(Ok(_)) => Ok(()),
            Some(Err(error)) => Err(fault(error)),
            None => Err(io::ErrorKind::ConnectionAborted.into()),
        }
    }

    /// Has names of these zones, and no others, asked for at the server.
    ///
    /// # Errors
    /// What was refused, or that nobody answered.
    pub async fn set(&self, names: &LinkNames) -> io::Result<()> {
        let index = index(names.index)?;
        let address = local(names.server.ip());
        let (family, address) = (FAMILIES[usize::from(address.is_ipv6())], octets(address));
        // `true`: names are sent there, and no search list gets longer.
        let domains: Vec<(&str, bool)> = names.zones.iter().map(|zone| (&**zone, true)).collect();
        // First: a link with a server and no such word is asked for everything.
        self.call("SetLinkDefaultRoute", &(index, false)).await?;
        self.call("SetLinkDNSEx", &(index, vec![(family, address, names.server.port(), "")])).await?;
        // Nobody signs these zones, and the server speaks no TLS, whatever is demanded of others.
        self.call("SetLinkDNSSECNegativeTrustAnchors", &(index, &names.zones)).await?;
        self.call("SetLinkDNSOverTLS", &(index, "no")).await?;
        // With it questions begin to come.
        self.call("SetLinkDomains", &(index, domains)).await
    }

    /// Whether names of these zones are asked for there, as they were set: others may set links too, and `resolvectl revert` takes it back.
    ///
    /// # Errors
    /// What was refused, or that nobody answered.
    pub async fn holds(&self, names: &LinkNames) -> io::Result<bool> {
        let link = self.connection.call_method(Some(NAME), PATH, Some(MANAGER), "GetLink", &index(names.index)?).await;
        let path: OwnedObjectPath = link.and_then(|answer| answer.body().deserialize()).map_err(fault)?;
        let property = async |name: &str| {
            let answer = self.connection.call_method(Some(NAME), &path, Some(PROPERTIES), "Get", &(LINK, name)).await;
            answer.and_then(|answer| answer.body().deserialize::<OwnedVariant>()).map_err(fault)
        };
        let (domains, servers) = (property("Domains").await?, property("DNS").await?);
        let mut zones = rows(&domains, |row| match row {
            [Variant::Str(zone), Variant::Bool(true)] => Some(zone.as_str().to_owned()),
            _ => None,
        });
        let mut wanted = names.zones.clone();
        zones.sort();
        wanted.sort();
        let address = octets(local(names.server.ip()));
        let has_server = rows(&servers, |row| match row {
            [_, Variant::Array(octets)] => {
                Some(octets.iter().filter_map(|octet| u8::try_from(octet).ok()).collect::<Vec<_>>())
            }
            _ => None,
        });
        Ok(zones == wanted && has_server == [address])
    }

    /// Takes back what was said of a link.
    ///
    /// # Errors
    /// What was refused, or that nobody answered.
    pub async fn revert(&self, link: u32) -> io::Result<()> {
        self.call("RevertLink", &index(link)?).await
    }

    async fn call<B: Serialize + DynamicType>(&self, method: &str, body: &B) -> io::Result<()> {
        let answer: Result<Message, Error> =
            self.connection.call_method(Some(NAME), PATH, Some(MANAGER), method, body).await;
        answer.map(|_| ()).map_err(|error| {
            let error = fault(error);
            io::Error::new(error.kind(), format!("{method}: {error}"))
        })
    }
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

/// The rows of a table that a property is, as far as they are read.
fn rows<T>(table: &OwnedVariant, read: impl Fn(&[Variant<'_>]) -> Option<T>) -> Vec<T> {
    let Variant::Array(rows) = &**table else { return Vec::new() };
    let of = |row: &Variant<'_>| match row {
        Variant::Structure(row) => read(row.fields()),
        _ => None,
    };
    rows.iter().filter_map(of).collect()
}

/// Where a server is reached that listens at all addresses.
fn local(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(v4) if v4.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(v6) if v6.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        address => address,
    }
}

fn index(link: u32) -> io::Result<i32> {
    i32::try_from(link).map_err(|_| io::ErrorKind::InvalidInput.into())
}

fn fault(error: Error) -> io::Error {
    match error {
        Error::InputOutput(error) | Error::Connection(error, _) => io::Error::new(error.kind(), error.to_string()),
        error => io::Error::other(error.to_string()),
    }
}
