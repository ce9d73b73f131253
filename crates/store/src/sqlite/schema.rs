//! The schema of the claim store.

use super::engine::{Migration, OpenError, Schema, TimeRows, Version, version};

/// The claim store's schema.
pub(super) static SCHEMA: Schema = Schema {
    table: "semel_meta",
    version: "schema_version",
    migrations: &[
        Migration { name: "records", sql: include_str!("migrations/0001_records.sql"), works_for: 1 },
        Migration { name: "operating", sql: include_str!("migrations/0002_operating.sql"), works_for: 1 },
        Migration { name: "audit", sql: include_str!("migrations/0003_audit.sql"), works_for: 2 },
        Migration { name: "places", sql: include_str!("migrations/0004_places.sql"), works_for: 3 },
        Migration { name: "forms", sql: include_str!("migrations/0005_forms.sql"), works_for: 4 },
    ],
    time: Some(TimeRows {
        high_water: "time_high_water",
        ticks: "time_ticks",
        boot: "time_boot",
        jump: "time_jump",
    }),
};

/// Which schema a file has. Changes nothing, and does not ask who owns the file.
///
/// # Errors
/// It cannot be read, or a later release wrote it in a way that this one does not understand.
pub fn schema_version(path: &std::path::Path) -> Result<Version, OpenError> {
    version(path, &SCHEMA)
}

#[cfg(test)]
mod tests {
    use super::SCHEMA;

    #[test]
    fn the_release_before_keeps_working() {
        for (version, migration) in (1..).zip(SCHEMA.migrations) {
            assert!(migration.works_for <= version && migration.works_for >= 1.max(version - 1), "{version}");
        }
    }
}
