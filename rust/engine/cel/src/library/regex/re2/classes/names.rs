//! The names of classes that RE2 supports.
//!
//! They are the keys of the tables `Categories`, `CategoryAliases` and `Scripts` of Go 1.26's package `unicode` that its
//! package `regexp/syntax` accepts: it finds no script with an underscore in its name. In lower case, without `_`, `-` and
//! spaces, which are ignored.

#[rustfmt::skip]
pub(super) const NAMES: &[&str] = &[
    "adlam", "ahom", "any", "arabic", "armenian", "ascii", "assigned", "avestan", "balinese",
    "bamum", "batak", "bengali", "bhaiksuki", "bopomofo", "brahmi", "braille", "buginese", "buhid",
    "c", "carian", "casedletter", "cc", "cf", "chakma", "cham", "cherokee", "chorasmian",
    "closepunctuation", "cn", "cntrl", "co", "combiningmark", "common", "connectorpunctuation",
    "control", "coptic", "cs", "cuneiform", "currencysymbol", "cypriot", "cyrillic",
    "dashpunctuation", "decimalnumber", "deseret", "devanagari", "digit", "dogra", "duployan",
    "elbasan", "elymaic", "enclosingmark", "ethiopic", "finalpunctuation", "format", "georgian",
    "glagolitic", "gothic", "grantha", "greek", "gujarati", "gurmukhi", "han", "hangul", "hanunoo",
    "hatran", "hebrew", "hiragana", "inherited", "initialpunctuation", "javanese", "kaithi",
    "kannada", "katakana", "kawi", "kharoshthi", "khmer", "khojki", "khudawadi", "l", "lao",
    "latin", "lc", "lepcha", "letter", "letternumber", "limbu", "lineseparator", "lisu", "ll",
    "lm", "lo", "lowercaseletter", "lt", "lu", "lycian", "lydian", "m", "mahajani", "makasar",
    "malayalam", "mandaic", "manichaean", "marchen", "mark", "mathsymbol", "mc", "me",
    "medefaidrin", "miao", "mn", "modi", "modifierletter", "modifiersymbol", "mongolian", "mro",
    "multani", "myanmar", "n", "nabataean", "nandinagari", "nd", "newa", "nko", "nl", "no",
    "nonspacingmark", "number", "nushu", "ogham", "openpunctuation", "oriya", "osage", "osmanya",
    "other", "otherletter", "othernumber", "otherpunctuation", "othersymbol", "p", "palmyrene",
    "paragraphseparator", "pc", "pd", "pe", "pf", "phoenician", "pi", "po", "privateuse", "ps",
    "punct", "punctuation", "rejang", "runic", "s", "samaritan", "saurashtra", "sc", "separator",
    "sharada", "shavian", "siddham", "sinhala", "sk", "sm", "so", "sogdian", "soyombo",
    "spaceseparator", "spacingmark", "sundanese", "surrogate", "symbol", "syriac", "tagalog",
    "tagbanwa", "takri", "tamil", "tangsa", "tangut", "telugu", "thaana", "thai", "tibetan",
    "tifinagh", "tirhuta", "titlecaseletter", "toto", "ugaritic", "unassigned", "uppercaseletter",
    "vai", "vithkuqi", "wancho", "yezidi", "yi", "z", "zl", "zp", "zs",
];
