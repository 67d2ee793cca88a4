//! The provider's store: one suite for SQLite and PostgreSQL, of which each test begins with an empty database.
//!
//! PLA-06, the database: rows that are forged, changed, taken away, brought back, in the place of another: refused by name; the database
//! alone makes and un-makes nothing.
//! PLA-06, behind and set back: an old backup, also one that went on: refused until an operator adopts it; numbers go on above.

use std::collections::BTreeMap;
use std::net::IpAddr;

use sqlx::{AnyPool, Row as _};
use wayleave_control::capability::{
    Billing, BillingSubject, Change, ChangeBody, DelegationLimit, Grant, Invitation, InvitationId, Metadata, Month,
    ProviderKey, RatePayer, RateTerms, Row, State, Terms, VolumeQuota,
};
use wayleave_core::UnixTime;
use wayleave_crypto::secret::Seed;
use wayleave_crypto::sign::SigningKey;
use wayleave_crypto::signed::Signed;
use wayleave_packet::platypus::header::{Delegation, DelegationId, Interval, Principal, Width};
use wayleave_packet::platypus::revocation::Revocation;
use wayleave_packet::platypus::sources::Sources;
use wayleave_store::{Appended, Location, Note, Position, Store, StoreError, StoreKey};

/// Unix seconds.
const NOW: u64 = 1_800_000_000;
const NOTE: Note<'_> = Note { actor: "a test", reason: "" };
const TABLES: [&str; 15] = [
    "head",
    "change",
    "account",
    "closed_account",
    "capability",
    "revocation",
    "invitation",
    "reopening",
    "withdrawn_secret",
    "source",
    "rate",
    "billing",
    "quota",
    "delegation_limit",
    "delegation_volume",
];

fn provider() -> ProviderKey {
    ProviderKey::new(Seed::new([7; 32]))
}

fn key() -> StoreKey {
    StoreKey::new(provider().store_key())
}

fn signer() -> SigningKey {
    SigningKey::from_seed(&Seed::new([8; 32]))
}

fn principal(number: u32) -> Principal {
    Principal::new(number).expect("24 bits")
}

fn terms(number: u32, waypoint: u8, delegation: Option<u32>) -> Terms {
    let delegation = delegation.map(|id| Delegation {
        prefix: "203.0.113.0/24".parse().expect("a prefix"),
        id: DelegationId::new(id).expect("24 bits"),
        sub: None,
    });
    let waypoint = IpAddr::from([198, 51, 100, waypoint]);
    let interval = Interval::new(12).expect("in range");
    Terms { waypoint, principal: principal(number), interval, width: Width::Full, delegation }
}

fn account(number: u32) -> ChangeBody {
    ChangeBody::Account { principal: principal(number), generation: number, name: format!("number {number}") }
}

fn grant(terms: Terms) -> ChangeBody {
    ChangeBody::Grant(Grant { terms, not_before: NOW, not_after: NOW + 86_400 })
}

fn revoke(number: u32, epoch: Option<u32>) -> ChangeBody {
    let epoch = epoch.map(|epoch| (Interval::new(12).expect("in range"), epoch));
    ChangeBody::Revoke(Revocation { principal: principal(number), delegation: None, epoch })
}

fn invitation(number: u32) -> Invitation {
    Invitation {
        id: InvitationId([number as u8; 8]),
        key: [3; 32],
        name: format!("guest {number}"),
        lasts: 50,
        not_after: NOW + 60,
        terms: vec![terms(number, 1, None)],
    }
}

fn sources(number: u32, delegation: Option<u32>, prefixes: &[&str]) -> ChangeBody {
    ChangeBody::SetSources(Sources {
        principal: principal(number),
        delegation: delegation.and_then(DelegationId::new),
        delegates_any: delegation.is_none(),
        prefixes: prefixes.iter().map(|prefix| prefix.parse().expect("a prefix")).collect(),
    })
}

/// Changes of every kind.
fn all_kinds() -> Vec<ChangeBody> {
    let id = DelegationId::new(9).expect("24 bits");
    vec![
        account(1),
        grant(terms(1, 1, None)),
        grant(terms(1, 1, Some(9))),
        grant(terms(1, 2, None)),
        revoke(1, None),
        account(2),
        grant(terms(2, 1, None)),
        ChangeBody::Close { principal: principal(2) },
        ChangeBody::Account { principal: principal(1), generation: 40, name: "renamed".into() },
        ChangeBody::WithdrawDelegation { holder: terms(1, 1, None), delegation: (id, None) },
        ChangeBody::Withdraw(terms(1, 2, None)),
        ChangeBody::Invite(invitation(3)),
        ChangeBody::Invite(invitation(4)),
        ChangeBody::Redeem { invitation: InvitationId([3; 8]), holder: [5; 32] },
        ChangeBody::Uninvite(InvitationId([4; 8])),
        ChangeBody::Lift(Revocation { principal: principal(1), delegation: None, epoch: None }),
        grant(terms(3, 1, Some(8))),
        ChangeBody::WithdrawBranch(terms(3, 1, None)),
        revoke(3, Some((NOW >> 12) as u32)),
        sources(3, None, &["198.18.0.0/24", "2001:db8::/48"]),
        sources(3, Some(8), &["192.0.2.0/24"]),
        sources(3, Some(8), &[]),
        // Changed in its place.
        ChangeBody::Grant(Grant { terms: terms(1, 1, None), not_before: NOW, not_after: NOW + 5 }),
    ]
}

/// A key server: a store, and the state that it has of it.
struct Server {
    store: Store,
    state: State,
    position: Position,
}

impl Server {
    async fn start(place: &Location) -> Result<Self, StoreError> {
        let store = Store::create(place, key()).await?;
        let loaded = store.load(&provider(), None).await?;
        Ok(Self { store, state: loaded.state, position: loaded.position })
    }

    async fn follow(&mut self) -> Result<(), StoreError> {
        for recorded in self.store.changes_after(&self.position).await? {
            match recorded.change {
                Some(change) => self.state.apply(&change, &signer().verifying_key()).expect("the next"),
                None => self.state = self.store.load(&provider(), None).await?.state,
            }
            self.position = recorded.position;
        }
        Ok(())
    }

    fn sign(&self, body: ChangeBody) -> Signed<Change> {
        self.state.sign(body, &signer(), UnixTime(NOW * 1_000_000)).expect("possible")
    }

    async fn change(&mut self, body: ChangeBody) -> Result<Appended, StoreError> {
        let change = self.sign(body);
        let effects = self.state.effects(change.object());
        let appended = self.store.append(&self.position, &change, &effects, (self.state.settled(), NOTE)).await?;
        if appended == Appended::Done {
            self.state.apply(&change, &signer().verifying_key()).expect("the next");
            self.position = Position { number: change.object().number, digest: change.digest(), ..self.position };
        }
        Ok(appended)
    }
}

async fn loaded(place: &Location) -> Result<Vec<Row>, StoreError> {
    let store = Store::open(place, key()).await?;
    store.load(&provider(), None).await.map(|loaded| loaded.state.rows())
}

/// Somebody who can read and write the database, and has no key.
struct Attacker(AnyPool);

impl Attacker {
    async fn connect(place: &Location) -> Self {
        sqlx::any::install_default_drivers();
        let uri = match place {
            Location::File(path) => format!("sqlite://{}", path.display()),
            Location::Postgres(uri) => uri.clone(),
        };
        Self(AnyPool::connect(&uri).await.expect("connected"))
    }

    async fn write(&self, sql: &str) -> u64 {
        sqlx::query(sql).execute(&self.0).await.unwrap_or_else(|error| panic!("{sql}: {error}")).rows_affected()
    }

    /// Everything, as `INSERT` statements.
    async fn backup(&self) -> Vec<String> {
        let mut all = Vec::new();
        for table in TABLES {
            for row in sqlx::query(&format!("SELECT * FROM {table}")).fetch_all(&self.0).await.expect("read") {
                let value = |at: usize| -> String {
                    if let Ok(number) = row.try_get::<Option<i64>, _>(at) {
                        return number.map_or("NULL".into(), |number| number.to_string());
                    }
                    if let Ok(text) = row.try_get::<Option<String>, _>(at) {
                        return text.map_or("NULL".into(), |text| format!("'{}'", text.replace('\'', "''")));
                    }
                    let octets: Vec<u8> = row.try_get(at).expect("octets");
                    let hex: String = octets.iter().map(|octet| format!("{octet:02x}")).collect();
                    if self.is_postgres() { format!("'\\x{hex}'") } else { format!("X'{hex}'") }
                };
                let values: Vec<String> = (0..row.len()).map(value).collect();
                all.push(format!("INSERT INTO {table} VALUES ({})", values.join(", ")));
            }
        }
        all
    }

    fn is_postgres(&self) -> bool {
        self.0.connect_options().database_url.scheme().starts_with("postgres")
    }

    async fn restore(&self, backup: &[String]) {
        for table in TABLES {
            self.write(&format!("DELETE FROM {table}")).await;
        }
        for insert in backup {
            self.write(insert).await;
        }
    }
}

pub(crate) async fn what_is_written_is_what_another_loads_after_every_change(place: &Location) {
    let mut server = Server::start(place).await.expect("started");
    for body in all_kinds() {
        assert_eq!(server.change(body.clone()).await, Ok(Appended::Done), "{body:?}");
        assert_eq!(loaded(place).await.expect("sound"), server.state.rows(), "{body:?}");
    }
    let again = Server::start(place).await.expect("started");
    assert_eq!(again.position, server.position);
    // The trail says what was done.
    let all = again.store.changes_after(&Position::default()).await.expect("all");
    let bodies: Vec<ChangeBody> = all.iter().filter_map(|of| Some(of.change.as_ref()?.object().body.clone())).collect();
    assert_eq!(bodies, all_kinds());
    assert!(all.iter().all(|recorded| recorded.actor == "a test" && recorded.issued == NOW));
}

/// What billing knows, and quotas: nobody else sets or ends them, and the trail has them by whose they are.
pub(crate) async fn terms_of_sale_are_kept_as_what_is_granted_is(place: &Location) {
    let mut server = Server::start(place).await.expect("started");
    let (own, granted) = (principal(1), terms(1, 1, Some(9)));
    let billing = |external_id: &str, price: &str| Billing {
        external_id: external_id.to_owned(),
        price: price.to_owned(),
        metadata: vec![Metadata { key: "team".to_owned(), value: "night".to_owned() }],
    };
    let account_of = BillingSubject::account(own);
    let quota = VolumeQuota { soft: Some(5), hard: Some(10) };
    let month = Month::of(NOW).begin();
    let delegate = RatePayer { principal: own, delegation: DelegationId::new(9) };
    let limited = |month_octets| {
        let rate = Some(RateTerms { rate: 5, ..RateTerms::default() });
        ChangeBody::LimitDelegation { payer: delegate, limit: DelegationLimit { rate, month_octets } }
    };
    let bodies = [
        account(1),
        grant(granted),
        ChangeBody::SetBilling { of: account_of, billing: billing("cust-1", "EUR 0.42/TB") },
        ChangeBody::SetBilling { of: BillingSubject::grant(granted), billing: billing("", "gold") },
        ChangeBody::SetBilling { of: account_of, billing: billing("cust-1", "EUR 0.40/TB") },
        ChangeBody::SetQuota { principal: own, quota },
        ChangeBody::UseUpQuota { payer: RatePayer { principal: own, delegation: None }, month },
        account(2),
        ChangeBody::SetQuota { principal: principal(2), quota: VolumeQuota { soft: Some(5), hard: None } },
        ChangeBody::EndQuota { principal: principal(2) },
        limited(Some(2_000)),
        ChangeBody::UseUpQuota { payer: delegate, month },
        ChangeBody::Withdraw(granted),
        // As one: all of them or none.
        ChangeBody::Several(vec![
            grant(granted),
            ChangeBody::SetBilling { of: BillingSubject::grant(granted), billing: billing("", "silver") },
        ]),
        limited(Some(1_000)),
        ChangeBody::UseUpQuota { payer: delegate, month },
    ];
    for body in &bodies {
        assert_eq!(server.change(body.clone()).await, Ok(Appended::Done), "{body:?}");
        assert_eq!(loaded(place).await.expect("sound"), server.state.rows(), "{body:?}");
    }
    assert_eq!(server.state.quota(own).and_then(|status| status.used_up), Some((month, NOW)));
    let of = async |principal| server.store.trail(Some(0), 100, principal).await.expect("read").len();
    assert_eq!((of(Some(1)).await, of(Some(2)).await, of(Some(3)).await, of(None).await), (13, 3, 0, bodies.len()));
    let attacker = Attacker::connect(place).await;
    let backup = attacker.backup().await;
    for (sql, named) in [
        ("UPDATE billing SET price = 'free' WHERE waypoint IS NULL", "table `billing` with principal 1"),
        ("UPDATE billing SET external_id = NULL", "table `billing` with principal 1"),
        ("UPDATE quota SET hard_octets = 9223372036854775807", "table `quota` with principal 1"),
        ("UPDATE quota SET used_up_month = NULL", "table `quota` with principal 1"),
        ("UPDATE delegation_volume SET month_octets = 5000", "table `delegation_volume` with principal 1"),
        ("UPDATE delegation_volume SET used_up_month = NULL", "table `delegation_volume` with principal 1"),
        ("UPDATE delegation_limit SET octets_per_second = 6", "table `delegation_limit` with principal 1"),
    ] {
        assert!(attacker.write(sql).await > 0, "{sql}");
        let refused = loaded(place).await.expect_err(sql);
        assert!(matches!(&refused, StoreError::Row { row, .. } if row.contains(named)), "{sql}: {refused}");
        attacker.restore(&backup).await;
    }
    for sql in ["DELETE FROM quota", "DELETE FROM billing WHERE waypoint IS NULL"] {
        assert_eq!(attacker.write(sql).await, 1, "{sql}");
        assert_eq!(loaded(place).await, Err(StoreError::Rows(bodies.len() as u64)), "{sql}");
        attacker.restore(&backup).await;
    }
    assert_eq!(loaded(place).await.expect("sound again"), server.state.rows());
}

pub(crate) async fn of_two_that_change_at_once_one_follows_and_nothing_is_lost(place: &Location) {
    let mut one = Server::start(place).await.expect("started");
    let mut two = Server::start(place).await.expect("started");
    for number in 0..20 {
        let (first, second) = if number % 2 == 0 { (&mut one, &mut two) } else { (&mut two, &mut one) };
        assert_eq!(first.change(account(number)).await, Ok(Appended::Done));
        assert_eq!(second.change(account(100 + number)).await, Ok(Appended::Others));
        second.follow().await.expect("continued");
        assert_eq!(second.change(account(100 + number)).await, Ok(Appended::Done));
        first.follow().await.expect("continued");
    }
    assert_eq!(one.state.rows(), two.state.rows());
    assert_eq!((one.state.accounts(), loaded(place).await.expect("sound")), (40, one.state.rows()));
    // At once, from two tasks: each is written once, or told of the other.
    let mut done = BTreeMap::new();
    for number in 200..220 {
        let (a, b) = tokio::join!(one.change(account(number)), two.change(account(number + 100)));
        for outcome in [a.expect("answered"), b.expect("answered")] {
            *done.entry(outcome == Appended::Done).or_insert(0) += 1;
        }
        one.follow().await.expect("continued");
        two.follow().await.expect("continued");
    }
    assert_eq!(done[&true], 20, "of each two exactly one");
    assert_eq!(loaded(place).await.expect("sound"), one.state.rows());
}

pub(crate) async fn a_row_that_was_changed_is_refused_by_name(place: &Location) {
    let mut server = Server::start(place).await.expect("started");
    for body in all_kinds() {
        server.change(body).await.expect("written");
    }
    let attacker = Attacker::connect(place).await;
    let backup = attacker.backup().await;
    let flip = if attacker.is_postgres() {
        "set_byte(content, length(content) - 1, (get_byte(content, length(content) - 1) + 1) % 256)"
    } else {
        "CAST(substr(content, 1, length(content) - 1) || X'77' AS BLOB)"
    };
    for (sql, named) in [
        ("UPDATE capability SET not_after = not_after + 1 WHERE principal = 1", "table `capability` with principal 1"),
        ("UPDATE invitation SET change = change + 1 WHERE principal = 3", "table `invitation` with principal 3"),
        ("UPDATE account SET name = 'somebody else' WHERE principal = 3", "table `account` with principal 3"),
        ("UPDATE account SET principal = 77 WHERE principal = 3", "table `account` with principal 77"),
        ("UPDATE invitation SET status = 'open' WHERE principal = 4", "table `invitation` with principal 4"),
        ("UPDATE revocation SET expires_at = NULL WHERE principal = 3", "table `revocation` with principal 3"),
        ("UPDATE source SET prefixes = '0.0.0.0/0' WHERE delegation IS NULL", "table `source` with principal 3"),
        ("UPDATE source SET delegates = 'any' WHERE delegation = 8", "table `source` with principal 3, delegation 8"),
        ("UPDATE change SET actor = 'somebody else' WHERE number = 23", "change 23"),
        ("UPDATE change SET reason = 'another' WHERE number = 19", "change 19"),
        ("UPDATE change SET kind = 'grant' WHERE number = 18", "change 18"),
        (&format!("UPDATE capability SET content = {flip} WHERE principal = 1"), "table `capability`"),
        (&format!("UPDATE change SET content = {flip} WHERE number = 23"), "change 23"),
        (
            "UPDATE account SET id = (SELECT id FROM closed_account) WHERE principal = 3",
            "table `account` with principal 3",
        ),
    ] {
        assert!(attacker.write(sql).await > 0, "{sql}");
        let refused = loaded(place).await.expect_err(sql);
        assert!(matches!(&refused, StoreError::Row { row, .. } if row.contains(named)), "{sql}: {refused}");
        attacker.restore(&backup).await;
    }
    assert_eq!(loaded(place).await.expect("sound again"), server.state.rows());
}

pub(crate) async fn rows_that_are_taken_away_or_brought_back_are_noticed(place: &Location) {
    let mut server = Server::start(place).await.expect("started");
    for body in all_kinds() {
        server.change(body).await.expect("written");
    }
    let attacker = Attacker::connect(place).await;
    let before = attacker.backup().await;
    // A revocation is lifted by nobody, a grant is withdrawn by nobody.
    for sql in [
        "DELETE FROM revocation WHERE principal = 3",
        "DELETE FROM capability WHERE principal = 1",
        "DELETE FROM closed_account",
        "DELETE FROM account WHERE principal = 4",
        "DELETE FROM source WHERE delegation = 8",
    ] {
        if attacker.write(sql).await == 0 {
            continue;
        }
        let noticed = loaded(place).await.expect_err(sql);
        assert!(matches!(noticed, StoreError::Rows(23) | StoreError::State(_)), "{sql}: {noticed}");
        attacker.restore(&before).await;
    }
    // The last change is gone, and all that it did.
    attacker.write("DELETE FROM change WHERE number = 23").await;
    assert_eq!(loaded(place).await, Err(StoreError::Rows(23)));
    attacker.restore(&before).await;
    // What was withdrawn comes back, as a key server wrote it then, alone and with the change that wrote it.
    server.change(ChangeBody::Withdraw(terms(1, 1, None))).await.expect("written");
    let after = attacker.backup().await;
    let of_grant: Vec<&String> = before.iter().filter(|row| row.contains("INTO capability")).collect();
    let brought_back = of_grant.iter().find(|row| !after.contains(row)).expect("the withdrawn one");
    attacker.write(brought_back).await;
    assert_eq!(loaded(place).await, Err(StoreError::Rows(24)));
    attacker.restore(&after).await;
    assert_eq!(loaded(place).await.expect("sound again"), server.state.rows());
    // A row that the key server withdraws, and that somebody took away before, so that it might return later.
    server.change(grant(terms(1, 7, None))).await.expect("written");
    assert_eq!(attacker.write("DELETE FROM capability WHERE waypoint = '198.51.100.7'").await, 1);
    let refused = server.change(ChangeBody::Withdraw(terms(1, 7, None))).await;
    assert!(matches!(&refused, Err(StoreError::Row { what: "it is missing", .. })), "{refused:?}");
}

/// Who starts late judges by the same times as who was there: what one forgets the other does.
pub(crate) async fn who_starts_late_forgets_the_same(place: &Location) {
    let mut server = Server::start(place).await.expect("started");
    let at = |second: u64| UnixTime(second * 1_000_000);
    let late = NOW + 100 * 86_400;
    async fn make(server: &mut Server, body: ChangeBody, now: UnixTime) {
        let change = server.state.sign(body, &signer(), now).expect("possible");
        let effects = server.state.effects(change.object());
        let settled = (server.state.settled(), NOTE);
        assert_eq!(server.store.append(&server.position, &change, &effects, settled).await, Ok(Appended::Done));
        server.state.apply(&change, &signer().verifying_key()).expect("the next");
        server.position = Position { number: change.object().number, digest: change.digest(), ..server.position };
    }
    make(&mut server, account(1), at(NOW)).await;
    make(&mut server, grant(terms(1, 1, None)), at(NOW)).await;
    // It has ended long ago when the rest is done.
    make(&mut server, grant(terms(1, 1, Some(9))), at(NOW)).await;
    for _ in 0..200 {
        make(&mut server, ChangeBody::Account { principal: principal(2), generation: 2, name: "two".into() }, at(NOW))
            .await;
    }
    for _ in 0..150 {
        make(&mut server, ChangeBody::Account { principal: principal(2), generation: 2, name: "two".into() }, at(late))
            .await;
    }
    let mut other = Server::start(place).await.expect("started");
    assert_eq!(other.state.settled(), server.state.settled());
    for number in 0..120 {
        let body = ChangeBody::Account { principal: principal(2), generation: 2, name: format!("two {number}") };
        make(&mut server, body, at(late)).await;
        other.follow().await.expect("continued");
        assert_eq!(other.state.settled(), server.state.settled(), "{number}");
    }
    make(&mut server, grant(terms(1, 2, None)), at(late)).await;
    other.follow().await.expect("continued");
    assert_eq!(other.state.rows(), server.state.rows());
    make(&mut other, ChangeBody::Close { principal: principal(1) }, at(late)).await;
    assert_eq!(loaded(place).await.expect("sound"), other.state.rows());
}

/// A stale row is put into its place just before a key server makes another there: taking it away again must not count for it.
pub(crate) async fn a_row_that_is_brought_back_before_it_is_made_anew_is_refused(place: &Location) {
    let mut server = Server::start(place).await.expect("started");
    server.change(account(1)).await.expect("written");
    server.change(grant(terms(1, 1, None))).await.expect("written");
    let attacker = Attacker::connect(place).await;
    let backup = attacker.backup().await;
    let stale = backup.iter().find(|row| row.contains("INTO capability")).expect("the grant").clone();
    server.change(ChangeBody::Withdraw(terms(1, 1, None))).await.expect("written");
    attacker.write(&stale).await;
    let refused = server.change(grant(terms(1, 1, None))).await;
    assert!(matches!(&refused, Err(StoreError::Row { what, .. }) if what.contains("brought it back")), "{refused:?}");
    attacker.write("DELETE FROM capability").await;
    assert_eq!(server.change(grant(terms(1, 1, None))).await, Ok(Appended::Done));
    server.change(ChangeBody::Withdraw(terms(1, 1, None))).await.expect("written");
    attacker.write(&stale).await;
    assert_eq!(loaded(place).await, Err(StoreError::Rows(server.position.number)));
}

/// The change that a key server saw is put into another history, so that its own is not missed.
pub(crate) async fn a_change_that_was_seen_is_no_proof_of_another_history(place: &Location) {
    let mut server = Server::start(place).await.expect("started");
    server.change(account(1)).await.expect("written");
    let attacker = Attacker::connect(place).await;
    let backup = attacker.backup().await;
    server.change(revoke(1, None)).await.expect("written");
    let seen = server.position;
    let after = attacker.backup().await;
    let of_seen = after.iter().find(|row| row.starts_with("INSERT INTO change VALUES (2,")).expect("the revocation");
    attacker.restore(&backup).await;
    let mut other = Server::start(place).await.expect("started");
    for number in 10..13 {
        other.change(account(number)).await.expect("written");
    }
    assert_eq!(server.store.check(&seen).await, Err(StoreError::Fork(2)));
    attacker.write("DELETE FROM change WHERE number = 2").await;
    attacker.write(of_seen).await;
    assert_eq!(server.store.check(&seen).await, Err(StoreError::Fork(3)));
    assert_eq!(server.follow().await, Err(StoreError::Fork(3)));
    let refused = server.store.load(&provider(), Some(&seen)).await.map(|loaded| loaded.position);
    assert_eq!(refused, Err(StoreError::Fork(3)));
    // Also by who has seen nothing.
    assert_eq!(loaded(place).await, Err(StoreError::Fork(3)));
}

pub(crate) async fn a_database_that_was_set_back_is_refused_until_it_is_adopted(place: &Location) {
    let mut server = Server::start(place).await.expect("started");
    for body in all_kinds() {
        server.change(body).await.expect("written");
    }
    let attacker = Attacker::connect(place).await;
    let backup = attacker.backup().await;
    server.change(revoke(1, None)).await.expect("written");
    server.change(account(50)).await.expect("written");
    let seen = server.position;
    attacker.restore(&backup).await;
    // It is sound by itself, and behind.
    assert!(loaded(place).await.is_ok());
    let behind = StoreError::Behind { held: 25, got: 23 };
    assert_eq!(server.store.check(&seen).await, Err(behind.clone()));
    assert_eq!(server.follow().await, Err(behind.clone()));
    assert_eq!(server.change(account(51)).await, Err(behind));
    // Another went on from there, below what was seen and above it.
    let mut other = Server::start(place).await.expect("started");
    for number in 60..64 {
        other.change(account(number)).await.expect("written");
    }
    assert_eq!(server.store.check(&seen).await, Err(StoreError::Fork(25)));
    assert_eq!(server.follow().await, Err(StoreError::Fork(25)));
    // An operator accepts it: all go on above what any has seen.
    let other_seen = other.position;
    let note = Note { actor: "an operator", reason: "the disk was lost" };
    let adopted = other.store.adopt(&provider(), (Some(seen), NOW), note).await.expect("adopted");
    assert!(adopted.number > seen.number && adopted.timeline == 1, "{adopted:?}");
    for seen in [seen, other_seen, adopted] {
        assert_eq!(server.store.check(&seen).await, Ok(()));
    }
    for server in [&mut server, &mut other] {
        server.follow().await.expect("followed to the new timeline");
        assert_eq!((server.position, server.state.number()), (adopted, adopted.number));
    }
    assert_eq!(server.state.rows(), other.state.rows());
    assert_eq!(server.change(account(70)).await, Ok(Appended::Done));
    other.follow().await.expect("continued");
    assert_eq!(loaded(place).await.expect("sound"), other.state.rows());
    // The one before the adoption is refused by whoever saw the adoption, and may be adopted in its turn.
    attacker.restore(&backup).await;
    let refused = server.store.check(&server.position).await;
    assert_eq!(refused, Err(StoreError::Behind { held: adopted.number + 1, got: 23 }));
    let again = server.store.adopt(&provider(), (Some(server.position), NOW), note).await.expect("adopted");
    assert_eq!(again.timeline, 2);
    server.follow().await.expect("followed");
    assert_eq!(server.change(account(71)).await, Ok(Appended::Done));
    assert_eq!(loaded(place).await.expect("sound"), server.state.rows());
}

pub(crate) async fn revocations_that_have_expired_leave_the_database(place: &Location) {
    let mut server = Server::start(place).await.expect("started");
    server.change(account(1)).await.expect("written");
    for epoch in 0..40 {
        server.change(revoke(1, Some(epoch))).await.expect("written");
    }
    // Each change takes some away, and those that the principal's own changes know of.
    server.change(account(2)).await.expect("written");
    let attacker = Attacker::connect(place).await;
    let left = sqlx::query("SELECT COUNT(*) FROM revocation").fetch_one(&attacker.0).await.expect("read");
    assert_eq!(left.get::<i64, _>(0), 0);
    assert_eq!(loaded(place).await.map(|rows| rows.len()), Ok(2));
}

pub(crate) async fn another_providers_key_opens_nothing(place: &Location) {
    let mut server = Server::start(place).await.expect("started");
    server.change(account(1)).await.expect("written");
    let other = ProviderKey::new(Seed::new([9; 32]));
    let store = Store::open(place, StoreKey::new(other.store_key())).await.expect("connected");
    let refused = store.load(&other, None).await.map(|loaded| loaded.position);
    assert!(matches!(&refused, Err(StoreError::Row { row, .. }) if row == "change 1"), "{refused:?}");
}
