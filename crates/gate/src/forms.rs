//! Which forms the records of this gate may have, beside those that its routes have now. Registers the gate's own forms
//! before the first claim in them, asks again once a minute, and refuses to go on where a former form cannot be read.
//!
//! A key is looked up in every former form whose records may still live, before its claim and again after it. So two gates
//! of different configuration exclude each other as soon as each knows the other's form: each claims, then looks. A gate
//! that does not know a form yet cannot look for it. Therefore, where several processes share a store, a gate claims in the
//! form that others still claim in, until none has done so for a while.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use http::request::Parts;
use semel_contract::identity::Identity;
use semel_contract::problem::{Kind, Problem};
use semel_contract::time::Timestamp;
use semel_store::clock::Clock;
use semel_store::{ClaimStore, FORM_PAUSE, Filter, KnownForm, StoreError};

use crate::form::Form;
use crate::identity::{Identify, Verified};
use crate::measure::{Call, StoreMeters};
use crate::problems::store_away;
use crate::route::Route;

/// What is known of the forms is asked again after so long.
const FRESH: Duration = Duration::from_secs(60);
/// With what was asked longer ago nothing is claimed: less than a form's pause, with room for a claim's lease.
const USABLE: Duration = Duration::from_secs(120);
/// A claim that was won with what was asked longer ago is given up: the process was held up meanwhile, and others may have
/// turned to a form that it does not know. Less than a form's pause, by more than two clocks drift apart.
const CLAIMED_WITHIN: Duration = Duration::from_secs(240);
/// For so long after an upgrade processes of the release before, which register nothing, may still claim.
const UPGRADE: Duration = Duration::from_secs(3600);
/// A form stays of interest for so long after its records have expired.
const MARGIN: Duration = Duration::from_secs(3600);
/// Under this name it is kept whether the release before has written to a store, and until when it may have: the names of
/// gates are addresses, or chosen.
const EVERY_GATE: &str = "*";
/// The last word of the name under which a gate's secrets are known.
const SECRETS: &str = "secrets";
/// The store was empty when forms were first registered in it.
const BEGUN_EMPTY: &str = "begun-empty";
/// The store had records then: a release that registered no forms has written them.
const BEGUN_USED: &str = "begun-used";
/// What is kept under that name is kept for good.
const FOR_GOOD: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
/// The identity of a gate without configuration.
const WITHOUT_CONFIGURATION: &str = "authorization";

/// What is known of the forms of one gate.
pub(crate) struct Forms {
    store: Arc<dyn ClaimStore>,
    clock: Arc<dyn Clock>,
    routes: Vec<Arc<Route>>,
    /// Who identifies callers, where a route has nobody of its own.
    identity: Arc<dyn Identify>,
    told: Told,
    view: RwLock<Option<Arc<View>>>,
    asking: tokio::sync::Mutex<()>,
}

/// What is said about forms when a gate is built.
#[derive(Default)]
pub(crate) struct Told {
    /// The name under which this gate's forms are kept.
    pub(crate) gate: String,
    /// Whether former forms are not looked up, in so many words.
    pub(crate) forgets: bool,
    pub(crate) by_host: bool,
    /// Identities that former records may have been made with, beside the present ones.
    pub(crate) was_identities: Vec<Arc<dyn Identify>>,
    /// What stands for the secrets of fingerprints, that which new ones are keyed with first.
    pub(crate) secrets: Vec<String>,
    /// Names under which other forms of the same keys are kept.
    pub(crate) also: Vec<String>,
    /// Whether nothing is known of a release that registered no forms.
    pub(crate) only_registered: bool,
}

/// What is known of the forms at one moment.
pub(crate) struct View {
    /// When it was asked, by the clock that only ticks.
    pub(crate) asked_at: Duration,
    /// For each route, the former forms of its requests.
    formers: Vec<(Arc<Route>, Vec<FormerForm>)>,
    is_quiet: bool,
}

/// A form in which a route's requests may be recorded.
pub(crate) struct FormerForm {
    pub(crate) form: Form,
    /// Who identified its callers, where that is not who does now.
    callers: Option<Arc<dyn Identify>>,
    /// Whether it is the form to claim in.
    pub(crate) leads: bool,
}

/// A former form and who the caller is in it.
pub(crate) type FormerCaller<'a> = (&'a FormerForm, Option<Verified>);

/// Why it is not known which forms there are.
pub(crate) enum NotKnown {
    /// The store did not answer.
    Away(StoreError),
    /// A former form cannot be read by this configuration; says what to write.
    Unreadable(String),
}

impl From<StoreError> for NotKnown {
    fn from(error: StoreError) -> Self {
        NotKnown::Away(error)
    }
}

impl Forms {
    pub(crate) fn new(
        told: Told,
        store: Arc<dyn ClaimStore>,
        clock: Arc<dyn Clock>,
        routes: Vec<Arc<Route>>,
        identity: Arc<dyn Identify>,
    ) -> Self {
        Self { store, clock, routes, identity, told, view: RwLock::default(), asking: Default::default() }
    }

    /// What is said about forms.
    pub(crate) fn told(&self) -> &Told {
        &self.told
    }

    /// Other forms in the same store, of one route.
    pub(crate) fn beside(&self, told: Told, route: &Arc<Route>, identity: Arc<dyn Identify>) -> Self {
        Self::new(told, Arc::clone(&self.store), Arc::clone(&self.clock), vec![Arc::clone(route)], identity)
    }

    /// Whether the host counts.
    pub(crate) fn is_by_host(&self) -> bool {
        self.told.by_host
    }

    /// Who identifies the callers of a route.
    fn identity<'a>(&'a self, route: &'a Route) -> &'a Arc<dyn Identify> {
        route.callers.as_ref().map_or(&self.identity, |callers| &callers.0)
    }

    fn seen(&self) -> Option<Arc<View>> {
        self.view.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What is known, at most as old as a claim allows. One asks for all who wait.
    pub(crate) async fn view(&self, meters: &StoreMeters) -> Result<Arc<View>, Problem> {
        let seen = self.seen();
        let now = self.clock.read().ticks;
        let age = |view: &View| now.saturating_sub(view.asked_at);
        match seen {
            Some(view) if age(&view) < FRESH => Ok(view),
            other => Box::pin(self.ask_in_turn(meters, other.filter(|view| age(view) < USABLE))).await,
        }
    }

    /// Whether what was asked then is too old for a claim that was won now.
    pub(crate) fn is_outdated(&self, as_of: Duration) -> bool {
        self.clock.read().ticks.saturating_sub(as_of) > CLAIMED_WITHIN
    }

    /// Asks, unless somebody else does and what was known before is still good enough.
    async fn ask_in_turn(
        &self,
        meters: &StoreMeters,
        usable: Option<Arc<View>>,
    ) -> Result<Arc<View>, Problem> {
        let _turn = match (self.asking.try_lock(), &usable) {
            (Ok(turn), _) => turn,
            (Err(_), Some(view)) => return Ok(Arc::clone(view)),
            (Err(_), None) => self.asking.lock().await,
        };
        let now = self.clock.read().ticks;
        if let Some(view) = self.seen().filter(|view| now.saturating_sub(view.asked_at) < FRESH) {
            return Ok(view);
        }
        match (self.ask(meters).await, usable) {
            (Ok(view), _) | (Err(_), Some(view)) => Ok(view),
            (Err(NotKnown::Away(error)), None) => Err(store_away(&error)),
            (Err(NotKnown::Unreadable(why)), None) => {
                tracing::error!("{why}");
                let detail = "the gate's configuration was changed and does not say how former keys are read";
                Err(Problem::new(Kind::Overloaded, detail).retry_after(Duration::from_secs(60)))
            }
        }
    }

    /// Registers the gate's own forms and learns of the others.
    pub(crate) async fn ask(&self, meters: &StoreMeters) -> Result<Arc<View>, NotKnown> {
        let asked_at = self.clock.read().ticks;
        let own = self.own();
        let mut forms: Vec<_> =
            own.iter().map(|(route, form)| registered(form, route, Duration::ZERO)).collect();
        if self.seen().is_none() {
            // Before anything is registered: a gate that may not start must not stand in the way of those that run.
            self.check(&own).await?;
            self.check_secrets().await?;
            forms.extend(self.assumed(&own).await?);
        }
        self.register_secret(&own).await?;
        // Each once, for as long as its longest-lived records: two routes may have had one form.
        forms.sort_by(|a, b| (&a.text, b.kept).cmp(&(&b.text, a.kept)));
        forms.dedup_by(|a, b| a.text == b.text);
        let asked = self.store.register_forms(&self.told.gate, &forms);
        let mut found = meters.time(Call::Forms, asked).await?;
        for gate in &self.told.also {
            found.known.extend(self.store.register_forms(gate, &[]).await?.known);
        }
        let several = !self.store.lookup_is_local();
        let mut formers = Vec::new();
        for (route, form) in &own {
            let of_route = match self.told.forgets {
                true => Vec::new(),
                false => self.formers_of(form, &own, (&found.known, found.now), several)?,
            };
            formers.push((Arc::clone(route), of_route));
        }
        let is_quiet = formers.iter().all(|(_, formers)| formers.is_empty());
        let view = Arc::new(View { asked_at, formers, is_quiet });
        *self.view.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&view));
        Ok(view)
    }

    /// The forms of the gate's routes.
    fn own(&self) -> Vec<(Arc<Route>, Form)> {
        let form = |(at, route): (usize, &Arc<Route>)| {
            let identity = self.identity(route).describe();
            let form = Form::of(route, &identity, self.told.by_host);
            (Arc::clone(route), form.beside(self.routes[..at].iter().map(|route| &**route)))
        };
        // In the order in which they are asked.
        self.routes.iter().enumerate().map(form).collect()
    }

    /// Refuses where a form that others have registered cannot be read.
    async fn check(&self, own: &[(Arc<Route>, Form)]) -> Result<(), NotKnown> {
        if self.told.forgets {
            return Ok(());
        }
        let found = self.store.register_forms(&self.told.gate, &[]).await?;
        let is_own = |known: &KnownForm| own.iter().any(|(_, form)| form.text() == known.text);
        let lives = |known: &KnownForm| known.last_at.plus(known.kept).plus(MARGIN) > found.now;
        for other in found.known.iter().filter(|known| !is_own(known) && lives(known)) {
            let former = Form::parse(&other.text).ok_or_else(|| of_a_later_release(other))?;
            self.callers(&former, own, other)?;
        }
        Ok(())
    }

    /// Under this name it is kept which secrets the fingerprints of records may be keyed with.
    fn secrets_of(&self) -> String {
        format!("{} {SECRETS}", self.told.gate)
    }

    /// Refuses where fingerprints are keyed with a secret that this gate does not have: it would take their requests for
    /// others.
    async fn check_secrets(&self) -> Result<(), NotKnown> {
        if self.told.forgets || self.told.only_registered {
            return Ok(());
        }
        let found = self.store.register_forms(&self.secrets_of(), &[]).await?;
        let until = |known: &KnownForm| known.last_at.plus(known.kept).plus(MARGIN);
        let is_gone =
            |known: &&KnownForm| !self.told.secrets.contains(&known.text) && until(known) > found.now;
        match found.known.iter().filter(is_gone).map(until).max() {
            None => Ok(()),
            Some(until) => Err(NotKnown::Unreadable(format!(
                "until {until} there may be records whose fingerprints are keyed with a secret that was taken out: put it back \
                 into gate.fingerprint_keys, behind the one that counts from now on, or say gate.forget_former = true to have \
                 their requests taken for others"
            ))),
        }
    }

    /// Writes down, before anything is claimed, which secret new fingerprints are keyed with.
    async fn register_secret(&self, own: &[(Arc<Route>, Form)]) -> Result<(), NotKnown> {
        let longest = own.iter().map(|(route, _)| route.profile.lifetime.record()).max();
        if let Some((secret, kept)) = self.told.secrets.first().zip(longest) {
            let form = semel_store::Form { text: secret.clone(), kept, ahead: Duration::ZERO };
            self.store.register_forms(&self.secrets_of(), &[form]).await?;
        }
        Ok(())
    }

    /// Forms that are not registered because the release that used them registered none: those of the present routes
    /// without hosts, and that of a gate without configuration. For an hour after the upgrade others may still claim in them.
    async fn assumed(&self, own: &[(Arc<Route>, Form)]) -> Result<Vec<semel_store::Form>, StoreError> {
        if self.told.only_registered {
            return Ok(Vec::new());
        }
        let is_new = self.store.register_forms(&self.told.gate, &[]).await?.known.is_empty();
        let Some((begun, now)) = self.begun_used().await?.filter(|_| is_new) else {
            return Ok(Vec::new());
        };
        let Some((first, _)) = own.iter().max_by_key(|(route, _)| route.profile.lifetime.record()) else {
            return Ok(Vec::new());
        };
        let upgraded = begun.plus(UPGRADE);
        if upgraded.plus(first.profile.lifetime.record()).plus(MARGIN) < now {
            return Ok(Vec::new());
        }
        let ahead = Duration::from_millis(u64::try_from(upgraded.millis_since(now)).unwrap_or(0));
        let before = own.iter().map(|(route, form)| registered(&form.clone().without_host(), route, ahead));
        let mut assumed: Vec<_> = before.collect();
        let unconfigured = unconfigured();
        if assumed.iter().all(|form| form.text != unconfigured.text()) {
            assumed.push(registered(&unconfigured.guessed(), first, ahead));
        }
        assumed.retain(|form| own.iter().all(|(_, own)| own.text() != form.text));
        Ok(assumed)
    }

    /// When forms were first registered in a store that had been used before, and the time now. `None` where the store was
    /// empty then: every record in it is of a release that registers its forms.
    async fn begun_used(&self) -> Result<Option<(Timestamp, Timestamp)>, StoreError> {
        let mut found = self.store.register_forms(EVERY_GATE, &[]).await?;
        if found.known.is_empty() {
            let any = Filter { limit: 1, ..Filter::default() };
            let text = if self.store.list(&any).await?.is_empty() { BEGUN_EMPTY } else { BEGUN_USED };
            let begun = semel_store::Form { text: text.to_owned(), kept: FOR_GOOD, ahead: Duration::ZERO };
            found = self.store.register_forms(EVERY_GATE, &[begun]).await?;
        }
        // Two gates may have begun at the same moment: the one that saw no record is right.
        let at = |text: &str| found.known.iter().find(|known| known.text == text).map(|known| known.first_at);
        Ok(at(BEGUN_USED).filter(|_| at(BEGUN_EMPTY).is_none()).map(|begun| (begun, found.now)))
    }

    /// The former forms of one route's requests.
    fn formers_of(
        &self,
        form: &Form,
        own: &[(Arc<Route>, Form)],
        (known, now): (&[KnownForm], Timestamp),
        several: bool,
    ) -> Result<Vec<FormerForm>, NotKnown> {
        let text = form.text();
        let Some(current) = known.iter().find(|known| known.text == text) else { return Ok(Vec::new()) };
        let mut formers = Vec::new();
        for other in known.iter().filter(|other| other.text != text) {
            let is_own = own.iter().any(|(_, form)| form.text() == other.text);
            if !may_live(other, is_own, current, now) {
                continue;
            }
            // While this gate claims, one that came later claims in this gate's form, and need not be understood. Of two that
            // came at the same moment exactly one has to be the later one.
            let is_later = several && (other.since, &other.text) > (current.since, &current.text);
            let former = match Form::parse(&other.text) {
                Some(former) => former,
                None if is_later => continue,
                None => return Err(of_a_later_release(other)),
            };
            if !former.pattern().overlaps(form.pattern()) {
                continue;
            }
            let callers = match former.identity == form.identity {
                true => None,
                false => match self.callers(&former, own, other) {
                    Ok(callers) => Some(callers),
                    Err(_) if is_later => continue,
                    Err(unreadable) => return Err(unreadable),
                },
            };
            let lives = now.minus(FORM_PAUSE) < other.last_at;
            let leads = several && !is_own && !former.is_guess && lives && !is_later;
            formers.push(FormerForm { form: former, callers, leads });
        }
        Ok(formers)
    }

    /// Who identified the callers of a former form.
    fn callers(
        &self,
        former: &Form,
        own: &[(Arc<Route>, Form)],
        known: &KnownForm,
    ) -> Result<Arc<dyn Identify>, NotKnown> {
        if let Some(was) = self.told.was_identities.iter().find(|was| was.describe() == former.identity) {
            return Ok(Arc::clone(was));
        }
        if let Some((route, _)) = own.iter().find(|(_, form)| form.identity == former.identity) {
            return Ok(Arc::clone(self.identity(route)));
        }
        match former.identity.parse::<Identity>() {
            // What a client shows of itself, and only it can show.
            Ok(identity @ (Identity::Authorization | Identity::Cookie(_) | Identity::Shared(_))) => {
                tracing::warn!(
                    identity = former.identity,
                    route = %former.pattern(),
                    "keys that were used with another identity are known on requests that still carry it"
                );
                Ok(Arc::new(identity))
            }
            Ok(Identity::Trusted(_) | Identity::Jwt(_) | Identity::Check(_)) | Err(_) => {
                Err(NotKnown::Unreadable(format!(
                    "until {} there may be records of {} whose callers were identified by `{}`, which this configuration does \
                     not read: say gate.was_identity = [\"{}\"] to have them looked up on requests that still carry it (only \
                     where nobody else can set it), or gate.forget_former = true to let their keys run again",
                    known.last_at.plus(known.kept),
                    former.pattern(),
                    former.identity,
                    former.identity,
                )))
            }
        }
    }
}

impl FormerForm {
    /// Who the caller is in this form, where that can be told.
    pub(crate) async fn caller(&self, parts: &Parts, verified: &Verified) -> Option<Verified> {
        let caller = match &self.callers {
            None => Some(verified.clone()),
            Some(callers) => callers.identify(parts).await.ok(),
        };
        caller.filter(|verified| verified.caller.check().is_ok())
    }
}

/// Whether requests of the current form may be recorded in another. One that is the gate's own as well, for other
/// requests, covered these only before there was the current one.
fn may_live(other: &KnownForm, is_own: bool, current: &KnownForm, now: Timestamp) -> bool {
    let until = |time: Timestamp| time.plus(other.kept).plus(MARGIN);
    match is_own {
        true => other.first_at < current.since && until(current.since) > now,
        false => until(other.last_at) > now,
    }
}

/// The form of a gate without configuration, as a release made it that knew no hosts.
fn unconfigured() -> Form {
    Form::of(&Route::any(), WITHOUT_CONFIGURATION, false)
}

fn of_a_later_release(known: &KnownForm) -> NotKnown {
    NotKnown::Unreadable(format!(
        "a later release has claimed keys here in a form that this one does not know, {}; start that release, or say \
         gate.forget_former = true to let its keys run again",
        known.text
    ))
}

fn registered(form: &Form, route: &Route, ahead: Duration) -> semel_store::Form {
    semel_store::Form { text: form.text(), kept: route.profile.lifetime.record(), ahead }
}

impl View {
    /// The former forms of a route's requests.
    pub(crate) fn formers(&self, route: &Arc<Route>) -> &[FormerForm] {
        if self.is_quiet {
            return &[];
        }
        let of_route = self.formers.iter().find(|(other, _)| Arc::ptr_eq(other, route));
        of_route.map_or(&[], |(_, formers)| formers)
    }

    /// The same, with who the caller is in each.
    pub(crate) async fn callers<'a>(
        &'a self,
        route: &Arc<Route>,
        (method, path): (&str, &str),
        parts: &Parts,
        verified: &Verified,
    ) -> Vec<FormerCaller<'a>> {
        let mut callers = Vec::new();
        for former in self.formers(route) {
            if former.form.params(method, path).is_none() {
                continue;
            }
            callers.push((former, former.caller(parts, verified).await));
        }
        callers
    }
}

/// What the store says of the gate's forms before it serves: see [`crate::GateLayer::prepare`].
pub(crate) async fn prepare(forms: &Forms, meters: &StoreMeters) -> Result<(), String> {
    match forms.ask(meters).await {
        Ok(_) => Ok(()),
        Err(NotKnown::Unreadable(why)) => Err(why),
        Err(NotKnown::Away(error)) => {
            tracing::warn!(%error, "the store could not be asked for the forms of former keys; it is asked again");
            Ok(())
        }
    }
}
