//! Just enough of SQL's lexical rules to tell a parameter from what looks like one.

use super::rowset::{ROWSET_NAME, Rowset};
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
/// What commits the transaction on MySQL ("Statements That Cause an Implicit Commit" in its manual).
#[cfg(feature = "mysql")]
const MYSQL_COMMITS: &[&str] = &[
    "ALTER",
    "ANALYZE",
    "CACHE",
    "CHECK",
    "CREATE",
    "DROP",
    "FLUSH",
    "GRANT",
    "INSTALL",
    "LOCK",
    "OPTIMIZE",
    "RENAME",
    "REPAIR",
    "RESET",
    "REVOKE",
    "TRUNCATE",
    "UNINSTALL",
    "UNLOCK",
    "XA",
];
const CHANGING: &[&str] = &["INSERT", "UPDATE", "DELETE", "REPLACE", "MERGE"];
const VERBS: &[&str] = &["SELECT", "VALUES", "CALL", "DO"];

/// After these comes what a statement reads from.
const READS_FROM: &[&str] = &["FROM", "JOIN", "USING", "STRAIGHT_JOIN"];
/// Words after a table's name that are no alias of it.
const AFTER_A_TABLE: &[&str] = &[
    "CROSS",
    "EXCEPT",
    "FETCH",
    "FOR",
    "FULL",
    "GROUP",
    "HAVING",
    "INNER",
    "INTERSECT",
    "JOIN",
    "LEFT",
    "LIMIT",
    "NATURAL",
    "OFFSET",
    "ON",
    "ORDER",
    "RETURNING",
    "RIGHT",
    "SET",
    "STRAIGHT_JOIN",
    "TABLESAMPLE",
    "UNION",
    "USING",
    "WHERE",
    "WINDOW",
];

/// With a rowset, puts it in wherever the statement reads from its name.
pub fn parse(
    sql: &str,
    backend: Backend,
    rowset: Option<&Rowset>,
) -> Result<Statement, StatementError> {
    let rules = rules(backend);
    let mut lexer = Lexer { rest: sql.trim(), rules, text: String::new(), pieces: Vec::new() };
    let (mut first_word, mut verb): (Option<String>, Option<String>) = (None, None);
    let mut depth = 0_i32;
    let (mut last_word, mut reads_rowset) = (String::new(), false);
    while let Some(token) = lexer.next()? {
        if matches!(token, Token::Blank) {
            continue;
        }
        let before = std::mem::take(&mut last_word);
        match token {
            Token::Word(word) => {
                let word = word.to_ascii_uppercase();
                if let Some(rowset) = rowset
                    && word.eq_ignore_ascii_case(ROWSET_NAME)
                    && READS_FROM.contains(&before.as_str())
                {
                    lexer.put_in(rowset);
                    reads_rowset = true;
                }
                let is_verb = CHANGING.contains(&word.as_str()) || VERBS.contains(&word.as_str());
                if depth == 0 && is_verb {
                    verb.get_or_insert(word.clone());
                }
                first_word.get_or_insert_with(|| word.clone());
                last_word = word;
            }
            Token::Open => depth += 1,
            Token::Close => depth -= 1,
            Token::End => break,
            Token::Other | Token::Blank => {}
        }
    }
    let first_word = first_word.ok_or(StatementError::Empty)?;
    if rowset.is_some() && !reads_rowset {
        return Err(StatementError::NoRowset);
    }
    if ends_transaction(&first_word, backend) {
        return Err(StatementError::TransactionControl(first_word));
    }
    let is_one_of = |verbs: &[&str]| verb.as_deref().is_some_and(|verb| verbs.contains(&verb));
    let changes_rows = is_one_of(CHANGING);
    let can_be_planned = changes_rows || is_one_of(&["SELECT", "VALUES"]);
    Ok(Statement { pieces: lexer.finish(), changes_rows, can_be_planned })
}

fn ends_transaction(first_word: &str, backend: Backend) -> bool {
    let commits = match backend {
        #[cfg(feature = "sqlite")]
        Backend::Sqlite => false,
        #[cfg(feature = "postgres")]
        Backend::Postgres => false,
        #[cfg(feature = "mysql")]
        Backend::Mysql => MYSQL_COMMITS.contains(&first_word),
    };
    commits || TRANSACTION_CONTROL.contains(&first_word)
}

/// Where the backends' lexical rules differ.
struct Rules {
    /// `$$…$$`, and `$1` for a positional parameter.
    dollar_quotes: bool,
    /// Backslashes escape in every string, or only in `E'…'`.
    backslash_escapes: bool,
    escape_strings: bool,
    nested_comments: bool,
    /// A comment from `#` to the end of the line; `--` needs a space then.
    hash_comments: bool,
    /// `` `name` ``
    backticks: bool,
    /// `[name]`
    brackets: bool,
    /// `?` is a positional parameter. On PostgreSQL it is an operator of jsonb.
    question_marks: bool,
}

fn rules(backend: Backend) -> Rules {
    match backend {
        #[cfg(feature = "sqlite")]
        Backend::Sqlite => Rules {
            dollar_quotes: false,
            backslash_escapes: false,
            escape_strings: false,
            nested_comments: false,
            hash_comments: false,
            backticks: true,
            brackets: true,
            question_marks: true,
        },
        #[cfg(feature = "postgres")]
        Backend::Postgres => Rules {
            dollar_quotes: true,
            backslash_escapes: false,
            escape_strings: true,
            nested_comments: true,
            hash_comments: false,
            backticks: false,
            brackets: false,
            question_marks: false,
        },
        #[cfg(feature = "mysql")]
        Backend::Mysql => Rules {
            dollar_quotes: false,
            backslash_escapes: true,
            escape_strings: false,
            nested_comments: false,
            hash_comments: true,
            backticks: true,
            brackets: false,
            question_marks: true,
        },
    }
}

enum Token {
    Word(String),
    Open,
    Close,
    /// The semicolon that ends the statement.
    End,
    /// White space, or a comment.
    Blank,
    Other,
}

struct Lexer<'a> {
    rest: &'a str,
    rules: Rules,
    text: String,
    pieces: Vec<Piece>,
}

impl Lexer<'_> {
    fn next(&mut self) -> Result<Option<Token>, StatementError> {
        let Some(first) = self.rest.chars().next() else { return Ok(None) };
        let token = match first {
            '\'' | '"' if self.rules.backslash_escapes => self.escaped_string(first)?,
            '\'' => self.up_to('\'', "a string")?,
            '"' => self.up_to('"', "a quoted name")?,
            '`' if self.rules.backticks => self.up_to('`', "a quoted name")?,
            '[' if self.rules.brackets => self.up_to(']', "a quoted name")?,
            '-' | '#' if self.is_at_line_comment() => self.line_comment(),
            '/' if self.rest.starts_with("/*") => self.block_comment()?,
            '$' if self.rules.dollar_quotes => self.dollar()?,
            '?' if self.rules.question_marks => {
                return Err(StatementError::Positional(self.take_while(|c| c == '?').into()));
            }
            ':' => self.colon(),
            ';' => return self.end().map(Some),
            '(' => self.copy(1, Token::Open),
            ')' => self.copy(1, Token::Close),
            c if is_word_start(c) => self.word()?,
            c if c.is_whitespace() => self.copy(c.len_utf8(), Token::Blank),
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
    fn up_to(&mut self, end: char, what: &'static str) -> Result<Token, StatementError> {
        let length = self.rest[1..].find(end).ok_or(StatementError::Unclosed(what))?;
        Ok(self.copy(1 + length + end.len_utf8(), Token::Other))
    }

    fn word(&mut self) -> Result<Token, StatementError> {
        let word = self.take_while(is_word_part).to_owned();
        let token = self.copy(word.len(), Token::Word(word.clone()));
        let escapes = self.rules.escape_strings && word.eq_ignore_ascii_case("e");
        match escapes && self.rest.starts_with('\'') {
            true => self.escaped_string('\''),
            false => Ok(token),
        }
    }

    /// A string in which a backslash takes the next character's meaning away.
    fn escaped_string(&mut self, quote: char) -> Result<Token, StatementError> {
        let mut skip = true;
        let end = self.rest.char_indices().find(|(_, c)| {
            let is_end = !skip && *c == quote;
            skip = !skip && *c == '\\';
            is_end
        });
        let (end, _) = end.ok_or(StatementError::Unclosed("a string"))?;
        Ok(self.copy(end + 1, Token::Other))
    }

    fn is_at_line_comment(&self) -> bool {
        let needs_space = self.rules.hash_comments;
        match self.rest.strip_prefix("--") {
            Some(after) => !needs_space || after.chars().next().is_none_or(char::is_whitespace),
            None => self.rules.hash_comments && self.rest.starts_with('#'),
        }
    }

    fn line_comment(&mut self) -> Token {
        let length = self.take_while(|c| c != '\n').len();
        self.copy(length, Token::Blank)
    }

    fn block_comment(&mut self) -> Result<Token, StatementError> {
        let nests = self.rules.nested_comments;
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
                return Ok(self.copy(at, Token::Blank));
            }
        }
    }

    /// In the place of the rowset's name, which was just read.
    fn put_in(&mut self, rowset: &Rowset) {
        let name_at = self.text.len() - ROWSET_NAME.len();
        let (head, tail) = rowset.sql();
        self.text.replace_range(name_at.., &head);
        self.flush();
        self.pieces.push(Piece::Parameter(ROWSET_NAME.into()));
        self.text.push_str(&tail);
        if !self.is_at_alias() {
            self.text.push_str(" AS ");
            self.text.push_str(ROWSET_NAME);
        }
    }

    /// Whether a table's name, which was just read, gets another one.
    fn is_at_alias(&self) -> bool {
        let rest = self.rest.trim_start();
        let end = rest.find(|c| !is_word_part(c)).unwrap_or(rest.len());
        let word = rest[..end].to_ascii_uppercase();
        let is_quoted = rest.starts_with(['"', '`', '[']);
        is_quoted || !word.is_empty() && !AFTER_A_TABLE.contains(&word.as_str())
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
            if self.is_at_line_comment() {
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
}

/// Whether the whole text is one word.
pub fn is_word(text: &str) -> bool {
    text.starts_with(is_word_start) && text.chars().all(is_word_part)
}

fn is_word_start(c: char) -> bool {
    c.is_alphabetic() || c == '_'
}

fn is_word_part(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

#[cfg(test)]
#[cfg(all(feature = "sqlite", feature = "postgres", feature = "mysql"))]
mod tests {
    use super::super::SqlType;
    use super::*;

    const ALL: [Backend; 3] = [Backend::Sqlite, Backend::Postgres, Backend::Mysql];

    fn parameters(sql: &str, backend: Backend) -> Vec<String> {
        let statement = parse(sql, backend, None).unwrap_or_else(|error| panic!("{sql}: {error}"));
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
            for backend in ALL {
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
        assert_eq!(sqlite(r"SELECT '\', :yes"), ["yes"]);
        let mysql = |sql| parameters(sql, Backend::Mysql);
        assert_eq!(mysql(r#"SELECT '\' :no', "\" :no", `:no`, :yes"#), ["yes"]);
        assert_eq!(mysql("SELECT 5--:yes # :no ' \n , :too"), ["too", "yes"]);
        assert_eq!(mysql("SELECT @a := :yes -- :no"), ["yes"]);
        assert_eq!(mysql("SELECT :yes; # the end"), ["yes"]);
    }

    #[test]
    fn statements_that_cannot_be_run_as_meant_are_refused() {
        let error = |sql, backend| parse(sql, backend, None).unwrap_err();
        for backend in ALL {
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
        for commits in ["CREATE TABLE a (b INT)", "truncate a", "DROP TABLE a"] {
            let error = error(commits, Backend::Mysql);
            assert!(matches!(error, StatementError::TransactionControl(_)), "{commits}");
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
            for backend in ALL {
                assert_eq!(parse(sql, backend, None).unwrap().changes_rows(), expected, "{sql}");
            }
        }
    }
    #[test]
    fn the_rowset_is_put_in_where_a_statement_reads_from_it() {
        let rowset = |backend| Rowset::new(backend, vec![("id".into(), SqlType::Bigint)]);
        let parsed = |sql, backend| parse(sql, backend, Some(&rowset(backend)));
        for (sql, places, named) in [
            ("SELECT batch.id, 'from batch' FROM batch -- from batch", 1, 1),
            ("INSERT INTO t (batch) SELECT b.id FROM Batch AS b WHERE 1 = 1", 1, 0),
            ("INSERT INTO t SELECT b.id FROM /* x */ batch b", 1, 0),
            ("SELECT 1 FROM a JOIN batch ON a.id = batch.id JOIN (SELECT * FROM batch) x", 2, 2),
            ("DELETE FROM a USING batch WHERE a.id = batch.id", 1, 1),
            ("SELECT 1 FROM batch \"b\", batch_2", 1, 0),
            ("SELECT 1 FROM batch;", 1, 1),
        ] {
            for backend in ALL {
                let statement =
                    parsed(sql, backend).unwrap_or_else(|error| panic!("{sql}: {error}"));
                let is_place = |piece: &&Piece| matches!(piece, Piece::Parameter(_));
                assert_eq!(statement.pieces.iter().filter(is_place).count(), places, "{sql}");
                let is_named = |piece: &&Piece| match piece {
                    Piece::Text(text) => text.contains(") AS batch"),
                    Piece::Parameter(_) => false,
                };
                assert_eq!(statement.pieces.iter().filter(is_named).count(), named, "{sql}");
            }
        }
        for backend in ALL {
            for sql in ["SELECT 1", "SELECT 'FROM batch'", "SELECT 1 FROM a.batch"] {
                assert_eq!(parsed(sql, backend).unwrap_err(), StatementError::NoRowset, "{sql}");
            }
        }
    }
}
