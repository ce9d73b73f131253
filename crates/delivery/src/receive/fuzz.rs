//! Any bytes as what a broker streams: the same events however they are cut, and the same that another reader finds; each is kept as
//! it stands, or the whole is refused and no cursor moves.

use std::collections::BTreeMap;

use semel_contract::time::Timestamp;
use semel_fuzz::{Target, Verdict};
use serde_json::Value;

use super::event::came;
use super::frames::{Frame, Frames};

#[test]
fn fuzz_frames() {
    Target::new("sse-frames")
        .words(&[
            "id: ", "id:", "event: ", "event: gap", "event: moderated", "event: message", "data: ", "data:", "data", "retry: 1000", ": open",
            "\n", "\r\n", "\r", "\n\n", "1.2.00ff", "topic%3Anews=1.2.00ff,direct=1.1.0000", "{", "}", "null", "\"body\":", "\"body_base64\":\"aGk=\"",
            "\"line\":\"topic:news\"", "\"broker_message_id\":\"B\"", "\"client_message_id\":\"m\"", "\"sender\":\"bob\"", "\u{fe}", "\u{0}", ",", "\"",
        ])
        .seed("\u{3}retry: 1000\n: open\n\nid: 1.2.00ff\ndata: {\"line\":\"topic:news\",\"broker_message_id\":\"B\",\"client_message_id\":\"m\",\"sender\":\"bob\",\"body\":{\"a\":1.50}}\n\n:\n\n")
        .seed("\u{1}event: gap\r\nid: 1.8.0000\r\ndata: {\"line\":\"topic:news\",\"from\":\"1.1.00ff\",\"oldest\":\"1.9.0000\",\"reason\":\"swept\"}\r\n\r\n")
        .seed("\u{5}id: 1.2.00ff\ndata: {\"line\":\"direct\",\"broker_message_id\":\"B\",\"client_message_id\":\"m\",\"sender\":\"bob\",\"body\":null}\n\n")
        .seed("\u{9}event: moderated\nid: 1.9.00ff\ndata: {\"id\":\"1.2.00ff\",\"moderated\":true}\n\nid: 1.9")
        .seed("\u{7}id: 1.2.00ff\ndata: {\"line\":\"direct\",\"broker_message_id\":\"B\",\ndata: \"client_message_id\":\"m\",\"sender\":\"bob\",\"body_base64\":\"aGk=\"}\n\n")
        .run(stream);
}

/// The first byte says in which pieces the others come.
fn stream(input: &[u8]) -> Verdict {
    let Some((step, bytes)) = input.split_first() else { return Ok("nothing".into()) };
    let whole = read(bytes, bytes.len().max(1));
    let cut = read(bytes, usize::from(*step).max(1));
    if whole.as_ref().ok() != cut.as_ref().ok() {
        return Err(format!("whole it is {whole:?}, in pieces of {step} bytes {cut:?}"));
    }
    let Ok(frames) = whole else { return Ok("refused".into()) };
    let expected = elsewhere(bytes).ok_or("another reader refuses it")?;
    if frames != expected {
        return Err(format!("{frames:?}, but another reader finds {expected:?}"));
    }
    let last = frames.last().map(|frame| frame.id.clone()).unwrap_or_default();
    let (count, kinds) = (frames.len(), frames.clone());
    let Ok(came) = came("team", "topic:news", frames, Timestamp::from_millis(5)) else {
        return Ok("no events of a broker".into());
    };
    if came.cursor != last || came.messages.len() + came.gaps.len() > count {
        return Err(format!("of {kinds:?} came {came:?}"));
    }
    let mut messages = came.messages.iter();
    for frame in kinds.iter().filter(|frame| matches!(frame.event.as_str(), "" | "message")) {
        let message = messages.next().ok_or("a message is lost")?;
        let said: Value = match serde_json::from_str(&frame.data) {
            Ok(said) => said,
            // Numbers beyond what this reader can hold are kept as they are.
            Err(_) => return Ok("beyond another reader".into()),
        };
        if said["client_message_id"] != message.message_id.as_str()
            || said["sender"] != message.sender.as_str()
        {
            return Err(format!("{said} is kept as {message:?}"));
        }
        let is_json = said.get("body").is_some();
        if is_json && serde_json::from_slice::<Value>(&message.payload).ok().as_ref() != said.get("body") {
            return Err(format!("the body of {said} is kept as {:?}", message.payload));
        }
    }
    Ok(format!("{} messages, {} gaps", came.messages.len().min(3), came.gaps.len().min(3)).into())
}

fn read(bytes: &[u8], step: usize) -> Result<Vec<Frame>, String> {
    let mut frames = Frames::default();
    for piece in bytes.chunks(step) {
        frames.push(piece)?;
    }
    let (count, whole) = (frames.count(), frames.take());
    assert_eq!((count, frames.count(), frames.bytes()), (whole.len(), 0, 0), "what was taken is gone");
    Ok(whole)
}

/// The same by the words of the standard, from the whole text at once. Nothing where it is no text.
fn elsewhere(bytes: &[u8]) -> Option<Vec<Frame>> {
    let end = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    let text = std::str::from_utf8(&bytes[..end]).ok()?.replace("\r\n", "\n");
    let (mut found, mut fields) = (Vec::new(), BTreeMap::<&str, Vec<&str>>::new());
    for line in text.split_terminator('\n') {
        if !line.is_empty() {
            let (name, value) = line.split_once(':').unwrap_or((line, ""));
            fields.entry(name).or_default().push(value.strip_prefix(' ').unwrap_or(value));
            continue;
        }
        let block = std::mem::take(&mut fields);
        let last = |name| block.get(name).and_then(|all| all.last()).copied().unwrap_or_default().to_owned();
        let data = block.get("data").map_or(String::new(), |all| all.join("\n"));
        if !data.is_empty() {
            found.push(Frame { event: last("event"), id: last("id"), data });
        }
    }
    Some(found)
}
