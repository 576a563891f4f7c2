//! A minimal, strict JSON parser: members of an object by name, integers, strings and `true`.
//!
//! The hook has no dependencies, so that it is a small static binary. It needs only `pid` of the runtime's state (OCI
//! runtime specification, "State"). Invalid JSON is refused, because a number in it could be the ID of another process.

use std::collections::BTreeSet;

/// The maximum nesting of objects and arrays.
const MAX_DEPTH: usize = 32;

/// Returns the ID of the container's first process in the PID namespace of the runtime.
pub(crate) fn pid(state: &str) -> Result<u32, String> {
    let raw = member(state, "pid")?.ok_or("it has no pid")?;
    match raw.parse::<u32>() {
        Ok(pid) if pid > 0 => Ok(pid),
        _ => Err(format!("pid {raw} is not a process ID")),
    }
}

/// Whether a member of an object is `true`.
pub(crate) fn is_true(text: &str, name: &str) -> bool {
    matches!(member(text, name), Ok(Some("true")))
}

/// Returns a string member of the member `object`.
pub(crate) fn nested_string(text: &str, object: &str, name: &str) -> Option<String> {
    let inner = member(text, object).ok()??;
    string_value(member(inner, name).ok()??)
}

/// Appends a string as JSON.
pub(crate) fn write_string(to: &mut String, text: &str) {
    to.push('"');
    for character in text.chars() {
        match character {
            '"' | '\\' => {
                to.push('\\');
                to.push(character);
            }
            other if other.is_control() => to.push_str(&format!("\\u{:04x}", u32::from(other))),
            other => to.push(other),
        }
    }
    to.push('"');
}

/// Returns the raw text of a member's value; `None` if the object has no such member.
fn member<'a>(text: &'a str, name: &str) -> Result<Option<&'a str>, String> {
    let mut reader = Reader { text, at: 0 };
    let mut found = None;
    reader.object(0, &mut |key, value| {
        if key == name {
            found = Some(value);
        }
    })?;
    reader.skip_whitespace();
    if reader.rest().is_empty() {
        Ok(found)
    } else {
        Err(reader.syntax_error("the end"))
    }
}

fn string_value(raw: &str) -> Option<String> {
    let mut reader = Reader { text: raw, at: 0 };
    reader.string().ok().filter(|_| reader.rest().is_empty())
}

/// Parses RFC 8259. Duplicate names are errors, because parsers differ in the value that they use.
struct Reader<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Reader<'a> {
    fn value(&mut self, depth: usize) -> Result<(), String> {
        self.skip_whitespace();
        if depth > MAX_DEPTH {
            return Err("it is nested too deeply".to_owned());
        }
        match self.peek() {
            Some('"') => self.string().map(|_| ()),
            Some('{') => self.object(depth + 1, &mut |_, _| {}),
            Some('[') => self.array(depth + 1),
            Some('-' | '0'..='9') => self.number(),
            _ => self.word(),
        }
    }

    /// Parses an object at the given depth and calls `each` with the name of each member and the text of its value.
    fn object(&mut self, depth: usize, each: &mut dyn FnMut(&str, &'a str)) -> Result<(), String> {
        let mut names = BTreeSet::new();
        self.expect('{')?;
        if self.skip_token('}') {
            return Ok(());
        }
        loop {
            let name = self.string()?;
            self.expect(':')?;
            self.skip_whitespace();
            let from = self.at;
            self.value(depth)?;
            each(&name, self.text.get(from..self.at).unwrap_or_default());
            if names.contains(&name) {
                return Err(format!("{name:?} appears twice"));
            }
            names.insert(name);
            if !self.has_next('}')? {
                return Ok(());
            }
        }
    }

    fn array(&mut self, depth: usize) -> Result<(), String> {
        self.expect('[')?;
        if self.skip_token(']') {
            return Ok(());
        }
        loop {
            self.value(depth)?;
            if !self.has_next(']')? {
                return Ok(());
            }
        }
    }

    /// Returns whether another item follows; otherwise consumes `close`.
    fn has_next(&mut self, close: char) -> Result<bool, String> {
        if self.skip_token(',') {
            return Ok(true);
        }
        if self.skip_token(close) {
            return Ok(false);
        }
        Err(self.syntax_error(&format!("',' or {close:?}")))
    }

    fn number(&mut self) -> Result<(), String> {
        self.skip_char('-');
        if !self.skip_char('0') {
            self.digits()?;
        }
        if self.skip_char('.') {
            self.digits()?;
        }
        if self.skip_char('e') || self.skip_char('E') {
            let _ = self.skip_char('+') || self.skip_char('-');
            self.digits()?;
        }
        Ok(())
    }

    fn digits(&mut self) -> Result<(), String> {
        let rest = self.rest();
        let digits = rest.trim_start_matches(|c: char| c.is_ascii_digit());
        if digits.len() == rest.len() {
            return Err(self.syntax_error("a digit"));
        }
        self.at += rest.len() - digits.len();
        Ok(())
    }

    fn word(&mut self) -> Result<(), String> {
        for word in ["true", "false", "null"] {
            if self.rest().starts_with(word) {
                self.at += word.len();
                return Ok(());
            }
        }
        Err(self.syntax_error("a value"))
    }

    fn string(&mut self) -> Result<String, String> {
        let mut text = String::new();
        self.expect('"')?;
        while let Some(character) = self.peek() {
            if character < ' ' {
                return Err(self.syntax_error("an escape of this control character"));
            }
            self.at += character.len_utf8();
            match character {
                '"' => return Ok(text),
                '\\' => text.push(self.escaped()?),
                _ => text.push(character),
            }
        }
        Err("a string is not terminated".to_owned())
    }

    /// Parses the escape sequence after a backslash.
    fn escaped(&mut self) -> Result<char, String> {
        for (letter, character) in [
            ('"', '"'),
            ('\\', '\\'),
            ('/', '/'),
            ('b', '\u{8}'),
            ('f', '\u{c}'),
            ('n', '\n'),
            ('r', '\r'),
            ('t', '\t'),
        ] {
            if self.skip_char(letter) {
                return Ok(character);
            }
        }
        if !self.skip_char('u') {
            return Err(self.syntax_error("an escape"));
        }
        let unit = self.code_unit()?;
        let after = self.at;
        if (0xd800..0xdc00).contains(&unit) && self.skip_char('\\') && self.skip_char('u') {
            let low = self.code_unit()?;
            if (0xdc00..0xe000).contains(&low) {
                let code = 0x10000 + ((unit - 0xd800) << 10) + (low - 0xdc00);
                return Ok(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER));
            }
        }
        // A lone surrogate becomes U+FFFD: Python encodes undecodable bytes of a path in this way.
        self.at = after;
        Ok(char::from_u32(unit).unwrap_or(char::REPLACEMENT_CHARACTER))
    }

    fn code_unit(&mut self) -> Result<u32, String> {
        let digits = self.rest().get(..4).unwrap_or_default();
        if digits.len() != 4 || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(self.syntax_error("four hexadecimal digits"));
        }
        self.at += digits.len();
        u32::from_str_radix(digits, 16).map_err(|error| error.to_string())
    }

    fn expect(&mut self, expected: char) -> Result<(), String> {
        if self.skip_token(expected) {
            Ok(())
        } else {
            Err(self.syntax_error(&format!("{expected:?}")))
        }
    }

    fn skip_token(&mut self, token: char) -> bool {
        self.skip_whitespace();
        self.skip_char(token)
    }

    fn skip_char(&mut self, character: char) -> bool {
        let found = self.peek() == Some(character);
        if found {
            self.at += character.len_utf8();
        }
        found
    }

    fn skip_whitespace(&mut self) {
        while matches!(self.peek(), Some(' ' | '\t' | '\n' | '\r')) {
            self.at += 1;
        }
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn rest(&self) -> &'a str {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn syntax_error(&self, expected: &str) -> String {
        format!("not a JSON object: expected {expected} at byte {}", self.at)
    }
}

#[cfg(test)]
mod tests {
    use super::{is_true, nested_string, pid, write_string};

    #[test]
    fn the_pid_is_that_of_the_outer_object() {
        let state = r#"{"ociVersion":"1.2.0","id":"a\"pid\":3","annotations":{"pid":"9","x":[1,{"pid":8}]},
            "status":"created","pid":4711,"bundle":"/b"}"#;
        assert_eq!(pid(state), Ok(4711));
    }

    #[test]
    fn an_invalid_state_is_refused() {
        for state in [
            "",
            "[]",
            "{}",
            r#"{"pid":0}"#,
            r#"{"pid":-1}"#,
            r#"{"pid":1.5}"#,
            r#"{"pid":"1"}"#,
            r#"{"pid":1,"pid":2}"#,
            r#"{"pid":1"#,
            r#"{"pid":1} trailing"#,
            r#"{"id":"no end}"#,
            r#"{"x":nonsense,"pid":1}"#,
            r#"{"x":inf,"pid":1}"#,
            r#"{"x":1x,"pid":1}"#,
            r#"{"x":,"pid":1}"#,
            r#"{"x":[1 2],"pid":1}"#,
            r#"{"x":{"y":1]},"pid":1}"#,
            r#"{"x":[1,],"pid":1}"#,
            r#"{"pid":1,}"#,
            "{\u{a0}\"pid\":1}",
        ] {
            assert!(pid(state).is_err(), "{state:?}");
        }
        assert_eq!(
            pid("[]"),
            Err("not a JSON object: expected '{' at byte 0".to_owned())
        );
    }

    #[test]
    fn numbers_are_those_of_json() {
        for number in [
            "007",
            "01",
            "-01",
            "00",
            "+1",
            "1.",
            "-.5",
            ".5",
            "1.e3",
            "1e",
            "1e+",
            "-",
            "--1",
            "-inf",
            "-nan",
            "-infinity",
            "0x10",
            "1_000",
            "1e5x",
        ] {
            for state in [
                format!("{{\"pid\":{number}}}"),
                format!("{{\"x\":[{number}],\"pid\":1}}"),
            ] {
                let refused = pid(&state).expect_err(&state);
                assert!(
                    refused.starts_with("not a JSON object: "),
                    "{state}: {refused}"
                );
            }
        }
        for number in ["0", "-0", "10", "0.5", "-0.25e-7", "1E+3", "0e0", "1e999"] {
            assert_eq!(
                pid(&format!("{{\"x\":{number},\"pid\":1}}")),
                Ok(1),
                "{number}"
            );
        }
        assert_eq!(
            pid(r#"{"pid":007}"#),
            Err("not a JSON object: expected ',' or '}' at byte 8".to_owned())
        );
    }

    #[test]
    fn a_pid_is_a_whole_number_without_an_exponent() {
        for number in [
            "1.0",
            "1e2",
            "-1",
            "0",
            "-0",
            "4294967296",
            "true",
            "null",
            "[1]",
        ] {
            assert_eq!(
                pid(&format!("{{\"pid\":{number}}}")),
                Err(format!("pid {number} is not a process ID"))
            );
        }
        assert_eq!(pid(r#"{"pid":4294967295}"#), Ok(u32::MAX));
    }

    #[test]
    fn texts_are_those_of_json() {
        for text in [
            "a\nb", "a\tb", "a\0b", r"\x41", r"\u12", r"\u+123", r"\u12g4", r"\'", "\\",
        ] {
            for state in [
                format!("{{\"x\":\"{text}\",\"pid\":1}}"),
                format!("{{\"{text}\":1,\"pid\":1}}"),
            ] {
                assert!(pid(&state).is_err(), "{state:?}");
            }
        }
        assert_eq!(pid(r#"{"\u0070id":7}"#), Ok(7), "an escaped name");
        assert_eq!(
            pid(r#"{"x":"\"\\\/\b\f\n\r\t\ud83d\ude00\ud800","pid":7}"#),
            Ok(7)
        );
    }

    #[test]
    fn a_name_that_an_object_has_twice_is_refused() {
        for (state, name) in [
            (r#"{"pid":1,"pid":1}"#, "pid"),
            (r#"{"pid":1,"\u0070id":2}"#, "pid"),
            (
                r#"{"annotations":{},"pid":1,"annotations":{}}"#,
                "annotations",
            ),
            (r#"{"id":"a","pid":1,"id":"b"}"#, "id"),
            (r#"{"pid":1,"annotations":{"a":"1","b":"2","a":"3"}}"#, "a"),
            (r#"{"pid":1,"x":[{"y":{"z":1,"z":2}}]}"#, "z"),
        ] {
            assert_eq!(
                pid(state),
                Err(format!("{name:?} appears twice")),
                "{state}"
            );
        }
        let apart = r#"{"pid":1,"id":{"pid":2,"id":3},"x":[{"pid":4},{"pid":5}],"\ud83d\ude00":6,"\ud83d\ude01":7}"#;
        assert_eq!(pid(apart), Ok(1));
    }

    #[test]
    fn every_type_of_value_is_skipped() {
        let state = r#" { "a" : [ ] , "b":{ },"c":[-1.5e+3,true,false,null,"]"],"d":{"e":"}"} , "pid" : 7 } "#;
        assert_eq!(pid(state), Ok(7));
    }

    #[test]
    fn nesting_is_limited() {
        let nested = |depth: usize| {
            let (open, close) = ("[".repeat(depth), "]".repeat(depth));
            pid(&format!("{{\"x\":{open}1{close},\"pid\":1}}"))
        };
        assert_eq!(nested(32), Ok(1));
        for depth in [33, 34, 99] {
            assert_eq!(nested(depth), Err("it is nested too deeply".to_owned()));
        }
    }

    #[test]
    fn a_reply_is_parsed_and_a_request_is_json() {
        assert!(is_true(r#"{"result":true}"#, "result"));
        assert!(!is_true(r#"{"result":"true"}"#, "result"));
        let reply = r#"{"result":null,"failure":{"what":"no \"claim\" \u00e4","where":null}}"#;
        assert_eq!(
            nested_string(reply, "failure", "what").as_deref(),
            Some("no \"claim\" ä")
        );
        let pairs = r#"{"failure":{"what":"\ud83d\ude00 \udc80 \ud83dx \b\f\/"}}"#;
        assert_eq!(
            nested_string(pairs, "failure", "what").as_deref(),
            Some("\u{1f600} \u{fffd} \u{fffd}x \u{8}\u{c}/"),
            "a pair, a half, a half before a letter"
        );
        let mut line = String::new();
        write_string(&mut line, "a\"b\\c\nd");
        assert_eq!(line, r#""a\"b\\c\u000ad""#);
    }
}
