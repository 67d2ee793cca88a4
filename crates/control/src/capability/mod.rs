//! Platypus capabilities as people hold them: accounts at a key server, and the temporal secrets that it answers by DNS.
//!
//! B. Raghavan, A. C. Snoeren: "A System for Authenticated Policy-Compliant Routing", SIGCOMM 2004, section 4.1. A holder has a
//! [`Credential`]: what the capability says, its master key (`c_k`), and the zone of the key server. [`Lookup`] asks for the
//! temporal secret of one key epoch; the name that it asks for has the full epoch and a [`Handle`] that nobody but the holder
//! and the server can link with another epoch's. The answer is sealed under the master key for the capability, the epoch and the
//! zone, so that a resolver that keeps, changes or repeats answers can only withhold one. `docs/wire/capabilities.md` says where
//! every octet lies.

mod answer;
mod billing;
mod channel;
mod charged;
mod codecs;
mod cookie;
mod credential;
mod dns;
mod holder;
mod index;
mod invitation;
mod invitation_line;
mod keys;
mod lookup;
mod message;
mod name;
mod order_limits;
mod percentile;
mod plain_question;
mod policy;
mod position;
mod rate_limit;
mod redemption;
mod refusals;
mod renewal;
mod request;
mod router_client;
mod router_server;
mod sealed;
mod server;
mod state;
mod statement;
mod terms;
mod usage;
mod volume_quota;
mod zone;

pub use answer::{Answer, Denial, EpochSecret, OpenError, SEALED};
pub use billing::{
    Billing, BillingRecord, BillingSubject, MAX_BILLED, MAX_EXTERNAL_ID, MAX_METADATA, MAX_METADATA_KEY,
    MAX_METADATA_VALUE, MAX_PRICE, Metadata, PriceSince, PriceTag, SET_PRICES,
};
pub use channel::{ChannelMessage, ChargedAccount, MAX_LIST, MAX_MESSAGE, MAX_RATES, RatePayer, RateTerms, SharedRate};
pub use charged::Month;
pub use credential::{Credential, CredentialError, PREFIX};
pub use holder::{
    CapabilityStatus, DelegationPage, HeldDelegation, HolderContent, HolderReport, HolderUsage, PAGE_DELEGATIONS,
};
pub use invitation::{
    BadInvitationId, Invitation, InvitationError, InvitationId, InvitationStatus, MAX_INVITATIONS, MAX_INVITED,
    MAX_NAME, REMEMBERED,
};
pub use invitation_line::{ApiUrl, BadApiUrl, INVITATION_PREFIX, InvitationLine, InvitationLineError, MAX_URL};
pub use keys::{AccountKey, Handle, MasterKey, ProviderKey};
pub use lookup::{Lookup, LookupConfig, LookupEvent, LookupFailure, LookupInput, LookupOutput, Obtained};
pub use message::{MAX_UDP, Reply, ReplyError};
pub use name::{LookupName, NameError, RequestName};
pub use percentile::{Percentile, SAMPLE_SECS, discarded_samples, samples};
pub use policy::{LookupPolicy, LookupPolicyError, LookupRule, MAX_RULES};
pub use position::Position;
pub use rate_limit::{RateLimit, Verdict};
pub use redemption::{Redemption, RedemptionRefusal, RedemptionRequest};
pub use refusals::{HeldRefusals, MAX_REFUSED, PayerRefusals, RefusalReason, RefusalReport, RefusedPackets};
pub use renewal::Renewal;
pub use request::{
    ACKNOWLEDGEMENT, Acknowledgement, Order, OrderedPrefixes, Ordering, Request, SignedRequest, Status, WINDOW,
    delegated, revocation,
};
pub use router_client::{RouterClient, RouterClientEvent, ServerFault};
pub use router_server::{
    RouterEvent, RouterServer, RouterServerConfig, RouterServerInput, RouterServerOutput, RouterStatus, UsageChange,
};
pub use server::{
    BadNameServer, Client, KeyServer, KeyServerConfig, NameServer, PendingOrder, PendingStatus, Served, ServerCounters,
    Transport,
};
pub use state::{
    Change, ChangeBody, ChangeError, ChangeTimes, ChangesEnd, DELEGATES_GRANTS, DELEGATES_REVOKED, Grant, MAX_GRANTS,
    MAX_LIMITS, MAX_REVOCATIONS, MAX_REVOKED, MAX_SEVERAL, MAX_WAYPOINTS, OPERATOR_GRANTS, PRINCIPAL_LIMITS,
    PRINCIPAL_SOURCES, PRINCIPAL_VOLUMES, Row, RowEffects, RowError, RowKey, RowKind, SnapshotError, SnapshotHead,
    State, TIMES,
};
pub use statement::{MAX_LINES, MAX_PERCENTILES, MAX_PRICE_TAGS, Statement, StatementGap, StatementLine};
pub use terms::Terms;
pub use usage::{
    Accepted, AccountPeriods, Calendar, Fold, JournalId, Ledger, MAX_ENTRIES, MAX_JOURNALS, Reopening, ReportOutcome,
    Reporter, RouterNumber, Usage, UsageAnswer, UsagePage, UsageRecord, UsageRefusal, UsageReport,
};
pub use volume_quota::{DelegationLimit, MAX_QUOTAS, QuotaState, QuotaStatus, VolumeQuota};
pub use zone::{MAX_ZONE, Zone, ZoneError};
