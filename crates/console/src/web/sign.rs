//! Signing in with a token and out again. The token becomes a cookie that no script sees and no other site can send.

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};
use maud::html;

use super::{Web, caller, document, query_of, see_other, text};
use crate::access::{LIFETIME, cookie_name};

/// The largest form of a sign-in.
const FORM_BYTES_MAX: usize = 8 << 10;

/// Where a sign-in leads: a page of ours, never another server's.
fn own(back: Option<&String>) -> &str {
    let is_own = |path: &&String| {
        path.starts_with('/')
            && !path.starts_with("//")
            && path.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\')
    };
    back.filter(is_own).map_or("/", String::as_str)
}

pub(super) fn page(back: &str, why: Option<&str>, status: StatusCode) -> Response {
    let body = html! {
        h1 { "Sign in" }
        @if let Some(why) = why { div class="ill" role="alert" { (why) } }
        p { "The console asks for a token: the full one to look and act, the read-only one to look." }
        form class="act" method="post" action="/sign-in" {
            input type="hidden" name="back" value=(back);
            label { "Token" input type="password" name="token" required autocomplete="current-password" autofocus; }
            div { button { "Sign in" } }
        }
    };
    document("Sign in", None, &body, html! {}, false, status)
}

pub(super) async fn show(State(web): State<Web>, uri: http::Uri) -> Response {
    if !web.0.access.asks_for_token() {
        return see_other("/");
    }
    page(own(query_of(&uri).get("back")), None, StatusCode::OK)
}

pub(super) async fn sign_in(State(web): State<Web>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let Ok(bytes) = axum::body::to_bytes(body, FORM_BYTES_MAX).await else {
        return page("/", Some("the form is too large"), StatusCode::PAYLOAD_TOO_LARGE);
    };
    let form: std::collections::BTreeMap<String, String> =
        text::pairs(&String::from_utf8_lossy(&bytes)).into_iter().collect();
    let back = own(form.get("back"));
    let Some(value) = form.get("token").and_then(|token| web.0.access.sign_in(token)) else {
        return page(back, Some("This token is not known here."), StatusCode::UNAUTHORIZED);
    };
    let is_secure = parts.headers.get("x-forwarded-proto").is_some_and(|proto| proto.as_bytes() == b"https");
    let cookie = format!(
        "{}={value}; Path=/; HttpOnly; SameSite=Strict; Max-Age={}{}",
        cookie_name(&parts.headers),
        LIFETIME.as_secs(),
        if is_secure { "; Secure" } else { "" }
    );
    with_cookie(see_other(back), &cookie)
}

pub(super) async fn sign_out(State(web): State<Web>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let (caller, name) = (caller(&parts), cookie_name(&parts.headers));
    let bytes = axum::body::to_bytes(body, FORM_BYTES_MAX).await.unwrap_or_default();
    let form = text::pairs(&String::from_utf8_lossy(&bytes));
    let is_ours = |(name, value): &(String, String)| {
        name == "number" && web.0.forms.is_ours(value, &caller, "sign-out")
    };
    if !form.iter().any(is_ours) {
        return (StatusCode::FORBIDDEN, "sign out by the button of a page").into_response();
    }
    web.0.access.sign_out(&caller);
    with_cookie(see_other("/sign-in"), &format!("{name}=; Path=/; HttpOnly; SameSite=Strict; Max-Age=0"))
}

fn with_cookie(mut response: Response, cookie: &str) -> Response {
    if let Ok(value) = HeaderValue::try_from(cookie) {
        response.headers_mut().insert(header::SET_COOKIE, value);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sign_in_leads_to_a_page_of_ours() {
        for foreign in ["//evil.example", "https://evil.example", "/\\evil.example", "", "/a\r\nSet-Cookie:x"]
        {
            assert_eq!(own(Some(&foreign.to_owned())), "/", "{foreign}");
        }
        assert_eq!(own(Some(&"/requests?key=a".to_owned())), "/requests?key=a");
    }
}
