//! The settings that are one of a few words.

use super::values::Word;
use super::{AgeFrom, IgnoreWord, NoneWord, Refuses, ScopePart};
use crate::fingerprint::Input;
use crate::keep::Keep;
use crate::key::{Presence, Syntax};
use crate::problem::render::Form;
use crate::profile::{
    Anchor, Charge, FailedKey, Generator, GiveUp, Lane, OnError, OnUnknown, Reducer, Reveal,
};
use crate::record::Guarantee;
use crate::staleness::Submitted;

macro_rules! words {
    ($($type:ty { $($word:literal $value:expr),* $(,)? })*) => {
        $(impl Word for $type { const WORDS: &'static [(&'static str, Self)] = &[$(($word, $value)),*]; })*
    };
}

words! {
    Guarantee { "atomic" Guarantee::Atomic, "fenced" Guarantee::Fenced }
    Presence { "required" Presence::Required, "optional" Presence::Optional, "mint" Presence::Mint }
    Syntax { "bare" Syntax::Bare, "sf-string" Syntax::SfString, "both" Syntax::Both }
    ScopePart { "tenant" ScopePart::Tenant, "principal" ScopePart::Principal, "endpoint" ScopePart::Endpoint }
    NoneWord { "none" NoneWord }
    IgnoreWord { "ignore" IgnoreWord }
    Input {
        "method" Input::Method, "route" Input::Route, "params" Input::Params, "query" Input::Query,
        "principal" Input::Principal, "body" Input::Body,
    }
    Reveal { "none" Reveal::None, "prefix8" Reveal::Prefix8, "payload-hashes" Reveal::PayloadHashes }
    OnUnknown { "hold" OnUnknown::Hold, "forward" OnUnknown::Forward, "rerun" OnUnknown::Rerun }
    OnError { "replay" OnError::Replay, "release" OnError::Release }
    Keep { "settle" Keep::Settle, "release" Keep::Release }
    FailedKey { "reclaim" FailedKey::Reclaim, "sealed" FailedKey::Sealed }
    Anchor { "created" Anchor::Created, "settled" Anchor::Settled }
    Refuses { "unknown" Refuses::Unknown, "all" Refuses::All }
    Submitted { "ignore" Submitted::Ignore, "refuse" Submitted::Refuse, "correct" Submitted::Correct }
    Charge { "new-key" Charge::NewKey, "id-window" Charge::IdWindow }
    Generator { "uuid4" Generator::Uuid4, "uuid4-millis" Generator::Uuid4Millis, "ulid" Generator::Ulid }
    GiveUp { "dead" GiveUp::Dead, "drop" GiveUp::Drop }
    Lane {
        "fifo" Lane::Fifo, "independent" Lane::Independent, "sum" Lane::Coalesce(Reducer::Sum),
        "last" Lane::Coalesce(Reducer::Last), "max" Lane::Coalesce(Reducer::Max),
    }
    Reducer { "sum" Reducer::Sum, "last" Reducer::Last, "max" Reducer::Max }
    AgeFrom { "none" AgeFrom::None, "header" AgeFrom::Header, "uuid7" AgeFrom::Uuid7 }
}

impl Word for Form {
    const WORDS: &'static [(&'static str, Self)] = &Form::ALL;
}
