//! The demo shop in the console: what it has sold, beside what the gate has recorded. The console asks it within the process,
//! past the gate.

use axum::Router;
use axum::routing::get;
use semel_console::part::{Chart, PANEL, Panel, Routed, SHEET, Shape, Sheet, Show, View, column, rate, tile};

use crate::demo::Shop;

/// The shop's page, and its numbers on the first one.
static PAGES: Sheet = Sheet {
    name: "shop",
    title: "Shop",
    health: "/effects",
    numbers: Some("/metrics"),
    views: &[View {
        path: "/shop",
        title: "The demo shop",
        on: "",
        beside: &[("/requests", "What the gate has recorded of its requests")],
        panels: &[
            Panel {
                api: "/effects",
                shape: Shape::Record,
                columns: &[
                    column("Orders", "/orders", Show::Text),
                    column("Spent", "/spent", Show::Text),
                    column("Left to spend", "/balance", Show::Text),
                ],
                ..PANEL
            },
            Panel {
                title: "The latest orders",
                api: "/orders",
                columns: &[
                    column("Order", "/id", Show::Text),
                    column("Item", "/item", Show::Text),
                    column("Amount", "/amount", Show::Text),
                    column("Left after it", "/balance", Show::Text),
                ],
                empty: "Nothing was ordered yet.",
                ..PANEL
            },
        ],
    }],
    tiles: &[
        tile("orders that the shop took", "semel_demo_orders", "", "/shop"),
        tile("left to spend", "semel_demo_balance", "", "/shop"),
    ],
    charts: &[Chart {
        title: "Orders of the shop",
        unit: "a second",
        lines: &[rate("orders", "semel_demo_orders", "")],
    }],
    ..SHEET
};

/// The shop as a part of the console.
pub(super) fn shown(shop: &Shop) -> Routed {
    let counted = shop.clone();
    let numbers = get(move || {
        let shop = counted.clone();
        async move {
            let totals = shop.totals().await.map_err(|error| error.to_string())?;
            Ok::<_, String>(format!(
                "semel_demo_orders {}\nsemel_demo_balance {}\n",
                totals.orders, totals.balance
            ))
        }
    });
    Routed::new(&PAGES, Router::new().route("/metrics", numbers).merge(shop.router()))
}
