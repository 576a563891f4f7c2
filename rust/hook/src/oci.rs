//! As much JSON as the hook needs: members of an object by name, whole numbers, texts and true. Strict and shallow.
//!
//! The hook has no dependency, so that it is a small static program; the runtime's state is JSON of which only `pid`
//! matters (OCI runtime specification, "State").

/// Objects and arrays within one another.
const DEEPEST: usize = 32;

/// The container's first process, as the runtime's namespace numbers it.
pub(crate) fn pid(state: &str) -> Result<u32, String> {
    let raw = member(state, "pid")?.ok_or("it has no pid")?;
    match raw.parse::<u32>() {
        Ok(pid) if pid > 0 => Ok(pid),
        _ => Err(format!("pid {raw} is no process")),
    }
}

/// Whether a member of an object is `true`.
pub(crate) fn is_true(text: &str, name: &str) -> bool {
    matches!(member(text, name), Ok(Some("true")))
}

/// A text in a member that is an object.
pub(crate) fn text_within(text: &str, object: &str, name: &str) -> Option<String> {
    let inner = member(text, object).ok()??;
    string_value(member(inner, name).ok()??)
}

/// Appends a text as JSON writes it.
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

/// The raw text of a member's value; none where the object has no such member.
fn member<'a>(text: &'a str, name: &str) -> Result<Option<&'a str>, String> {
    let mut reader = Reader { text, at: 0 };
    let mut found = None;
    reader.expect('{')?;
    if !reader.takes('}') {
        loop {
            reader.space();
            let key = reader.string()?;
            reader.expect(':')?;
            reader.space();
            let from = reader.at;
            reader.value(0)?;
            if string_value(key).as_deref() == Some(name) {
                if found.is_some() {
                    return Err(format!("{name} is there twice"));
                }
                found = text.get(from..reader.at);
            }
            if reader.takes(',') {
                continue;
            }
            reader.expect('}')?;
            break;
        }
    }
    reader.space();
    if reader.at == text.len() {
        Ok(found)
    } else {
        Err(reader.wrong("the end"))
    }
}

fn string_value(raw: &str) -> Option<String> {
    let inner = raw.strip_prefix('"')?.strip_suffix('"')?;
    let mut value = String::new();
    let mut characters = inner.chars();
    while let Some(character) = characters.next() {
        if character != '\\' {
            value.push(character);
            continue;
        }
        match characters.next()? {
            'n' => value.push('\n'),
            't' => value.push('\t'),
            'r' => value.push('\r'),
            'b' | 'f' => value.push(' '),
            'u' => {
                let digits: String = characters.by_ref().take(4).collect();
                let code = u32::from_str_radix(&digits, 16).ok()?;
                // Half of a pair: shown as unknown, since nothing is decided by it.
                value.push(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER));
            }
            other => value.push(other),
        }
    }
    Some(value)
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Reader<'a> {
    fn value(&mut self, depth: usize) -> Result<(), String> {
        self.space();
        if depth > DEEPEST {
            return Err("it is nested too deeply".to_owned());
        }
        match self.peek() {
            Some('"') => self.string().map(|_| ()),
            Some('{') => self.collection('{', '}', depth, true),
            Some('[') => self.collection('[', ']', depth, false),
            _ => self.plain(),
        }
    }

    fn collection(
        &mut self,
        open: char,
        close: char,
        depth: usize,
        keys: bool,
    ) -> Result<(), String> {
        self.expect(open)?;
        if self.takes(close) {
            return Ok(());
        }
        loop {
            if keys {
                self.space();
                self.string()?;
                self.expect(':')?;
            }
            self.value(depth + 1)?;
            if !self.takes(',') {
                return self.expect(close);
            }
        }
    }

    /// A number, true, false or null.
    fn plain(&mut self) -> Result<(), String> {
        let rest = self.rest();
        let length = rest
            .find(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.')))
            .unwrap_or(rest.len());
        let word = rest.get(..length).unwrap_or_default();
        let number = word.starts_with(|c: char| c.is_ascii_digit() || c == '-')
            && word.parse::<f64>().is_ok();
        if !number && !matches!(word, "true" | "false" | "null") {
            return Err(self.wrong("a value"));
        }
        self.at += length;
        Ok(())
    }

    fn string(&mut self) -> Result<&'a str, String> {
        let from = self.at;
        self.expect('"')?;
        let mut escaped = false;
        for (offset, character) in self.rest().char_indices() {
            match character {
                _ if escaped => escaped = false,
                '\\' => escaped = true,
                '"' => {
                    self.at += offset + 1;
                    return self
                        .text
                        .get(from..self.at)
                        .ok_or_else(|| self.wrong("text"));
                }
                _ => {}
            }
        }
        Err("a text has no end".to_owned())
    }

    fn expect(&mut self, wanted: char) -> Result<(), String> {
        if self.takes(wanted) {
            Ok(())
        } else {
            Err(self.wrong(&format!("{wanted:?}")))
        }
    }

    fn takes(&mut self, wanted: char) -> bool {
        self.space();
        let there = self.peek() == Some(wanted);
        if there {
            self.at += wanted.len_utf8();
        }
        there
    }

    fn space(&mut self) {
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

    fn wrong(&self, wanted: &str) -> String {
        format!("no JSON object: {wanted} is expected at byte {}", self.at)
    }
}

#[cfg(test)]
mod tests {
    use super::{is_true, pid, text_within, write_string};

    #[test]
    fn the_pid_is_that_of_the_outer_object() {
        let state = r#"{"ociVersion":"1.2.0","id":"a\"pid\":3","annotations":{"pid":"9","x":[1,{"pid":8}]},
            "status":"created","pid":4711,"bundle":"/b"}"#;
        assert_eq!(pid(state), Ok(4711));
    }

    #[test]
    fn what_is_no_state_is_refused() {
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
        ] {
            assert!(pid(state).is_err(), "{state:?}");
        }
        assert_eq!(
            pid("[]"),
            Err("no JSON object: '{' is expected at byte 0".to_owned())
        );
    }

    #[test]
    fn every_kind_of_value_is_passed_over() {
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
    fn an_answer_is_understood_and_a_question_is_json() {
        assert!(is_true(r#"{"result":true}"#, "result"));
        assert!(!is_true(r#"{"result":"true"}"#, "result"));
        let answer = r#"{"result":null,"failure":{"what":"no \"claim\" \u00e4","where":null}}"#;
        assert_eq!(
            text_within(answer, "failure", "what").as_deref(),
            Some("no \"claim\" ä")
        );
        let mut line = String::new();
        write_string(&mut line, "a\"b\\c\nd");
        assert_eq!(line, r#""a\"b\\c\u000ad""#);
    }
}
