//! `hapax drill` on each database.

mod common;

use common::{Database, Kind, config_text, hapax, run};

on_each_database!(all_drills_pass_and_leave_nothing);

async fn all_drills_pass_and_leave_nothing(kind: Kind) {
    let database = Database::new(kind);
    let file = database.folder.path().join("hapax.toml");
    std::fs::write(&file, config_text(&database, "http://127.0.0.1:1", "")).unwrap();
    let mut command = hapax();
    let (code, output, errors) = run(command.args(["drill", "--json", "--config"]).arg(&file));
    assert_eq!((code, errors.as_str()), (0, ""), "{output}");
    let passed = output.lines().filter(|line| line.contains("\"passed\":true")).count();
    assert_eq!(passed, if kind == Kind::Sqlite { 9 } else { 10 }, "{output}");
    let left = match kind {
        Kind::Sqlite => std::fs::read_dir(database.folder.path())
            .unwrap()
            .filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().contains("drill"))
            .count() as i64,
        Kind::Postgres => database
            .number("SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'hapax_drill_%'"),
        Kind::Mysql => database.number(
            "SELECT count(*) FROM information_schema.schemata WHERE schema_name LIKE 'hapax_drill_%'",
        ),
    };
    assert_eq!(left, 0);
}

#[test]
fn a_worker_cannot_be_armed_by_accident() {
    let (code, _, errors) = run(hapax().args(["run", "--halt-at", "before-commit"]));
    assert_eq!(code, 2, "{errors}");
    let (_, help, _) = run(hapax().arg("--help"));
    assert!(help.contains("drill") && !help.contains("drill-worker"), "{help}");
}
