//! Texts of others on the pages of any part: whatever they are made of, they are shown as text. Pages are data, so a part with
//! a panel of every shape and a column of every kind stands for all parts.

use semel_console::Surface;
use semel_console::part::{
    Bound, Filter, PANEL, Panel, Routed, SHEET, Section, Shape, Sheet, Show, View, column,
};

use super::pages::{LOCAL, page};
use super::*;

const COLUMNS: &[semel_console::part::Column] = &[
    column("Text", "/text", Show::Text),
    column("Code", "/text", Show::Code),
    column("State", "/text", Show::State),
    column("Time", "/text", Show::Time),
    column("Body", "/text", Show::Body),
    column("Headers", "/headers", Show::Body),
    column("Bytes", "/bytes", Show::Bytes),
    column("Link", "/text", Show::Link("/lanes/{text}")),
];
const LIST: Panel = Panel {
    title: "List",
    api: "/v1/lanes",
    at: "/lanes",
    columns: COLUMNS,
    filters: &[Filter { name: "lane", label: "Lane", choices: &[] }],
    next: &[("next", "after")],
    ..PANEL
};
static PAGES: Sheet = Sheet {
    name: "lanes",
    title: "Lanes",
    views: &[
        View { path: "/lanes", title: "Lanes", on: "", beside: &[], panels: &[LIST] },
        View {
            path: "/lanes/{lane}",
            title: "Lane {lane}",
            on: "",
            beside: &[],
            panels: &[
                Panel { api: "/v1/lane", shape: Shape::Record, columns: COLUMNS, ..PANEL },
                Panel {
                    title: "Timeline",
                    api: "/v1/lane",
                    at: "/timeline",
                    shape: Shape::Timeline,
                    ..PANEL
                },
                LIST,
            ],
        },
        View {
            path: "/refused/{lane}",
            title: "Refused {lane}",
            on: "",
            beside: &[],
            panels: &[Panel { api: "/v1/refused", ..PANEL }],
        },
    ],
    ..SHEET
};

/// A part that answers with this text everywhere.
fn part_of(text: &str) -> Router {
    use axum::Json;
    use axum::routing::get;
    let row = json!({"text": text, "headers": {text: text}, "bytes": text});
    let lane =
        json!({"text": text, "headers": [text], "timeline": [{"at": text, "what": text, "past": false}]});
    let list = json!({"lanes": [row], "next": text});
    let refused = (http::StatusCode::CONFLICT, Json(json!({"detail": text})));
    let api = Router::new()
        .route("/readyz", get(|| async { "ok" }))
        .route("/v1/lanes", get(move || std::future::ready(Json(list.clone()))))
        .route("/v1/lane", get(move || std::future::ready(Json(lane.clone()))))
        .route("/v1/refused", get(move || std::future::ready(refused.clone())));
    let section = Section {
        title: text.to_owned(),
        rows: vec![(text.to_owned(), text.to_owned())],
        bounds: vec![(Bound::Unsafe, text.to_owned()), (Bound::Warns, text.to_owned())],
    };
    let warned = text.to_owned();
    let part = Routed::new(&PAGES, api.clone()).settings(vec![section.clone()]);
    let part = part.warned_by(Arc::new(move || vec![warned.clone()]));
    let access =
        Access::on("127.0.0.1:7401".parse().unwrap(), Some(Token::new(FULL).unwrap()), None).unwrap();
    Surface::new(access).part(part).facts(vec![section]).router(api)
}

/// What a browser would take for markup or a change of direction: with the own marks of the page taken out, the rest has no
/// tag, no end of an attribute and nothing that is not seen.
fn is_text_only(shown: &str, hostile: &str) -> Result<(), String> {
    for forbidden in [
        "<img",
        "<script>",
        "</title><script",
        "onerror=alert(1)>",
        "\u{202e}",
        "\u{2066}",
        "\u{200b}",
        "\0",
        "\u{7f}",
    ] {
        if shown.contains(forbidden) {
            return Err(format!("{forbidden:?} of {hostile:?}"));
        }
    }
    Ok(())
}

#[tokio::test]
async fn texts_of_others_are_text_in_every_shape_and_column_of_every_part() {
    let long = "W".repeat(255);
    let bearer = format!("Bearer {FULL}");
    let authorized = [LOCAL, ("authorization", bearer.as_str())];
    for hostile in [
        "<img src=x onerror=alert(1)>",
        "\"><script>alert(1)</script>",
        "'/onerror=alert(1)>",
        "</title><script>alert(1)</script>",
        "a\u{202e}gpj.exe\u{2066}b\u{200b}c",
        "nul\0 bell\u{7} del\u{7f} esc\u{1b}[31m",
        "2026T\u{202e}T\u{2066}Z",
        "..",
        "{lane}",
        &long,
    ] {
        let router = part_of(hostile);
        let encoded: String = hostile.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let paths = ["/", "/lanes", "/configuration"].map(str::to_owned).into_iter();
        let named = if hostile == ".." { "x".to_owned() } else { encoded };
        for path in paths.chain([format!("/lanes/{named}"), format!("/refused/{named}")]) {
            let seen = page(&router, &path, &authorized).await;
            let expected = if path.starts_with("/refused") { 409 } else { 200 };
            assert_eq!(seen.status, expected, "{path} of {hostile:?}: {}", seen.text);
            is_text_only(&seen.text, hostile)
                .unwrap_or_else(|found| panic!("{path}: {found}\n{}", seen.text));
        }
        let listed = page(&router, "/lanes", &authorized).await.text;
        assert!(listed.matches("<bdi>").count() >= 2, "texts stand apart from what is around them: {listed}");
    }
}

#[tokio::test]
async fn a_list_that_a_part_gives_as_a_whole_is_shown_page_by_page() {
    use axum::Json;
    use axum::routing::get;
    const WHOLE: Panel = Panel { next: &[], filters: &[], ..LIST };
    static SHOWN: Sheet = Sheet {
        views: &[View { path: "/lanes", title: "Lanes", on: "", beside: &[], panels: &[WHOLE] }],
        ..PAGES_OF_NONE
    };
    const PAGES_OF_NONE: Sheet = Sheet { name: "lanes", title: "Lanes", ..SHEET };
    let rows: Vec<Value> = (0..450).map(|at| json!({"text": format!("lane-{at}.")})).collect();
    let list = json!({ "lanes": rows });
    let api = Router::new().route("/v1/lanes", get(move || std::future::ready(Json(list.clone()))));
    let access = Access::on("127.0.0.1:7401".parse().unwrap(), None, None).unwrap();
    let router = Surface::new(access).part(Routed::new(&SHOWN, api.clone())).router(api);
    let (mut path, mut pages, mut shown) = ("/lanes".to_owned(), 0, 0);
    loop {
        let text = page(&router, &path, &[LOCAL]).await.text;
        pages += 1;
        shown += text.matches("<tr>").count() - 1;
        let Some(next) = text.split("rel=\"next\" href=\"").nth(1) else {
            assert!(text.contains("lane-449."), "the last is on the last page");
            break;
        };
        path = next.split('"').next().unwrap().replace("&amp;", "&");
    }
    assert_eq!((pages, shown), (3, 450));
    assert_eq!(page(&router, "/lanes?lanes_from=99999999999", &[LOCAL]).await.status, 200);
}

#[tokio::test]
async fn what_a_part_warns_of_and_settings_that_do_not_hold_need_a_person() {
    let router = part_of("the disk has 12 MB free");
    let seen = page(&router, "/", &[LOCAL, ("authorization", &*format!("Bearer {FULL}"))]).await.text;
    let wanted = seen.split("Health").next().unwrap_or_default();
    assert!(wanted.contains("the disk has 12 MB free"), "{wanted}");
    assert!(
        wanted.contains("bound of the settings does not hold: see the configuration of Lanes"),
        "{wanted}"
    );
}

/// A list that is too large for a page is not shown as an empty one.
#[tokio::test]
async fn an_answer_that_is_too_large_for_a_page_is_said_to_be() {
    let router = part_of(&"x".repeat(6 << 20));
    let seen = page(&router, "/lanes", &[LOCAL, ("authorization", &*format!("Bearer {FULL}"))]).await;
    assert!(seen.text.contains("larger than the 16 MiB that a page shows"), "{}", seen.text.len());
    assert!(!seen.text.contains("Nothing is here"), "it is not empty");
}

/// A part that is ready may lean on something that is not: the first page says what, and why.
#[tokio::test]
async fn the_first_page_says_what_a_part_leans_on_and_how_that_fares() {
    use semel_console::part::{Fares, Pillar};
    let pillar = |what: &str, fares: Fares| Pillar {
        what: what.to_owned(),
        name: format!("{what}://<b>there</b>"),
        fares,
    };
    let pillars = vec![
        pillar("store", Fares::AsThePart),
        pillar("replicas", Fares::Well("6 from 2 addresses".to_owned())),
        pillar("Redis", Fares::Ill("nobody <i>listens</i>".to_owned())),
    ];
    let api = part_of("x");
    let leans = Arc::new(move || {
        Box::pin(std::future::ready(pillars.clone())) as semel_console::part::Found<'static>
    });
    let part = Routed::new(&PAGES, api.clone()).leaning_on(leans);
    let access = Access::on("127.0.0.1:7401".parse().unwrap(), None, None).unwrap();
    let seen = page(&Surface::new(access).part(part).router(Router::new()), "/", &[LOCAL]).await.text;
    let health = seen.split("id=\"health\"").nth(1).unwrap().split("</section>").next().unwrap();
    for shown in [
        "store://&lt;b&gt;there",
        "6 from 2 addresses",
        "Redis</span>",
        "not reached</span> nobody &lt;i&gt;listens",
    ] {
        assert!(health.contains(shown), "{shown}: {health}");
    }
    assert_eq!(
        health.matches("not reached").count(),
        1,
        "what can be reached is not said to be away: {health}"
    );
}

/// Lists of one page that are paged by the same parameter of their calls go on each by itself.
#[tokio::test]
async fn two_lists_of_a_page_are_paged_each_by_itself() {
    use axum::extract::RawQuery;
    use axum::routing::get;
    const ONE: Panel =
        Panel { api: "/v1/lanes", next: &[("next", "after")], cursor: "one_after", filters: &[], ..LIST };
    const TWO: Panel = Panel { api: "/v1/others", cursor: "two_after", ..ONE };
    static SHOWN: Sheet = Sheet {
        name: "lanes",
        title: "Lanes",
        views: &[View { path: "/lanes", title: "Lanes", on: "", beside: &[], panels: &[ONE, TWO] }],
        ..SHEET
    };
    let list = |name: &'static str| {
        get(move |RawQuery(query): RawQuery| async move {
            let query = query.unwrap_or_default();
            axum::Json(
                json!({"lanes": [{"text": format!("{name} of {query}.")}], "next": format!("{name}-9")}),
            )
        })
    };
    let api = Router::new().route("/v1/lanes", list("one")).route("/v1/others", list("two"));
    let access = Access::on("127.0.0.1:7401".parse().unwrap(), None, None).unwrap();
    let router = Surface::new(access).part(Routed::new(&SHOWN, api)).router(Router::new());
    let first = page(&router, "/lanes", &[LOCAL]).await.text;
    for next in ["/lanes?one_after=one-9", "/lanes?two_after=two-9"] {
        assert!(first.contains(&format!("rel=\"next\" href=\"{next}\"")), "{next}: {first}");
    }
    let second = page(&router, "/lanes?two_after=two-9", &[LOCAL]).await.text;
    assert!(second.contains("two of after=two-9&amp;limit=50."), "{second}");
    assert!(second.contains("one of limit=50."), "the other list stays where it was: {second}");
}
