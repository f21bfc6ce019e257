//! Just enough of SQL's lexical rules to tell a parameter from what looks like one.

use super::{Piece, Statement, StatementError};
use crate::store::Backend;

const TRANSACTION_CONTROL: &[&str] = &[
    "BEGIN",
    "START",
    "COMMIT",
    "END",
    "ROLLBACK",
    "ABORT",
    "SAVEPOINT",
    "RELEASE",
    "PREPARE",
    "SET",
    "PRAGMA",
    "ATTACH",
    "DETACH",
    "VACUUM",
];
const CHANGING: &[&str] = &["INSERT", "UPDATE", "DELETE", "REPLACE", "MERGE"];
const VERBS: &[&str] = &["SELECT", "VALUES", "CALL", "DO"];

pub fn parse(sql: &str, backend: Backend) -> Result<Statement, StatementError> {
    let mut lexer = Lexer { rest: sql.trim(), backend, text: String::new(), pieces: Vec::new() };
    let (mut first_word, mut verb): (Option<String>, Option<String>) = (None, None);
    let mut depth = 0_i32;
    while let Some(token) = lexer.next()? {
        match token {
            Token::Word(word) => {
                let word = word.to_ascii_uppercase();
                let is_verb = CHANGING.contains(&word.as_str()) || VERBS.contains(&word.as_str());
                if depth == 0 && is_verb {
                    verb.get_or_insert(word.clone());
                }
                first_word.get_or_insert(word);
            }
            Token::Open => depth += 1,
            Token::Close => depth -= 1,
            Token::End => break,
            Token::Other => {}
        }
    }
    let first_word = first_word.ok_or(StatementError::Empty)?;
    if TRANSACTION_CONTROL.contains(&first_word.as_str()) {
        return Err(StatementError::TransactionControl(first_word));
    }
    let is_one_of = |verbs: &[&str]| verb.as_deref().is_some_and(|verb| verbs.contains(&verb));
    let changes_rows = is_one_of(CHANGING);
    let can_be_planned = changes_rows || is_one_of(&["SELECT", "VALUES"]);
    Ok(Statement { pieces: lexer.finish(), changes_rows, can_be_planned })
}

enum Token {
    Word(String),
    Open,
    Close,
    /// The semicolon that ends the statement.
    End,
    Other,
}

struct Lexer<'a> {
    rest: &'a str,
    backend: Backend,
    text: String,
    pieces: Vec<Piece>,
}

impl Lexer<'_> {
    fn next(&mut self) -> Result<Option<Token>, StatementError> {
        let Some(first) = self.rest.chars().next() else { return Ok(None) };
        let token = match first {
            '\'' => self.quoted('\'', "a string")?,
            '"' => self.quoted('"', "a quoted name")?,
            '`' if self.has_backticks() => self.quoted('`', "a quoted name")?,
            '[' if self.has_brackets() => self.up_to(']', "a quoted name")?,
            '-' if self.rest.starts_with("--") => self.line_comment(),
            '/' if self.rest.starts_with("/*") => self.block_comment()?,
            '$' if self.has_dollar_quotes() => self.dollar()?,
            '?' if self.has_question_marks() => {
                return Err(StatementError::Positional(self.take_while(|c| c == '?').into()));
            }
            ':' => self.colon(),
            ';' => return self.end().map(Some),
            '(' => self.copy(1, Token::Open),
            ')' => self.copy(1, Token::Close),
            c if is_word_start(c) => self.word()?,
            c => self.copy(c.len_utf8(), Token::Other),
        };
        Ok(Some(token))
    }

    fn finish(mut self) -> Vec<Piece> {
        self.flush();
        self.pieces
    }

    fn flush(&mut self) {
        if !self.text.is_empty() {
            self.pieces.push(Piece::Text(std::mem::take(&mut self.text)));
        }
    }

    fn copy(&mut self, bytes: usize, token: Token) -> Token {
        let (head, rest) = self.rest.split_at(bytes);
        self.text.push_str(head);
        self.rest = rest;
        token
    }

    fn take_while(&self, accept: impl Fn(char) -> bool) -> &str {
        let end = self.rest.find(|c| !accept(c)).unwrap_or(self.rest.len());
        &self.rest[..end]
    }

    /// A doubled quote inside is two runs next to each other, which comes to the same.
    fn quoted(&mut self, quote: char, what: &'static str) -> Result<Token, StatementError> {
        self.up_to(quote, what)
    }

    fn up_to(&mut self, end: char, what: &'static str) -> Result<Token, StatementError> {
        let length = self.rest[1..].find(end).ok_or(StatementError::Unclosed(what))?;
        Ok(self.copy(1 + length + end.len_utf8(), Token::Other))
    }

    /// PostgreSQL's E'…' knows backslash escapes.
    fn word(&mut self) -> Result<Token, StatementError> {
        let word = self.take_while(is_word_part).to_owned();
        let token = self.copy(word.len(), Token::Word(word.clone()));
        let escapes = self.has_dollar_quotes() && word.eq_ignore_ascii_case("e");
        match escapes && self.rest.starts_with('\'') {
            true => self.escaped_string(),
            false => Ok(token),
        }
    }

    fn escaped_string(&mut self) -> Result<Token, StatementError> {
        let mut skip = true;
        let end = self.rest.char_indices().find(|(_, c)| {
            let is_end = !skip && *c == '\'';
            skip = !skip && *c == '\\';
            is_end
        });
        let (end, _) = end.ok_or(StatementError::Unclosed("a string"))?;
        Ok(self.copy(end + 1, Token::Other))
    }

    fn line_comment(&mut self) -> Token {
        let length = self.take_while(|c| c != '\n').len();
        self.copy(length, Token::Other)
    }

    /// PostgreSQL's comments nest.
    fn block_comment(&mut self) -> Result<Token, StatementError> {
        let nests = self.has_dollar_quotes();
        let (mut depth, mut at) = (0, 0);
        loop {
            let rest = &self.rest[at..];
            if rest.starts_with("/*") && (nests || depth == 0) {
                depth += 1;
                at += 2;
            } else if rest.starts_with("*/") {
                depth -= 1;
                at += 2;
            } else {
                let next = rest.chars().next().ok_or(StatementError::Unclosed("a comment"))?;
                at += next.len_utf8();
            }
            if depth == 0 {
                return Ok(self.copy(at, Token::Other));
            }
        }
    }

    fn dollar(&mut self) -> Result<Token, StatementError> {
        let tag = self.rest[1..].find(|c| !is_word_part(c)).unwrap_or(self.rest.len() - 1);
        let tag = &self.rest[..=tag];
        if tag[1..].starts_with(|c: char| c.is_ascii_digit()) {
            return Err(StatementError::Positional(tag.to_owned()));
        }
        if !self.rest[tag.len()..].starts_with('$') {
            return Ok(self.copy(1, Token::Other));
        }
        let delimiter = format!("{tag}$");
        let length = self.rest[delimiter.len()..]
            .find(&delimiter)
            .ok_or(StatementError::Unclosed("a dollar-quoted string"))?;
        Ok(self.copy(length + 2 * delimiter.len(), Token::Other))
    }

    fn colon(&mut self) -> Token {
        if self.rest.starts_with("::") || self.rest.starts_with(":=") {
            return self.copy(2, Token::Other);
        }
        let name = &self.rest[1..];
        if !name.starts_with(is_word_start) {
            return self.copy(1, Token::Other);
        }
        let end = name.find(|c| !is_word_part(c)).unwrap_or(name.len());
        let name = name[..end].to_owned();
        self.rest = &self.rest[1 + end..];
        self.flush();
        self.pieces.push(Piece::Parameter(name));
        Token::Other
    }

    /// Only white space and comments may follow a semicolon; both are left out.
    fn end(&mut self) -> Result<Token, StatementError> {
        self.rest = &self.rest[1..];
        let kept = (self.text.len(), self.pieces.len());
        loop {
            self.rest = self.rest.trim_start();
            if self.rest.starts_with("--") {
                self.line_comment();
            } else if self.rest.starts_with("/*") {
                self.block_comment()?;
            } else if let Some(rest) = self.rest.strip_prefix(';') {
                self.rest = rest;
            } else {
                break;
            }
        }
        self.text.truncate(kept.0);
        match self.rest.is_empty() {
            true => Ok(Token::End),
            false => Err(StatementError::SeveralStatements),
        }
    }

    fn has_dollar_quotes(&self) -> bool {
        match self.backend {
            #[cfg(feature = "sqlite")]
            Backend::Sqlite => false,
            #[cfg(feature = "postgres")]
            Backend::Postgres => true,
        }
    }

    /// On PostgreSQL `?` is an operator of jsonb.
    fn has_question_marks(&self) -> bool {
        !self.has_dollar_quotes()
    }

    fn has_backticks(&self) -> bool {
        !self.has_dollar_quotes()
    }

    fn has_brackets(&self) -> bool {
        match self.backend {
            #[cfg(feature = "sqlite")]
            Backend::Sqlite => true,
            #[cfg(feature = "postgres")]
            Backend::Postgres => false,
        }
    }
}

fn is_word_start(c: char) -> bool {
    c.is_alphabetic() || c == '_'
}

fn is_word_part(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

#[cfg(test)]
#[cfg(all(feature = "sqlite", feature = "postgres"))]
mod tests {
    use super::*;

    const BOTH: [Backend; 2] = [Backend::Sqlite, Backend::Postgres];

    fn parameters(sql: &str, backend: Backend) -> Vec<String> {
        let statement = parse(sql, backend).unwrap_or_else(|error| panic!("{sql}: {error}"));
        statement.parameters().into_iter().map(str::to_owned).collect()
    }

    #[test]
    fn parameters_are_told_from_what_looks_like_them() {
        for (sql, expected) in [
            ("UPDATE a SET b = b + :points WHERE id = :id", vec!["id", "points"]),
            ("SELECT ':no', \":no\", 'it''s :no' -- :no\n , :yes", vec!["yes"]),
            ("SELECT /* :no ' */ :yes", vec!["yes"]),
            ("SELECT :a, :a, :b_2;", vec!["a", "b_2"]),
            ("INSERT INTO t VALUES (:é)", vec!["é"]),
            ("SELECT 1 -- the end", vec![]),
            ("SELECT 'a;b', :x ; -- done;\n /* ; */ ;", vec!["x"]),
        ] {
            for backend in BOTH {
                assert_eq!(parameters(sql, backend), expected, "{sql} on {backend:?}");
            }
        }
        let postgres = |sql| parameters(sql, Backend::Postgres);
        assert_eq!(postgres("SELECT :id::uuid, '1'::text"), ["id"]);
        assert_eq!(postgres("SELECT $$ :no $$, $x$ $$ :no $x$, :yes"), ["yes"]);
        assert_eq!(postgres(r"SELECT E'\' :no', :yes"), ["yes"]);
        assert_eq!(postgres("SELECT /* a /* b */ :no */ :yes"), ["yes"]);
        assert_eq!(postgres("SELECT a ? 'k', :yes"), ["yes"]);
        let sqlite = |sql| parameters(sql, Backend::Sqlite);
        assert_eq!(sqlite("SELECT `:no`, [:no], :yes"), ["yes"]);
        assert_eq!(sqlite("SELECT /* a /* b */ :yes"), ["yes"]);
    }

    #[test]
    fn statements_that_cannot_be_run_as_meant_are_refused() {
        let error = |sql, backend| parse(sql, backend).unwrap_err();
        for backend in BOTH {
            for empty in ["", "  ", ";", "-- nothing", "/* nothing */"] {
                assert_eq!(error(empty, backend), StatementError::Empty, "{empty:?}");
            }
            for several in ["SELECT 1; SELECT 2", "DELETE FROM a;;DELETE FROM b"] {
                assert_eq!(error(several, backend), StatementError::SeveralStatements);
            }
            for unclosed in ["SELECT 'a", "SELECT \"a", "SELECT /* a"] {
                assert!(matches!(error(unclosed, backend), StatementError::Unclosed(_)));
            }
            for control in ["COMMIT", "begin", "/* x */ ROLLBACK;", "SAVEPOINT a"] {
                let error = error(control, backend);
                assert!(matches!(error, StatementError::TransactionControl(_)), "{control}");
            }
        }
        assert!(matches!(error("SELECT $1", Backend::Postgres), StatementError::Positional(_)));
        assert!(matches!(error("SELECT ?", Backend::Sqlite), StatementError::Positional(_)));
    }

    #[test]
    fn it_is_known_whether_a_statement_changes_rows() {
        for (sql, expected) in [
            ("UPDATE a SET b = 1", true),
            ("insert into a values (1)", true),
            ("WITH x AS (SELECT 1) DELETE FROM a", true),
            ("WITH x AS (DELETE FROM a RETURNING 1) SELECT * FROM x", false),
            ("SELECT 'UPDATE'", false),
            ("SELECT * FROM a FOR UPDATE", false),
        ] {
            for backend in BOTH {
                assert_eq!(parse(sql, backend).unwrap().changes_rows(), expected, "{sql}");
            }
        }
    }
}
