//! How results look on a terminal: its width, and colours for the words that matter. Files and pipes get plain text.

use std::io::IsTerminal;

/// What a word means to the reader.
#[derive(Clone, Copy)]
enum Mood {
    Good,
    Bad,
    Open,
}

/// Words that stand out, wherever they are a whole cell or a verdict.
const WORDS: [(&str, Mood); 13] = [
    ("pass", Mood::Good),
    ("ok", Mood::Good),
    ("delivered", Mood::Good),
    ("FAIL", Mood::Bad),
    ("FAULT", Mood::Bad),
    ("UNSAFE", Mood::Bad),
    ("refused", Mood::Bad),
    ("dead", Mood::Bad),
    ("unknown", Mood::Open),
    ("in-doubt", Mood::Open),
    ("held", Mood::Open),
    ("parked", Mood::Open),
    ("warning", Mood::Open),
];

/// Whether standard output shows colours: it is a terminal, and `NO_COLOR` does not say otherwise.
fn is_coloured() -> bool {
    let is_off = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
        || std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    std::io::stdout().is_terminal() && !is_off
}

/// A text, in the colour of the word that it stands for.
pub(crate) fn word(word: &str, text: String) -> String {
    match WORDS.iter().find(|(known, _)| *known == word) {
        Some((_, mood)) if is_coloured() => painted(*mood, &text),
        Some(_) | None => text,
    }
}

/// Lines, with the first word of each in its colour.
pub(crate) fn first_words(text: &str) -> String {
    if !is_coloured() {
        return text.to_owned();
    }
    let line = |line: &str| {
        let start = line.len() - line.trim_start().len();
        let end = line[start..].find([' ', ':', '\n']).map_or(line.len(), |at| start + at);
        format!("{}{}{}", &line[..start], word(&line[start..end], line[start..end].to_owned()), &line[end..])
    };
    text.split_inclusive('\n').map(line).collect()
}

fn painted(mood: Mood, text: &str) -> String {
    let colour = match mood {
        Mood::Good => 32,
        Mood::Bad => 31,
        Mood::Open => 33,
    };
    format!("\x1b[{colour}m{text}\x1b[0m")
}

/// How wide the terminal is: what `COLUMNS` says, else what the terminal says; `None` where there is none.
pub(crate) fn columns() -> Option<usize> {
    let said =
        std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok()).filter(|columns| *columns > 0);
    said.or_else(asked)
}

#[cfg(unix)]
fn asked() -> Option<usize> {
    // SAFETY: all zeros is a size, and the call writes no more than one.
    let mut size: libc::winsize = unsafe { std::mem::zeroed() };
    // SAFETY: the file is open, and the pointer is that of a size which lives longer than the call.
    let told = unsafe { libc::ioctl(libc::STDOUT_FILENO, libc::TIOCGWINSZ, &raw mut size) };
    (told == 0 && size.ws_col > 0).then_some(usize::from(size.ws_col))
}

#[cfg(not(unix))]
fn asked() -> Option<usize> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipe_gets_no_colours() {
        assert_eq!(word("unknown", "unknown  ".to_owned()), "unknown  ");
        assert_eq!(first_words("  FAIL a\nok: b\n"), "  FAIL a\nok: b\n");
        assert_eq!(painted(Mood::Bad, "FAIL"), "\x1b[31mFAIL\x1b[0m");
    }
}
