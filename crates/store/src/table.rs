//! Which table a kind of row is in, and what its columns say for people.

use wayleave_control::capability::{Grant, InvitationStatus, QuotaStatus, Row, RowKey, RowKind};
use wayleave_packet::platypus::header::Delegation;

/// A column's value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Column {
    Number(Option<i64>),
    Text(Option<String>),
}

impl Column {
    fn number(value: impl Into<u64>) -> Self {
        Self::Number(Some(signed(value.into())))
    }

    fn text(value: impl ToString) -> Self {
        Self::Text(Some(value.to_string()))
    }
}

/// A number as a database has it: what is beyond its largest one is that.
pub(crate) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// A table of rows.
pub(crate) struct Table {
    pub name: &'static str,
    /// Those that only say what `content` says.
    pub columns: &'static [&'static str],
}

/// The columns of a rate, and of a limit.
const RATE: &[&str] = &["principal", "delegation", "octets_per_second", "burst_octets", "offline"];

/// The table of a kind.
pub(crate) fn table(kind: RowKind) -> Table {
    let (name, columns): (_, &[_]) = match kind {
        RowKind::Closed => ("closed_account", &["principal", "generation"]),
        RowKind::Account => ("account", &["principal", "name", "generation"]),
        RowKind::Grant => (
            "capability",
            &[
                "principal",
                "waypoint",
                "epoch_exponent",
                "delegation",
                "sub_delegation",
                "destinations",
                "not_before",
                "not_after",
            ],
        ),
        RowKind::Revocation => ("revocation", &["principal", "delegation", "sub_delegation", "expires_at"]),
        RowKind::Invitation => ("invitation", &["principal", "name", "status", "not_after"]),
        RowKind::Reopened => ("reopening", &["principal", "generation", "reopened_at"]),
        RowKind::Withdrawn => ("withdrawn_secret", &["principal", "epoch_exponent", "good_until"]),
        RowKind::Rate => ("rate", RATE),
        RowKind::Sources => ("source", &["principal", "delegation", "prefixes", "delegates"]),
        RowKind::Billing => ("billing", &["principal", "waypoint", "delegation", "external_id", "price"]),
        RowKind::Quota => ("quota", &["principal", "soft_octets", "hard_octets", "used_up_month"]),
        RowKind::Limit => ("delegation_limit", RATE),
        RowKind::Volume => ("delegation_volume", &["principal", "delegation", "month_octets", "used_up_month"]),
    };
    Table { name, columns }
}

/// What the columns of a row say, in the order of [`Table::columns`].
pub(crate) fn columns(row: &Row) -> Vec<Column> {
    let principal = Column::number(row.principal().number());
    match row {
        Row::Closed { generation, .. } => vec![principal, Column::number(*generation)],
        Row::Account { generation, name, .. } => vec![principal, Column::text(name), Column::number(*generation)],
        Row::Grant(Grant { terms, not_before, not_after }) => {
            let of = |read: &dyn Fn(Delegation) -> Option<i64>| Column::Number(terms.delegation.and_then(read));
            vec![
                principal,
                Column::text(terms.waypoint),
                Column::number(terms.interval.exponent()),
                of(&|delegation| Some(delegation.id.number().into())),
                of(&|delegation| delegation.sub.map(|sub| sub.id.number().into())),
                Column::Text(terms.delegation.map(|delegation| delegation.prefix.to_string())),
                Column::number(*not_before),
                Column::number(*not_after),
            ]
        }
        Row::Revocation(revocation) => {
            let (id, sub) = revocation.delegation.unzip();
            vec![
                principal,
                Column::Number(id.map(|id| id.number().into())),
                Column::Number(sub.flatten().map(|sub| sub.number().into())),
                Column::Number(revocation.expires_at().map(signed)),
            ]
        }
        Row::Invitation { invitation, status } => {
            let status = match status {
                InvitationStatus::Open => "open",
                InvitationStatus::Redeemed { .. } => "redeemed",
                InvitationStatus::Withdrawn => "withdrawn",
            };
            let (name, not_after) = (Column::text(&invitation.name), Column::number(invitation.not_after));
            vec![principal, name, Column::text(status), not_after]
        }
        Row::Reopened { generation, at, .. } => vec![principal, Column::number(*generation), Column::number(*at)],
        Row::Withdrawn { interval, until, .. } => {
            vec![principal, Column::number(interval.exponent()), Column::number(*until)]
        }
        Row::Rate { payer, terms } | Row::Limit { payer, terms } => vec![
            principal,
            Column::Number(payer.delegation.map(|id| id.number().into())),
            Column::number(terms.rate),
            Column::Number(Some(terms.burst).filter(|burst| *burst > 0).map(signed)),
            Column::text(terms.offline.name()),
        ],
        Row::Sources(sources) => {
            let prefixes: Vec<String> = sources.prefixes.iter().map(ToString::to_string).collect();
            vec![
                principal,
                Column::Number(sources.delegation.map(|id| id.number().into())),
                Column::text(prefixes.join(" ")),
                Column::text(if sources.delegates_any { "any" } else { "own" }),
            ]
        }
        Row::Billing { of, record } => {
            let text = |text: String| Column::Text(Some(text).filter(|text| !text.is_empty()));
            let present = record.present();
            vec![
                principal,
                Column::Text(of.grant.map(|terms| terms.waypoint.to_string())),
                Column::Number(of.grant.and_then(|terms| Some(terms.delegation?.id.number().into()))),
                text(present.external_id),
                text(present.price),
            ]
        }
        Row::Quota { status: QuotaStatus { quota, used_up, .. }, .. } => vec![
            principal,
            Column::Number(quota.soft.map(signed)),
            Column::Number(quota.hard.map(signed)),
            Column::Number(used_up.map(|(month, _)| signed(month))),
        ],
        Row::Volume { payer, status: QuotaStatus { quota, used_up, .. } } => vec![
            principal,
            Column::Number(payer.delegation.map(|id| id.number().into())),
            Column::Number(quota.hard.map(signed)),
            Column::Number(used_up.map(|(month, _)| signed(month))),
        ],
    }
}

/// A row for a message, by what people know of it.
pub(crate) fn name_of(kind: RowKind, values: &[Column]) -> String {
    let Table { name, columns } = table(kind);
    let shown = columns.iter().zip(values).filter_map(|(column, value)| match value {
        Column::Number(value) => value.map(|value| format!("{column} {value}")),
        Column::Text(value) => value.as_ref().map(|value| format!("{column} {}", value.escape_debug())),
    });
    format!("the row of table `{name}` with {}", shown.take(4).collect::<Vec<_>>().join(", "))
}

/// The same of a row that is known by its key alone.
pub(crate) fn name_of_key(key: &RowKey) -> String {
    let id: String = key.id.iter().map(|octet| format!("{octet:02x}")).collect();
    format!("the row of table `{}` with id {id}", table(key.kind).name)
}
