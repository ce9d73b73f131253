//! Reads from Markdown what the link check needs: the links of a page and the anchors of its headings, by the
//! rules of GitHub. No renderer: what stands in code is skipped, the rest is read line by line.

use std::collections::{BTreeMap, BTreeSet};

/// A link and the line it stands on.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) line: usize,
    pub(crate) target: String,
}

/// Every link of a page: inline ones, images, and the definitions of reference links.
pub(crate) fn links(text: &str) -> Vec<Link> {
    let mut links = Vec::new();
    for (line, prose) in prose(text) {
        let prose = without_inline_code(prose);
        let targets = definition(&prose).into_iter().chain(inline_targets(&prose));
        links.extend(targets.filter(|target| !target.is_empty()).map(|target| Link { line, target }));
    }
    links
}

/// Every anchor of a page: one for each heading, and those that are set by `<a id="…">`.
pub(crate) fn anchors(text: &str) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let mut previous = "";
    for (_, line) in prose(text) {
        if let Some(heading) = heading(line).or_else(|| underlined(previous, line)) {
            let slug = slug(heading);
            let count = seen.entry(slug.clone()).or_default();
            anchors.insert(if *count == 0 { slug } else { format!("{slug}-{count}") });
            *count += 1;
        }
        anchors.extend(set_by_hand(line));
        previous = line;
    }
    anchors
}

/// The lines outside of fenced code, with their numbers.
fn prose(text: &str) -> Vec<(usize, &str)> {
    let mut lines = Vec::new();
    let mut open: Option<&str> = None;
    for (index, line) in text.lines().enumerate() {
        let fence = fence(line);
        match (open, fence) {
            (None, Some((marks, _))) => open = Some(marks),
            (None, None) => lines.push((index + 1, line)),
            // A fence ends with at least as many of the same mark, and nothing behind them.
            (Some(opening), Some((marks, ""))) if marks.starts_with(opening) => open = None,
            (Some(_), _) => {}
        }
    }
    lines
}

/// The marks of a fence line and what follows them. Fences may stand in quotes and lists.
fn fence(line: &str) -> Option<(&str, &str)> {
    let line = line.trim_start_matches([' ', '\t', '>']);
    let mark = line.chars().next().filter(|c| *c == '`' || *c == '~')?;
    let rest = line.trim_start_matches(mark);
    let marks = &line[..line.len() - rest.len()];
    // "```x```" on one line is inline code.
    (marks.len() >= 3 && !(mark == '`' && rest.contains('`'))).then(|| (marks, rest.trim()))
}

/// The line with its `code` blanked, so that nothing in it looks like a link.
fn without_inline_code(line: &str) -> String {
    let mut out = String::new();
    let mut rest = line;
    while let Some(start) = rest.find('`') {
        out.push_str(&rest[..start]);
        let opened = &rest[start..];
        let inside = opened.trim_start_matches('`');
        let marks = &opened[..opened.len() - inside.len()];
        match end_of_code(inside, marks.len()) {
            Some(end) => rest = &inside[end..],
            None => {
                out.push_str(marks);
                rest = inside;
            }
        }
    }
    out.push_str(rest);
    out
}

/// Where code that was opened by `marks` backticks is closed by exactly as many.
fn end_of_code(text: &str, marks: usize) -> Option<usize> {
    let mut at = 0;
    while let Some(start) = text[at..].find('`').map(|found| at + found) {
        let length = text[start..].bytes().take_while(|byte| *byte == b'`').count();
        if length == marks {
            return Some(start + length);
        }
        at = start + length;
    }
    None
}

/// The targets of `[text](target "title")`.
fn inline_targets(line: &str) -> Vec<String> {
    line.match_indices("](").filter_map(|(at, mark)| target_at(&line[at + mark.len()..])).collect()
}

fn target_at(text: &str) -> Option<String> {
    let text = text.trim_start();
    if let Some(pointed) = text.strip_prefix('<') {
        return pointed.split_once('>').map(|(target, _)| target.to_owned());
    }
    let mut depth = 0_usize;
    let mut target = String::new();
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => target.extend(chars.next()),
            ')' if depth == 0 => return Some(target),
            c if c.is_whitespace() => return Some(target),
            c => {
                depth = match c {
                    '(' => depth + 1,
                    ')' => depth - 1,
                    _ => depth,
                };
                target.push(c);
            }
        }
    }
    // The parenthesis is not closed on this line: no link.
    None
}

/// The target of `[label]: target`. Footnotes, `[^1]: text`, are none.
fn definition(line: &str) -> Option<String> {
    let (label, rest) = line.trim_start().strip_prefix('[')?.split_once("]:")?;
    if label.starts_with('^') || label.contains(']') {
        return None;
    }
    let target = rest.split_whitespace().next()?;
    Some(target.trim_start_matches('<').trim_end_matches('>').to_owned())
}

/// The text of a `## heading`.
fn heading(line: &str) -> Option<&str> {
    let indent = line.len() - line.trim_start_matches(' ').len();
    let line = line.trim_start_matches(' ');
    let text = line.trim_start_matches('#');
    let level = line.len() - text.len();
    let is_heading =
        indent < 4 && (1..=6).contains(&level) && (text.is_empty() || text.starts_with([' ', '\t']));
    is_heading.then(|| text.trim().trim_end_matches('#').trim_end())
}

/// The text of a heading that is underlined with `===` or `---`.
fn underlined<'a>(above: &'a str, line: &str) -> Option<&'a str> {
    let line = line.trim_end();
    let is_line = !line.is_empty() && (line.chars().all(|c| c == '=') || line.chars().all(|c| c == '-'));
    let is_text = !above.trim().is_empty() && !above.trim_start().starts_with(['#', '|', '>', '-', '=', '*']);
    (is_line && is_text).then(|| above.trim())
}

/// The anchors of `<a id="x">` and `<a name="x">`.
fn set_by_hand(line: &str) -> Vec<String> {
    let tags = line.split("<a ").skip(1);
    let values = tags.filter_map(|tag| {
        let attribute = tag.split_once("id=\"").or_else(|| tag.split_once("name=\""))?.1;
        attribute.split_once('"').map(|(value, _)| value.to_owned())
    });
    values.collect()
}

/// GitHub's anchor of a heading: the text as it is shown, in lower case, spaces as hyphens, no punctuation.
fn slug(heading: &str) -> String {
    let shown = without_link_targets(heading);
    let kept = shown.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// `[text](target)` is shown as its text.
fn without_link_targets(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("](") {
        out.push_str(before);
        rest = after.split_once(')').map_or("", |(_, rest)| rest);
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn targets(text: &str) -> Vec<String> {
        links(text).into_iter().map(|link| link.target).collect()
    }

    #[test]
    fn links_of_every_shape_are_read() {
        assert_eq!(targets("see [a](x.md) and ![b](y.png \"title\")"), ["x.md", "y.png"]);
        assert_eq!(
            targets("[a](<with space.md>) [b](f(1).md) [c](g\\).md)"),
            ["with space.md", "f(1).md", "g).md"]
        );
        assert_eq!(targets("[![badge](b.svg)](page.md)"), ["b.svg", "page.md"]);
        assert_eq!(targets("[`code`](lib.rs)"), ["lib.rs"]);
        assert_eq!(targets("[label]: place.md \"title\"\n[^1]: a footnote"), ["place.md"]);
    }

    #[test]
    fn a_link_knows_its_line() {
        assert_eq!(links("one\n\n[a](x.md)\n"), [Link { line: 3, target: "x.md".to_owned() }]);
    }

    #[test]
    fn code_holds_no_links() {
        assert_eq!(targets("`[a](x.md)` and ``b ` [c](y.md)``"), [] as [&str; 0]);
        assert_eq!(targets("```md\n[a](x.md)\n```\n[b](y.md)"), ["y.md"]);
        assert_eq!(targets("~~~\n```\n[a](x.md)\n~~~\n[b](y.md)"), ["y.md"]);
        assert_eq!(targets("````\n```\n[a](x.md)\n````\n[b](y.md)"), ["y.md"]);
        assert_eq!(targets("- item\n  ```sh\n  [a](x.md)\n  ```\n"), [] as [&str; 0]);
        assert_eq!(targets("a lone ` then [a](x.md)"), ["x.md"]);
    }

    #[test]
    fn anchors_follow_the_rules_of_github() {
        let text = "# What's `semel`?\n## The *first* step\n### 2. Store & gate\n## [Linked](x.md) heading ##\n## snake_case-kept\n";
        let expected =
            ["2-store--gate", "linked-heading", "snake_case-kept", "the-first-step", "whats-semel"];
        assert_eq!(anchors(text).into_iter().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn repeated_headings_are_numbered_and_code_has_no_headings() {
        let text = "# Same\n# Same\n# Same\n```sh\n# comment\n```\n#no-heading\n";
        assert_eq!(anchors(text).into_iter().collect::<Vec<_>>(), ["same", "same-1", "same-2"]);
    }

    #[test]
    fn underlined_headings_and_anchors_by_hand_count() {
        let text = "Title\n=====\n\nPart two\n---\n\n| a |\n---\n\n<a id=\"here\"></a>\n";
        assert_eq!(anchors(text).into_iter().collect::<Vec<_>>(), ["here", "part-two", "title"]);
    }
}
