//! The catalogue in force, made anew whenever something that it is made of changes: documents, replicas, routes.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tidegate_config::Site;
use tidegate_core::{AliasName, ShiftName};
use tidegate_engine::backend::BackendSet;
use tidegate_gateway::Shared;
use tidegate_gateway::catalogue::{Catalogue, Parts};
use tidegate_gateway::metrics::Metrics;
use tidegate_store::store::{RouteRow, RouteSnapshot};

use crate::app::Tokenizers;

/// What a catalogue is made of.
#[derive(Clone, Debug)]
pub(crate) struct Ingredients {
    pub(crate) site: Arc<Site>,
    /// The shift of aliases without a route.
    pub(crate) shift: ShiftName,
    pub(crate) backends: BackendSet,
    pub(crate) tokenizers: Tokenizers,
    routes: Routes,
}

#[derive(Clone, Debug, Default)]
struct Routes {
    /// Of the change that they are of.
    number: u64,
    rows: BTreeMap<AliasName, RouteRow>,
}

impl From<RouteSnapshot> for Routes {
    fn from(snapshot: RouteSnapshot) -> Self {
        let rows = snapshot.routes.into_iter().map(|row| (row.alias.clone(), row));
        Self { number: snapshot.number, rows: rows.collect() }
    }
}

impl Ingredients {
    pub(crate) fn new(
        site: Arc<Site>,
        shift: ShiftName,
        backends: BackendSet,
        tokenizers: Tokenizers,
        routes: RouteSnapshot,
    ) -> Self {
        Self { site, shift, backends, tokenizers, routes: routes.into() }
    }

    /// Makes a catalogue.
    pub(crate) fn catalogue(&self, generation: u64, metrics: &Metrics) -> Catalogue {
        let parts = Parts {
            shift: self.shift.clone(),
            generation,
            created: tidegate_store::clock::wall().ms / 1_000,
            backends: &self.backends,
            routes: &self.routes.rows,
            tokenizers: &self.tokenizers,
            metrics,
        };
        Catalogue::new(Arc::clone(&self.site), &parts)
    }
}

/// Puts catalogues in force, one after the other.
#[derive(Debug)]
pub(crate) struct Catalogues {
    shared: Arc<Shared>,
    ingredients: Mutex<Ingredients>,
}

impl Catalogues {
    /// Of a gate whose catalogue was made of these.
    pub(crate) fn new(shared: Arc<Shared>, ingredients: Ingredients) -> Self {
        Self { shared, ingredients: Mutex::new(ingredients) }
    }

    /// Changes what the catalogue is made of and puts the new one in force before this returns.
    pub(crate) fn change(&self, change: impl FnOnce(&mut Ingredients)) {
        let mut ingredients = self.ingredients.lock();
        change(&mut ingredients);
        let generation = self.shared.catalogue.load().generation + 1;
        self.shared.catalogue.store(Arc::new(ingredients.catalogue(generation, &self.shared.metrics)));
    }

    /// Sends aliases where these routes say. An older snapshot than the one in force changes nothing.
    pub(crate) fn set_routes(&self, snapshot: RouteSnapshot) {
        if self.ingredients.lock().routes.number < snapshot.number {
            self.change(|ingredients| {
                if ingredients.routes.number < snapshot.number {
                    ingredients.routes = snapshot.into();
                }
            });
        }
    }

    /// The change of the routes in force.
    pub(crate) fn routes_in_force(&self) -> u64 {
        self.ingredients.lock().routes.number
    }
}
