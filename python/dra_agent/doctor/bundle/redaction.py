"""Removes credentials from everything in a support bundle: the only module that defines their names and forms.

Three ways, because each alone misses some: values of fields and variables with known names, forms that only
credentials have, and values that were found under such a name in one file, wherever else they occur.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

REMOVED = "[removed]"
MIN_LEARNED_CHARS = 8
"""A shorter value is removed behind its name only: elsewhere it may be a word."""

# The last word of DB_PASS, MYSQL_PWD, signing-key and accountKey; not of bypass, PWD, monkey and topologyKey.
_LAST_WORD = (
    r"(?<!public)(?<!topology)(?:[_.-](?:pass|pwd|key)|(?-i:(?<=[a-z0-9])(?:Pass|Pwd|Key))|(?<![\w.-])pgpass)(?![\w.-])"
)
# Atomic: a word of megabytes takes linear time.
_NAME = (
    r"(?>[\w.-]*?(?:token|passw(?:or)?d|passphrase|secret|credential|api[_-]?key|access[_-]?key|private[_-]?key"
    rf"|client[_-]?key[_-]?data|client[_-]?certificate[_-]?data|authorization|cookie|{_LAST_WORD})[\w.-]*)"
)
_IS_SECRET = re.compile(_NAME, re.IGNORECASE)
_ASSIGNMENT = re.compile(rf"\s*(?:export\s+)?({_NAME})\s*=(.*)", re.IGNORECASE | re.DOTALL)
_NAMES_OF_PLACES = ("FILE", "PATH", "DIR", "URL", "URI")
"""AWS_WEB_IDENTITY_TOKEN_FILE holds no token."""
_KEEP = frozenset({"", "true", "false", "null", "none", "~", REMOVED})
_BEGIN = r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----"
_END = r"-----END [A-Z0-9 ]*PRIVATE KEY-----"
# A line of base64, as in a key whose first or last line was cut off: 64 characters (RFC 7468, section 2). Modaliases of
# PCI functions have 49; hexadecimal digests are excluded.
_BASE64 = re.compile(r"(?<![A-Za-z0-9+/_=-])[A-Za-z0-9+/]{60,}={0,2}(?![A-Za-z0-9+/_=-])")
_FORMS = (
    re.compile(rf"{_BEGIN}(?:(?:(?!-----)[^\"])*{_END}|[A-Za-z0-9+/=\s\\]*)"),
    # JSON Web Tokens (RFC 7519): two or three parts in base64url, the first one of which encodes '{"'.
    re.compile(r"\beyJ[A-Za-z0-9_-]{5,}\.[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]*)?"),
    # Prefixes that AWS, GitHub, GitLab, Hugging Face, Slack, Google, NVIDIA, OpenAI, npm and PyPI give to credentials.
    re.compile(
        r"\b(?:(?:AKIA|ASIA)[0-9A-Z]{16}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{20,}"
        r"|hf_[A-Za-z0-9]{20,}|x(?:ox[a-z]|app)-[A-Za-z0-9-]{10,}|AIza[\w-]{35}|nvapi-[\w-]{20,}|sk-[\w-]{20,}"
        r"|npm_[A-Za-z0-9]{36}|pypi-[\w-]{50,})"
    ),
)
# Signatures in URLs and connection strings, which permit what they sign: of Azure, AWS and Google.
_SIGNATURE = re.compile(r"((?:[?&;]|\\u0026)(?:[\w-]*signature|sig)=)[^&;\s\"'\\]+", re.IGNORECASE)
# The syntax of the header: RFC 6750, section 2.1.
_SCHEMES = "bearer|basic|digest|token"
_BEARER = re.compile(r"\b(bearer|basic)(\s+)[A-Za-z0-9._~+/-]{8,}=*", re.IGNORECASE)
# A password, or a token in place of the user, which is longer than names are.
_USERINFO = re.compile(r"(://(?:[^/\s:@\"']*:(?=[^@])|(?=[^/\s:@\"']{16,}@)))[^/\s@\"']+@")
# An assignment in quotes, whose value may hold blanks: "HF_TOKEN=a b".
_QUOTED_ASSIGNMENT = re.compile(rf"(?P<q>[\"'])(?P<key>{_NAME}=)(?:(?!(?<!\\)(?P=q))[^\n])*", re.IGNORECASE)
# name: value, name=value, "name": "value", and the same in a JSON string, where quotes have backslashes.
_QUOTED = re.compile(
    rf"(?P<key>(?<![\w.-]){_NAME}(?:\\*[\"'])?\s*[:=]\s*)(?P<q>\\*[\"'])(?P<value>(?:(?!(?<!\\)(?P=q))[^\n])*)",
    re.IGNORECASE,
)
# A mapping, a list or a block of lines follows, and not the value itself.
_NO_STRUCTURE = r"(?![{\[][\"'{\[\s]|[|>&{\[]\s*$)"
_BARE = re.compile(
    rf"(?P<key>(?<![\w.-]){_NAME}(?:\\*[\"'])?[^\S\n]*[:=][^\S\n]*)"
    rf"(?:(?:{_SCHEMES})\s+)?{_NO_STRUCTURE}(?P<value>[^\s\"'\\]+)",
    re.IGNORECASE | re.MULTILINE,
)
_FLAG_NAME = re.compile(rf"--{_NAME}", re.IGNORECASE)
_FLAG = re.compile(rf"(?<![\w-])(--{_NAME})([ \t]+)(?!-|\[removed\])[^\s\"'\\]+", re.IGNORECASE)
_REST_OF_LINE = re.compile(
    rf"(?P<key>(?<![\w.-]){_NAME}[\"']?[^\S\n]*[:=][^\S\n]*){_NO_STRUCTURE}(?P<value>[^\s][^\n]*)",
    re.IGNORECASE | re.MULTILINE,
)
_BLOCK = re.compile(
    rf"^(?P<indent>[ ]*)(?P<dash>- )?(?P<key>[\"']?{_NAME}[\"']?:[ ]*[|>][^\n]*)\n(?:(?P=indent)[ ]+[^\n]*\n?|[ ]*\n)+",
    re.IGNORECASE | re.MULTILINE,
)


def is_secret_name(name: str) -> bool:
    """Return whether a field or a variable of this name usually holds a credential."""
    return _IS_SECRET.fullmatch(name) is not None


def _names_secret(item: Mapping[Any, Any]) -> bool:
    """Whether an object is a variable or a key with the name of a credential: `{"name": "TOKEN", "value": "..."}`."""
    return is_secret_name(str(item.get("name") or item.get("key") or ""))


class Redactor:
    """Removes credentials, and counts them."""

    def __init__(self) -> None:
        self.removed = 0
        self._learned: set[str] = set()
        self._pattern: re.Pattern[str] | None = None

    def learn(self, value: str) -> None:
        """Take a credential; from now on it is removed wherever it occurs, also as JSON has it in a string."""
        value = value.strip()
        if len(value) < MIN_LEARNED_CHARS or value.lower() in _KEEP:
            return
        self._learned |= {value, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]}
        self._pattern = None

    def learn_variables(self, variables: Mapping[str, str]) -> None:
        """Take the values of environment variables with the name of a credential."""
        for name, value in variables.items():
            if is_secret_name(name) and not name.upper().endswith(_NAMES_OF_PLACES):
                self.learn(value)

    def learn_document(self, value: Any) -> None:
        """Take the credentials of a JSON or YAML document, such as a kubeconfig or a CDI spec."""
        if isinstance(value, Mapping):
            for key, below in value.items():
                is_secret = is_secret_name(str(key)) or (key == "value" and _names_secret(value))
                if is_secret and isinstance(below, str):
                    self.learn(below)
                self.learn_document(below)
        elif isinstance(value, list | tuple):
            for below in value:
                self.learn_document(below)
        elif isinstance(value, str) and (found := _ASSIGNMENT.fullmatch(value)):
            self.learn(found[2])

    def text(self, text: str, *, is_file: bool = False) -> str:
        """Return text without credentials. `is_file`: of a file with one field a line, whose values may hold blanks."""
        for pattern in _FORMS:
            text = self._sub(pattern, REMOVED, text)
        text = _BASE64.sub(self._base64, text)
        if is_file:
            text = self._sub(_BLOCK, rf"\g<indent>\g<dash>\g<key> {REMOVED}\n", text)
        text = self._sub(_QUOTED_ASSIGNMENT, rf"\g<q>\g<key>{REMOVED}", text)
        text = _QUOTED.sub(lambda found: self._value(found, found["key"] + found["q"]), text)
        bare = _REST_OF_LINE if is_file else _BARE
        text = bare.sub(lambda found: self._value(found, found["key"]), text)
        text = self._sub(_FLAG, rf"\1\2{REMOVED}", text)
        text = self._sub(_BEARER, rf"\1\2{REMOVED}", text)
        text = self._sub(_USERINFO, rf"\1{REMOVED}@", text)
        text = self._sub(_SIGNATURE, rf"\1{REMOVED}", text)
        if self._pattern is None and self._learned:
            longest = sorted(self._learned, key=len, reverse=True)
            self._pattern = re.compile("|".join(map(re.escape, longest)))
        return text if self._pattern is None else self._sub(self._pattern, REMOVED, text)

    def document(self, value: Any) -> Any:
        """Return a JSON or YAML document without credentials: the same structure with other texts."""
        if isinstance(value, Mapping):
            is_variable = _names_secret(value)
            return {
                self.text(str(key)): self._hidden(below)
                if is_secret_name(str(key)) or (is_variable and key == "value")
                else self.document(below)
                for key, below in value.items()
            }
        if isinstance(value, list | tuple):
            flags = [None, *value]
            return [
                self._hidden(below) if isinstance(flag, str) and _FLAG_NAME.fullmatch(flag) else self.document(below)
                for flag, below in zip(flags, value, strict=False)
            ]
        if not isinstance(value, str):
            return value
        if found := _ASSIGNMENT.fullmatch(value):
            self.removed += found[2] not in _KEEP
            return f"{found[1]}={REMOVED if found[2] not in _KEEP else found[2]}"
        return self.text(value)

    def _hidden(self, value: Any) -> Any:
        """Return the replacement of a credential, which may also be a number."""
        if isinstance(value, list | tuple):
            return [self._hidden(below) for below in value]
        if isinstance(value, Mapping):
            return self.document(value)
        if value is None or isinstance(value, bool) or str(value).lower() in _KEEP:
            return value
        self.removed += 1
        return REMOVED

    def _value(self, found: re.Match[str], before: str) -> str:
        if found["value"].strip().lower() in _KEEP or found["value"].startswith(REMOVED):
            return found[0]
        self.removed += 1
        return before + REMOVED

    def _base64(self, found: re.Match[str]) -> str:
        run = found[0]
        kinds = (str.isupper, str.islower, str.isdigit)
        if not all(any(map(kind, run)) for kind in kinds) or run.count("/") * 16 > len(run):
            return run  # a digest, or a path
        self.removed += 1
        return REMOVED

    def _sub(self, pattern: re.Pattern[str], by: str, text: str) -> str:
        text, count = pattern.subn(by, text)
        self.removed += count
        return text
