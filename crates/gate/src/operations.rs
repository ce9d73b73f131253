//! The forms of operations without HTTP, by their names: two operations may have one pattern, and have no path. Asks the store
//! for them as `forms` does; nothing is known here of a release that registered none.

use std::collections::HashMap;
use std::future::ready;
use std::sync::{Arc, Mutex, PoisonError};

use http::request::Parts;
use semel_contract::problem::Kind;

use crate::form::Form;
use crate::forms::{Forms, Told};
use crate::identity::{Identified, Identify};
use crate::route::Route;

/// The method of an operation, where one is asked for.
pub(crate) const METHOD: &str = "POST";
/// Its path.
pub(crate) const PATH: &str = "/";
/// Of so many operations it is remembered which forms they had; of others it is asked again.
const OPERATIONS_MAX: usize = 1000;

/// The application itself, which names the callers of its operations.
struct Application;

impl Identify for Application {
    fn identify<'a>(&'a self, _: &'a Parts) -> Identified<'a> {
        Box::pin(ready(Err(Kind::IdentityMissing.into())))
    }

    fn describe(&self) -> String {
        "application".to_owned()
    }
}

/// An operation: its forms, and itself as a route without a path.
type Operation = (Arc<Forms>, Arc<Route>);

/// The forms of operations that were run, each under its present form: a program has few of them.
#[derive(Default)]
pub(crate) struct Operations(Mutex<HashMap<String, Operation>>);

impl Operations {
    /// The forms of this operation, and the operation as a route without a path.
    pub(crate) fn forms(&self, of: &Forms, route: &Route) -> Operation {
        let pattern = format!("{METHOD} {PATH}");
        let pattern = pattern.parse().expect("it is a pattern");
        let mut named = route.clone();
        (named.pattern, named.callers) = (pattern, None);
        let text = format!("{} {:?}", Form::of(&named, "", false).text(), named.former_names);
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= OPERATIONS_MAX {
            known.clear();
        }
        let found = known.entry(text).or_insert_with(|| {
            let named = Arc::new(named);
            (Arc::new(forms_of(of, &named)), named)
        });
        (Arc::clone(&found.0), Arc::clone(&found.1))
    }
}

/// The forms of one operation. Those of its former names are its own.
fn forms_of(gate: &Forms, route: &Arc<Route>) -> Forms {
    let name = |endpoint: &str| format!("{} operation {endpoint}", gate.told().gate);
    let told = Told {
        gate: name(&route.endpoint(METHOD, PATH)),
        forgets: gate.told().forgets,
        also: route.former_names.iter().map(|was| name(was)).collect(),
        only_registered: true,
        ..Told::default()
    };
    gate.beside(told, route, Arc::new(Application))
}
