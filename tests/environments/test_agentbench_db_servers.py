"""AgentBench-DB on a MariaDB of its own: the server's life, episodes on it, and what statements cannot do to it."""

import glob
import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.environments.agentbench_db_tasks import (
    CITIES,
    DELETE,
    INSERT,
    LIMITS,
    QUESTION,
    UPDATE,
    answer,
    sql,
    start,
    world,
    write_tasks,
)
from tests.environments.code_data import official

pytest.importorskip("pymysql", reason="servers need PyMySQL")
if (
    shutil.which("mariadbd", path=f"{os.environ['PATH']}:/usr/sbin") is None
    or shutil.which("mariadb-install-db") is None
):
    pytest.skip("needs MariaDB (Debian: mariadb-server-core, mariadb-client-core)", allow_module_level=True)

from midcourse.environments.agentbench_db import (
    AgentBenchDBConfig,
    AgentBenchDBEnvironment,
    MariaDBConfig,
    ServerConfig,
    TaskFile,
)
from midcourse.environments.agentbench_db.connection import connect
from midcourse.environments.agentbench_db.database import TRUNCATED, Limits, StatementError
from midcourse.environments.agentbench_db.mariadb import FOLDER_PREFIX, MariaDBServer, remove_abandoned
from midcourse.environments.agentbench_db.server import ServerDatabase
from midcourse.environments.agentbench_db.tables import Table, state_hash
from midcourse.environments.base import ForkableEpisode
from midcourse.environments.replay import ReplayingEpisode
from midcourse.errors import ConfigError, EnvironmentFault, ReplayMismatchError

QUICK = Limits(statement_seconds=1.0, result_characters=800)


def started(folder: str | None = None) -> MariaDBServer:
    """A server, waited for as long as a busy machine needs."""
    return MariaDBConfig(folder=folder, start_seconds=600.0).build()


@pytest.fixture(scope="module")
def server():
    made = started()
    yield made
    made.close()


@pytest.fixture
def database(server):
    made = ServerDatabase(server, [CITIES], LIMITS)
    yield made
    made.close()


def open_environment(server, folder, *records, limits=LIMITS) -> AgentBenchDBEnvironment:
    """An environment on the tests' server."""
    problems = TaskFile(path=write_tasks(folder, *records)).read()
    return AgentBenchDBEnvironment(
        {"train": problems}, open_database=lambda tables: ServerDatabase(server, tables, limits), dialect="mysql"
    )


def names(server, query: str) -> list[str]:
    connection = connect(server.address(), statement_seconds=30.0)
    with connection.cursor() as cursor:
        cursor.execute(query)
        found = [row[0] for row in cursor.fetchall()]
    connection.close()
    return found


def databases(server) -> list[str]:
    return [name for name in names(server, "SHOW DATABASES") if name.startswith("midcourse")]


# Statements


def test_statements_answer_with_rows_or_how_many_they_changed(database):
    assert database.run("SELECT * FROM `City list`") == "[('Oslo', 'Ann'), ('Bergen', 'Zoë'), ('Oslo', 'b')]"
    assert database.run("UPDATE `City list` SET Name = 'Oslo' WHERE Name = 'OSLO'") == "ok, 2 rows affected"
    assert database.run("SELECT 1.5, 2, NULL, 'a'") == "[(1.5, 2, None, 'a')]"
    assert database.run("SELECT Name FROM `City list` WHERE `Mayor's name` = 'ZOE'") == "[('Bergen',)]"
    with pytest.raises(StatementError, match=r"^1146: Table 'midcourse\.nowhere' doesn't exist$"):
        database.run("SELECT * FROM nowhere")


def test_a_tables_hash_is_the_servers_own(database):
    database.run("INSERT INTO `City list` VALUES (NULL, 'it\\'s'), (NULL, NULL)")
    columns = "`Name`, `Mayor's name`"
    official_hash = database.run(
        "SELECT md5(group_concat(h ORDER BY h)) FROM "
        f"(SELECT substring(md5(concat_ws(',', {columns})), 1, 5) AS h FROM `City list`) AS hashed"
    )
    assert official_hash == f"[('{state_hash(database.rows(CITIES))}',)]"


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT * FROM `City list` INTO OUTFILE '{folder}/out'",
        "SELECT 'x' INTO DUMPFILE '{folder}/out'",
        "LOAD DATA INFILE '/etc/passwd' INTO TABLE `City list`",
        "LOAD DATA LOCAL INFILE '/etc/passwd' INTO TABLE `City list`",
        "SELECT * FROM mysql.user",
        "USE mysql",
        "CREATE DATABASE other",
        "CREATE USER other",
        "GRANT ALL ON *.* TO CURRENT_USER()",
        "SET GLOBAL max_connections = 1",
        "SHUTDOWN",
        "INSTALL SONAME 'ha_connect'",
        "FLUSH TABLES WITH READ LOCK",
        "LOCK TABLES `City list` WRITE",
        "CREATE PROCEDURE p() BEGIN END",
        "CREATE TRIGGER t BEFORE INSERT ON `City list` FOR EACH ROW SET NEW.Name = 'x'",
        "SELECT 1; DROP TABLE `City list`",
        "XA START 'a'",
        "KILL CONNECTION_ID()",
        "KILL QUERY CONNECTION_ID()",
        "",
    ],
)
def test_what_leaves_the_tables_is_refused_and_the_tables_stay(database, statement, tmp_path):
    with pytest.raises(StatementError):
        database.run(statement.format(folder=tmp_path))
    assert os.listdir(tmp_path) == []
    assert database.run("SELECT 1") == "[(1,)]"
    assert list(database.rows(CITIES)) == list(CITIES.rows)


def test_files_cannot_be_read_or_placed_elsewhere(database, tmp_path):
    assert database.run("SELECT load_file('/etc/passwd')") == "[(None,)]"
    database.run(f"CREATE TABLE t (a INT) ENGINE = MyISAM DATA DIRECTORY = '{tmp_path}'")
    assert os.listdir(tmp_path) == []
    assert "ENGINE=InnoDB" in database.run("SHOW CREATE TABLE t")


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT sleep(1000)",
        "SELECT benchmark(1000000000000, md5('a'))",
        "SELECT count(*) FROM seq_1_to_1000000 a, seq_1_to_1000000 b WHERE a.seq * b.seq % 7 = 8",
        "UPDATE `City list` SET Name = 'x' WHERE sleep(1000) = 0",
    ],
)
def test_a_statement_that_never_ends_is_ended_and_undone(server, statement):
    database = ServerDatabase(server, [CITIES], QUICK)
    with pytest.raises(StatementError, match=r"took longer than 1 s and was ended"):
        database.run(statement)
    assert database.run("SELECT count(*) FROM `City list`") == "[(3,)]"
    assert list(database.rows(CITIES)) == list(CITIES.rows)
    database.close()


def test_a_hundred_megabytes_of_rows_are_cut_and_not_read(server):
    database = ServerDatabase(server, [CITIES], Limits(statement_seconds=60.0, result_characters=800))
    began = time.process_time()
    text = database.run("SELECT repeat('x', 1000) FROM seq_1_to_100000")
    assert len(text) == 800 + len(TRUNCATED)
    assert time.process_time() - began < 1.0  # far less than it takes to read them
    assert database.run("SELECT 1") == "[(1,)]"
    database.close()


def test_a_change_that_returns_many_rows_is_made_whole(database):
    text = database.run("INSERT INTO `City list` SELECT seq, seq FROM seq_1_to_2000 RETURNING Name")
    assert text.endswith(TRUNCATED)
    assert database.run("SELECT count(*) FROM `City list`") == "[(2003,)]"


def test_a_session_lasts_over_calls_and_a_transaction_does_not(database):
    database.run("SET @x = 5")
    assert database.run("SELECT @x") == "[(5,)]"
    database.run("SET autocommit = 0")
    database.run("DELETE FROM `City list`")
    database.run("ROLLBACK")
    assert list(database.rows(CITIES)) == []


@pytest.mark.parametrize(
    "statement", ["DROP TABLE `City list`", "ALTER TABLE `City list` DROP COLUMN Name", "DROP DATABASE {database}"]
)
def test_a_table_that_is_gone_has_no_state(database, statement):
    database.run(statement.format(database=database._name))
    assert database.rows(CITIES) is None


def test_names_and_values_of_every_kind_are_kept(server):
    odd = Table(
        name='`a" ]%s', columns=("%d`", '"x"', "select", "1952"), rows=(("it's" * 100, "\\n", "%s", None),) * 700
    )
    database = ServerDatabase(server, [odd], LIMITS)
    assert list(database.rows(odd)) == list(odd.rows)
    database.close()


def test_a_disk_full_of_rows_is_an_error_and_the_next_episode_starts_clean(server):
    patient = Limits(statement_seconds=60.0, result_characters=800)
    database = ServerDatabase(server, [CITIES], patient)
    database.run("CREATE TABLE big (a LONGTEXT)")
    with pytest.raises(StatementError, match="full"):
        database.run("INSERT INTO big SELECT repeat('x', 250000) FROM seq_1_to_1000")
    database.close()
    database = ServerDatabase(server, [CITIES], patient)
    assert database.run("SELECT count(*) FROM `City list`") == "[(3,)]"
    database.close()


# Episodes


def test_every_episode_has_a_database_and_an_account_of_its_own(server):
    first, second = (ServerDatabase(server, [CITIES], LIMITS) for _ in range(2))
    assert len(databases(server)) == 2
    with pytest.raises(StatementError, match="denied"):
        first.run(f"DELETE FROM {second._name}.`City list`")
    assert first.run("SELECT database(), substring_index(user(), '@', 1)") == "[('midcourse', 'midcourse')]"
    first.close()
    first.close()
    assert second.run("SELECT count(*) FROM `City list`") == "[(3,)]"
    second.close()
    assert databases(server) == []
    assert [name for name in names(server, "SELECT user FROM mysql.user") if name.startswith("midcourse")] == []
    with pytest.raises(EnvironmentFault, match="closed"):
        second.run("SELECT 1")


@pytest.mark.parametrize("record", [UPDATE, INSERT, DELETE])
def test_a_change_is_scored_by_the_state_it_leads_to(server, tmp_path, record):
    environment = open_environment(server, tmp_path, record)
    assert "MySQL" in environment.system_prompt
    episode = start(environment)
    assert episode.score() == 0.0
    sql(episode, record["label"][0])
    assert episode.score() == 1.0
    episode.close()
    untouched = start(environment)
    assert untouched.score() == 0.0
    untouched.close()


def test_episodes_in_several_threads_do_not_meet(server, tmp_path):
    environment = open_environment(server, tmp_path, UPDATE, INSERT)  # the second's state is that of its statement

    def play(number: int) -> float:
        episode = start(environment, number % 2)
        sql(episode, (UPDATE, INSERT)[number % 2]["label"][0])
        reward = episode.score()
        episode.close()
        return reward

    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(play, range(12))) == [1.0] * 12
    assert databases(server) == []


def test_forks_run_the_statements_again_and_are_independent(server, tmp_path):
    environment = open_environment(server, tmp_path, UPDATE)
    first = start(environment)
    assert isinstance(first, ForkableEpisode)
    assert isinstance(first, ReplayingEpisode)
    sql(first, "SET @x = 5", "CREATE TABLE other (a INT)", "SELECT * FROM nowhere")
    second = first.fork()
    sql(second, "INSERT INTO other VALUES (1)")
    third = second.fork()
    sql(third, UPDATE["label"][0])
    first.close()
    second.close()
    seen = sql(third, "SELECT @x, count(*) FROM other", "SELECT database()")
    assert [result.content for result in seen.results] == ["[(5, 1)]", "[('midcourse',)]"]
    assert third.score() == 1.0
    third.close()
    assert databases(server) == []


@pytest.mark.parametrize("statement", ["SELECT rand()", "SELECT uuid()", "SELECT connection_id()"])
def test_a_fork_of_an_episode_that_saw_chance_is_refused(server, tmp_path, statement):
    episode = start(open_environment(server, tmp_path, QUESTION))
    sql(episode, statement)
    twin = episode.fork()
    with pytest.raises(ReplayMismatchError, match="cannot be forked by replay"):
        sql(twin, "SELECT 1")
    assert sql(episode, "SELECT 1").results[0].content == "[(1,)]"
    episode.close()
    assert databases(server) == []


def test_a_database_that_goes_away_is_a_fault_and_the_next_episode_finds_a_new_server(tmp_path):
    server = started()
    environment = open_environment(server, tmp_path, UPDATE)
    episode = start(environment)
    sql(episode, "SELECT 1")
    kill_server(server)
    with pytest.raises(EnvironmentFault, match=r"went away|does not answer"):
        sql(episode, "SELECT 1")
    with pytest.raises(EnvironmentFault, match=r"went away|does not answer"):
        episode.score()
    episode.close()
    fresh = start(environment)
    sql(fresh, UPDATE["label"][0])
    answer(fresh, "done")
    assert fresh.score() == 1.0
    fresh.close()
    server.close()


# The server


def folder_of(server: MariaDBServer) -> Path:
    return Path(server.address().unix_socket or "").parent


def server_process(folder: Path) -> int:
    return int((folder / "server.pid").read_text())


def kill_server(server: MariaDBServer) -> None:
    folder = folder_of(server)
    os.kill(server_process(folder), signal.SIGKILL)
    wait_until(lambda: not folder.exists())


def wait_until(condition, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_server_listens_on_a_private_socket_alone_and_leaves_nothing(tmp_path):
    server = started(folder=str(tmp_path))
    folder = folder_of(server)
    process = server_process(folder)
    assert folder.parent == tmp_path
    assert folder.stat().st_mode & 0o077 == 0
    assert names(server, "SELECT @@port") == [0]
    server.close()
    server.close()
    assert not is_running(process)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("end", ["", "os.kill(os.getpid(), signal.SIGKILL)", "raise SystemExit(3)"])
def test_a_server_ends_with_its_process_however_that_ends(tmp_path, end):
    code = f"""
import os, signal, sys
from midcourse.environments.agentbench_db import MariaDBConfig
server = MariaDBConfig(folder={str(tmp_path)!r}, start_seconds=600.0).build()
print(server.address().unix_socket, flush=True)
sys.stdin.readline()
{end}
"""
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdin is not None
    assert child.stdout is not None
    folder = Path(child.stdout.readline().strip()).parent
    process = server_process(folder)
    assert is_running(process)
    child.stdin.close()
    child.wait(60)
    child.stdout.close()
    wait_until(lambda: not is_running(process) and not folder.exists())


def test_a_server_whose_keeper_is_killed_dies_too_and_its_folder_is_removed_by_the_next(tmp_path):
    server = started(folder=str(tmp_path))
    folder = folder_of(server)
    process = server_process(folder)
    (keeper,) = Path(f"/proc/{process}/task/{process}/stat").read_text().rpartition(")")[2].split()[1:2]
    os.kill(int(keeper), signal.SIGKILL)
    wait_until(lambda: not is_running(process))
    assert folder.exists()
    other = started(folder=str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == [folder_of(other).name]
    remove_abandoned(tmp_path)
    assert names(other, "SELECT 1") == [1]
    other.close()
    server.close()


def test_a_child_that_was_forked_does_not_end_the_server(server):
    child = os.fork()
    if child == 0:
        server.close()
        os._exit(0)
    os.waitpid(child, 0)
    assert names(server, "SELECT 1") == [1]


@pytest.mark.parametrize(
    ("folder", "reason"),
    [("absent", "no folder for MariaDB can be made"), ("x" * 100, "too long for a socket")],
)
def test_a_server_that_cannot_be_started_is_a_wrong_setting(tmp_path, folder, reason):
    place = tmp_path / folder
    if folder != "absent":
        place.mkdir()
    with pytest.raises(ConfigError, match=f'environment.backend = "mariadb": .*{reason}'):
        MariaDBConfig(folder=str(place)).build()
    assert glob.glob(f"{tmp_path}/**/{FOLDER_PREFIX}*", recursive=True) == []


def test_a_server_that_does_not_come_up_says_why_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("midcourse.environments.agentbench_db.mariadb.SERVER_OPTIONS", ("--no-such-option",))
    with pytest.raises(ConfigError, match=r'environment\.backend = "mariadb": MariaDB ended: (.|\n)*no-such-option'):
        MariaDBConfig(folder=str(tmp_path)).build()
    assert list(tmp_path.iterdir()) == []
    monkeypatch.undo()
    with pytest.raises(ConfigError, match=r"did not answer within 0\.05 s"):
        MariaDBConfig(folder=str(tmp_path), start_seconds=0.05).build()
    assert list(tmp_path.iterdir()) == []


def test_a_missing_server_program_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("midcourse.environments.agentbench_db.mariadb.SYSTEM_FOLDERS", "")
    with pytest.raises(ConfigError, match="mariadbd and mariadb-install-db not found; install the packages"):
        MariaDBConfig().build()


def test_any_server_can_be_named_by_its_url(server, tmp_path, monkeypatch):
    url = f"mysql://root@localhost?unix_socket={server.address().unix_socket}"
    environment = world(tmp_path, UPDATE, backend="server", server=ServerConfig(url=url))
    episode = start(environment)
    sql(episode, UPDATE["label"][0])
    assert episode.score() == 1.0
    episode.close()
    environment.close()
    assert names(server, "SELECT 1") == [1]  # it is not ours to end
    monkeypatch.setenv("MIDCOURSE_DATABASE_PASSWORD", "wrong")
    with pytest.raises(ConfigError, match=r'environment\.backend = "server": .*Access denied'):
        world(tmp_path, UPDATE, backend="server", server=ServerConfig(url=url))


def test_an_account_that_may_not_make_others_is_a_wrong_setting(server, tmp_path):
    with_rights = ServerDatabase(server, [CITIES], LIMITS)
    url = f"mysql://{with_rights._name}@localhost?unix_socket={server.address().unix_socket}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MIDCOURSE_DATABASE_PASSWORD", with_rights._account.password)
        with pytest.raises(ConfigError, match=r'environment\.backend = "server": .*denied'):
            world(tmp_path, UPDATE, backend="server", server=ServerConfig(url=url))
    with_rights.close()


# The official tasks


@pytest.mark.slow
def test_mariadb_leads_to_the_official_state_of_all_changes_but_one():
    environment = AgentBenchDBConfig(
        test=TaskFile(path=official("agentbench_db/standard.jsonl")),
        backend="mariadb",
        mariadb=MariaDBConfig(start_seconds=600.0),
    ).build()
    changes = [
        (place, task) for place, task in enumerate(environment.tasks("test")) if task.evidence.facts["statement"]
    ]
    differing = []
    for place, task in changes:
        episode = environment.start(task, seed=0)
        sql(episode, task.evidence.facts["statement"])
        differing += [place] if episode.score() != 1.0 else []
        episode.close()
    assert len(changes) == 200
    assert differing == [225]  # its hash is not what its statement does on any database
    environment.close()
