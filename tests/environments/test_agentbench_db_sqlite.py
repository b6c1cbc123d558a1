"""The embedded database: what statements can do to it, and what they cannot do to anything else."""

import os
import threading
import time

import pytest
from tests.environments.agentbench_db_tasks import CITIES, LIMITS

from midcourse.environments.agentbench_db.database import TRUNCATED, Limits, StatementError
from midcourse.environments.agentbench_db.sqlite import MAX_PAGES, PAGE_BYTES, SqliteDatabase
from midcourse.environments.agentbench_db.tables import Table
from midcourse.errors import EnvironmentFault

COUNT = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c)"
QUICK = Limits(statement_seconds=0.5, result_characters=800)


@pytest.fixture
def database():
    made = SqliteDatabase.with_tables([CITIES], LIMITS)
    yield made
    made.close()


def test_statements_answer_with_rows_or_how_many_they_changed(database):
    assert database.run("SELECT * FROM `City list`") == "[('Oslo', 'Ann'), ('Bergen', 'Zoë'), ('Oslo', 'b')]"
    assert database.run("UPDATE `City list` SET Name = 'x' WHERE Name = 'Oslo'") == "ok, 2 rows affected"
    assert database.run("DELETE FROM `City list` WHERE Name = 'x' RETURNING Name") == "[('x',), ('x',)]"
    assert list(database.rows(CITIES)) == [("Bergen", "Zoë")]


def test_text_compares_as_in_mysql(database):
    assert database.run("""SELECT Name FROM "City list" WHERE `Mayor's name` = 'ZOE'""") == "[('Bergen',)]"


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE `City list` ADD COLUMN Size TEXT",
        "ALTER TABLE `City list` RENAME TO other",
        "ALTER TABLE `City list` DROP COLUMN Name",
        "CREATE TABLE copy AS SELECT * FROM `City list`",
        "CREATE INDEX i ON `City list` (Name)",
        "CREATE VIEW v AS SELECT * FROM `City list`",
        "CREATE TRIGGER t AFTER INSERT ON `City list` BEGIN DELETE FROM `City list` WHERE Name = 'x'; END",
        "PRAGMA table_info(`City list`)",
        "SELECT name, sql FROM sqlite_master",
        "SELECT json_extract('[1]', '$[0]')",
        "BEGIN",
        "DROP TABLE `City list`",
    ],
)
def test_what_an_agent_needs_works(database, statement):
    database.run(statement)


@pytest.mark.parametrize(
    "statement",
    [
        "ATTACH 'out.db' AS other",
        "ATTACH ':memory:' AS other",
        "DETACH main",
        "VACUUM INTO 'out.db'",
        "VACUUM",
        "PRAGMA writable_schema = 1",
        "PRAGMA max_page_count = 1000000",
        "PRAGMA temp_store_directory = '.'",
        "PRAGMA case_sensitive_like = 1",
        "SELECT load_extension('out')",
        "SELECT LOAD_EXTENSION('out')",
        "SELECT writefile('out', 'x')",
        "SELECT readfile('/etc/passwd')",
        "SELECT * INTO OUTFILE 'out' FROM `City list`",
        "CREATE VIRTUAL TABLE f USING fts5(a)",
        "CREATE TEMP TABLE t (a)",
        "UPDATE sqlite_master SET sql = ''",
        "SELECT printf('%.*c', 1000000000, 'x')",
        "SELECT \"format\"('%.*c', 1000000000, 'x')",
        "SELECT last_insert_rowid()",
        "SELECT 1; DROP TABLE `City list`",
        "SELECT * FROM nowhere",
        "SELECT ?",
        "SELECT 'a\0b'",
        "KILL 1",
    ],
)
def test_what_leaves_the_tables_is_refused_and_the_tables_stay(database, statement, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StatementError):
        database.run(statement)
    assert os.listdir(tmp_path) == []
    assert list(database.rows(CITIES)) == list(CITIES.rows)


def test_a_fork_is_confined_too(database):
    twin = database.fork()
    for statement in ("ATTACH ':memory:' AS other", "SELECT load_extension('x')", "PRAGMA max_page_count = 9"):
        with pytest.raises(StatementError):
            twin.run(statement)
    assert twin.run("SELECT Name FROM `City list` WHERE Name = 'OSLO'") == "[('Oslo',), ('Oslo',)]"


@pytest.mark.parametrize(
    "statement",
    [
        f"{COUNT} SELECT count(*) FROM c",
        f"{COUNT} SELECT x, hex(zeroblob(1000)) FROM c ORDER BY x DESC",
        f"{COUNT} SELECT count(*) FROM c a, c b WHERE a.x = -b.x",
        f"INSERT INTO `City list` SELECT x, x FROM ({COUNT} SELECT x FROM c) WHERE x < 0",
    ],
)
def test_a_statement_that_never_ends_is_ended_and_undone(statement):
    database = SqliteDatabase.with_tables([CITIES], QUICK)
    with pytest.raises(StatementError, match=r"took longer than 0\.5 s and was ended"):
        database.run(statement)
    assert list(database.rows(CITIES)) == list(CITIES.rows)
    assert database.run("SELECT 1") == "[(1,)]"


def test_a_view_that_never_ends_in_place_of_a_table_is_no_state():
    database = SqliteDatabase.with_tables([CITIES], QUICK)
    database.run("DROP TABLE `City list`")
    database.run(f"CREATE VIEW `City list` AS {COUNT} SELECT x AS Name, x AS `Mayor's name` FROM c WHERE x < 0")
    assert database.rows(CITIES) is None


def test_a_hundred_megabytes_of_rows_are_cut_where_they_are_shown(database):
    began = time.process_time()
    text = database.run(f"{COUNT} SELECT hex(zeroblob(20000)) FROM c LIMIT 2500")
    assert len(text) == 800 + len(TRUNCATED)
    assert text.startswith("[('0000")
    assert time.process_time() - began < 1.0  # the other rows were never made


def test_values_and_databases_have_a_largest_size(database):
    with pytest.raises(StatementError, match="too big"):
        database.run("SELECT zeroblob(1000000000)")
    database.run("CREATE TABLE big (a)")
    with pytest.raises(StatementError, match="full"):
        database.run(
            f"INSERT INTO big {COUNT} SELECT zeroblob(40000) FROM c LIMIT {MAX_PAGES * PAGE_BYTES // 40000 + 9}"
        )
    assert database.run("SELECT count(*) FROM big") == "[(0,)]"
    assert list(database.rows(CITIES)) == list(CITIES.rows)


def test_a_statement_too_long_to_be_one_is_refused(database):
    with pytest.raises(StatementError):
        database.run("SELECT " + "1+" * 100_000 + "1")


def test_a_transaction_ends_with_the_call_that_began_it(database):
    database.run("BEGIN")
    database.run("DELETE FROM `City list`")
    with pytest.raises(StatementError, match="no transaction"):
        database.run("ROLLBACK")
    assert list(database.rows(CITIES)) == []


@pytest.mark.parametrize("statement", ["DROP TABLE `City list`", "ALTER TABLE `City list` DROP COLUMN Name"])
def test_a_table_that_is_gone_has_no_state(database, statement):
    database.run(statement)
    assert database.rows(CITIES) is None


def test_a_table_far_larger_than_any_that_is_asked_for_has_no_state(database, monkeypatch):
    # The table's 21 letters and one more for each of its 6 values; the row of "x" and "y" is 4 more, one of NULLs 2.
    monkeypatch.setattr("midcourse.environments.agentbench_db.database.MAX_STATE_CHARACTERS", 31)
    database.run("INSERT INTO `City list` VALUES ('x', 'y')")
    assert len(database.rows(CITIES)) == 4
    database.run("INSERT INTO `City list` VALUES (NULL, NULL)")
    assert database.rows(CITIES) is None


def test_a_view_of_endless_text_in_place_of_a_table_is_not_read_to_its_end(database):
    database.run("DROP TABLE `City list`")
    endless = f"{COUNT} SELECT hex(zeroblob(20000)) AS Name, x AS `Mayor's name` FROM c"
    database.run(f"CREATE VIEW `City list` AS {endless}")
    assert database.rows(CITIES) is None


def test_names_of_every_kind_are_names():
    odd = Table(name='`a" ]%s', columns=("%d`", '"x"', "select", "1952"), rows=(("1", "2", "3", None),))
    database = SqliteDatabase.with_tables([odd], LIMITS)
    assert list(database.rows(odd)) == [("1", "2", "3", None)]
    with pytest.raises(EnvironmentFault, match="duplicate column name"):
        SqliteDatabase.with_tables([Table(name="t", columns=("a", "A"), rows=())], LIMITS)


def test_forks_of_forks_are_independent_and_closing_one_leaves_the_others_alone(database):
    database.run("INSERT INTO `City list` VALUES ('1', '1')")
    second = database.fork()
    second.run("INSERT INTO `City list` VALUES ('2', '2')")
    third = second.fork()
    third.run("CREATE TABLE other (a)")
    database.close()
    database.close()
    assert second.run("SELECT count(*) FROM `City list`") == "[(5,)]"
    second.close()
    assert third.run("SELECT count(*) FROM `City list`, (SELECT count(*) FROM other)") == "[(5,)]"
    with pytest.raises(EnvironmentFault, match="closed"):
        second.run("SELECT 1")


def test_closing_ends_what_another_thread_still_runs():
    database = SqliteDatabase.with_tables([CITIES], Limits(statement_seconds=60.0, result_characters=80))
    outcome = []

    def run() -> None:
        try:
            outcome.append(database.run(f"{COUNT} SELECT count(*) FROM c"))
        except (StatementError, EnvironmentFault) as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    time.sleep(0.3)
    began = time.monotonic()
    database.close()
    thread.join(60)
    assert time.monotonic() - began < 50  # and not after the minute that the statement may take
    assert not thread.is_alive()
    assert isinstance(outcome[0], StatementError | EnvironmentFault)
