//! Rust files as words: enough to find modules, paths between them and lines of code. Owns how comments, texts and test
//! code are left out; it is no parser, and macros are read as they are written.

pub(crate) mod modules;

/// A word of a file and the line where it stands: a name, `::`, or one other character.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Word {
    pub(crate) text: String,
    pub(crate) line: usize,
}

/// The words of a file. Comments are left out; a text or a character is the word `""`.
pub(crate) fn words(text: &str) -> Vec<Word> {
    let chars: Vec<char> = text.chars().collect();
    let (mut at, mut line, mut words) = (0, 1, Vec::new());
    while at < chars.len() {
        let end = end_of(&chars, at);
        let first = chars[at];
        let is_comment = first == '/' && matches!(chars.get(at + 1), Some('/' | '*'));
        if !first.is_whitespace() && !is_comment {
            let has_quotes = matches!(chars[end - 1], '"' | '#' | '\'') && end - at > 1;
            let text = if has_quotes { "\"\"".to_owned() } else { chars[at..end].iter().collect() };
            words.push(Word { text, line });
        }
        line += chars[at..end].iter().filter(|c| **c == '\n').count();
        at = end;
    }
    words
}

/// Where the thing that begins at `at` ends. Always beyond `at`.
fn end_of(chars: &[char], at: usize) -> usize {
    let next = |ahead: usize| chars.get(at + ahead).copied();
    match chars[at] {
        '/' if next(1) == Some('/') => find(chars, at, |c| c == '\n'),
        '/' if next(1) == Some('*') => end_of_block_comment(chars, at),
        '"' => end_of_text(chars, at + 1),
        // A character, unless it is a lifetime.
        '\'' if next(1) == Some('\\') => (find(chars, at + 3, |c| c == '\'') + 1).min(chars.len()),
        '\'' if next(2) == Some('\'') => at + 3,
        ':' if next(1) == Some(':') => at + 2,
        c if is_of_name(c) => end_of_name(chars, at),
        _ => at + 1,
    }
}

fn end_of_name(chars: &[char], at: usize) -> usize {
    let end = find(chars, at, |c| !is_of_name(c));
    let prefix: String = chars[at..end].iter().collect();
    match (prefix.as_str(), chars.get(end)) {
        ("b" | "c", Some('"')) => end_of_text(chars, end + 1),
        ("b", Some('\'')) => end_of(chars, end),
        ("r" | "br" | "cr", Some('"' | '#')) => end_of_raw_text(chars, end).unwrap_or(end),
        _ => end,
    }
}

fn end_of_text(chars: &[char], mut at: usize) -> usize {
    while at < chars.len() && chars[at] != '"' {
        at += if chars[at] == '\\' { 2 } else { 1 };
    }
    (at + 1).min(chars.len())
}

/// The end of `#"…"#`, or nothing where a name such as `r#type` begins.
fn end_of_raw_text(chars: &[char], at: usize) -> Option<usize> {
    let open = find(chars, at, |c| c != '#');
    (chars.get(open) == Some(&'"')).then_some(())?;
    let hashes = open - at;
    let mut quote = open + 1;
    loop {
        quote = find(chars, quote, |c| c == '"');
        if quote == chars.len() {
            return Some(quote);
        }
        let closing = find(chars, quote + 1, |c| c != '#').min(quote + 1 + hashes);
        if closing - quote - 1 == hashes {
            return Some(closing);
        }
        quote += 1;
    }
}

/// Block comments nest.
fn end_of_block_comment(chars: &[char], mut at: usize) -> usize {
    let mut depth = 0;
    while at + 1 < chars.len() {
        match (chars[at], chars[at + 1]) {
            ('/', '*') => (depth, at) = (depth + 1, at + 2),
            ('*', '/') => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            return at;
        }
    }
    chars.len()
}

fn find(chars: &[char], from: usize, is_it: impl Fn(char) -> bool) -> usize {
    chars.iter().skip(from).position(|c| is_it(*c)).map_or(chars.len(), |ahead| from + ahead)
}

fn is_of_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The words that are built into a release: whatever `#[cfg(test)]` stands before is left out.
pub(crate) fn without_tests(words: &[Word]) -> Vec<Word> {
    let mut kept = Vec::new();
    let mut at = 0;
    while at < words.len() {
        match is_for_tests(&words[at..]) {
            true => at = end_of_item(words, at),
            false => {
                kept.push(words[at].clone());
                at += 1;
            }
        }
    }
    kept
}

fn is_for_tests(words: &[Word]) -> bool {
    let starts = |with: &[&str]| {
        words.len() >= with.len() && words.iter().zip(with).all(|(word, text)| word.text == *text)
    };
    starts(&["#", "[", "cfg", "(", "test", ")"]) || starts(&["#", "[", "cfg", "(", "all", "(", "test"])
}

/// The end of the item, field or statement that the attribute at `at` stands before.
fn end_of_item(words: &[Word], mut at: usize) -> usize {
    while words.get(at).is_some_and(|word| word.text == "#") {
        at = end_of_group(words, at + 1);
    }
    const ITEMS: [&str; 15] = [
        "mod",
        "use",
        "fn",
        "impl",
        "struct",
        "enum",
        "const",
        "static",
        "type",
        "trait",
        "async",
        "unsafe",
        "extern",
        "pub",
        "macro_rules",
    ];
    let is_item = words.get(at).is_some_and(|word| ITEMS.contains(&word.text.as_str()));
    while let Some(word) = words.get(at) {
        match word.text.as_str() {
            "{" => return end_of_group(words, at),
            "(" | "[" => at = end_of_group(words, at),
            ";" => return at + 1,
            "," if !is_item => return at + 1,
            "}" => return at,
            _ => at += 1,
        }
    }
    at
}

/// The end of the brackets that open at `at`.
pub(crate) fn end_of_group(words: &[Word], mut at: usize) -> usize {
    let mut depth = 0;
    while let Some(word) = words.get(at) {
        at += 1;
        match word.text.as_str() {
            "{" | "(" | "[" => depth += 1,
            "}" | ")" | "]" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            break;
        }
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(source: &str) -> Vec<String> {
        words(source).into_iter().map(|word| word.text).collect()
    }

    #[test]
    fn comments_and_texts_hide_what_they_contain() {
        let source = "/// crate::a\n/* x /* crate::b */ y */ let s = \"crate::c\\\"\"; // crate::d\nr#\"crate::e\"#; b'x'; '{'";
        assert_eq!(texts(source), ["let", "s", "=", "\"\"", ";", "\"\"", ";", "\"\"", ";", "\"\""]);
    }

    #[test]
    fn a_lifetime_is_no_character_and_a_raw_name_is_no_text() {
        assert_eq!(texts("&'a str"), ["&", "'", "a", "str"]);
        assert_eq!(texts("r#type::x"), ["r", "#", "type", "::", "x"]);
    }

    #[test]
    fn lines_are_counted_through_texts_and_comments() {
        let found = words("\"a\nb\"\n/* c\n */ d");
        assert_eq!(found.last(), Some(&Word { text: "d".to_owned(), line: 4 }));
    }

    #[test]
    fn test_code_is_left_out_to_its_end_and_no_further() {
        let source = "fn a() {} #[cfg(test)] #[allow(x)] mod tests { fn b() {} } #[cfg(test)] use c; #[cfg(test)] mod d; \
                      struct E { #[cfg(test)] f: u8, g: u8 } #[cfg(feature = \"x\")] fn h() {}";
        let kept: String = without_tests(&words(source)).into_iter().map(|word| word.text + " ").collect();
        assert!(["b", "c", "d", "f"].iter().all(|gone| !kept.contains(&format!(" {gone} "))), "{kept}");
        assert!(["a", "E", "g", "h"].iter().all(|here| kept.contains(&format!(" {here} "))), "{kept}");
    }
}
