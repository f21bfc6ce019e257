"""The parts of a benchmark: databases, processes of hapax, and what is read off them."""

import json
import os
import signal
import socket
import subprocess
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release"
HAPAX = str(TARGET / "hapax")
TOOL = str(TARGET / "examples" / "bench")
WORK = Path(os.environ["BENCH_WORK"])
DEADLINE_SECONDS = 900
QUEUE = "orders"
ACCOUNTS = 100_000
TICKS = os.sysconf("SC_CLK_TCK")


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Database:
    """A new database of a server, or a SQLite file, with accounts."""

    count = 0

    def __init__(self, backend, accounts=ACCOUNTS):
        Database.count += 1
        self.backend, self.name = backend, f"bench_{Database.count}"
        if backend == "sqlite":
            self.path = WORK / f"{self.name}.db"
            self.url = f"sqlite://{self.path}"
        else:
            server = os.environ[{"postgres": "TEST_POSTGRES_URL", "mysql": "TEST_MYSQL_URL"}[backend]]
            self.server = server
            self.url = server.rsplit("/", 1)[0] + "/" + self.name
            self.execute(f"CREATE DATABASE {self.name}", server)
        self.execute("CREATE TABLE account (id bigint PRIMARY KEY, balance bigint NOT NULL)")
        self.execute("INSERT INTO account WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n "
                     f"WHERE i < {accounts}) SELECT i, 0 FROM n")
        if backend == "postgres":
            self.execute("VACUUM ANALYZE account")

    def _command(self, url):
        if self.backend == "sqlite":
            return ["sqlite3", str(self.path)]
        host, port = url.split("@")[1].split("/")[0].split(":")
        if self.backend == "postgres":
            return ["psql", "-qAt", "-v", "ON_ERROR_STOP=1", url]
        name = url.rsplit("/", 1)[1]
        return ["mariadb", "-N", "-h", host, "-P", port, "-u", "root",
                "--init-command=SET max_recursive_iterations = 100000000", name]

    def execute(self, sql, url=None):
        url = url or self.url
        if self.backend == "sqlite":
            import sqlite3
            with sqlite3.connect(self.path) as connection:
                if sql.startswith("SELECT"):
                    return str(connection.execute(sql).fetchone()[0])
                connection.executescript(sql)
            return ""
        return subprocess.run(self._command(url), input=sql, capture_output=True, text=True, check=True).stdout.strip()

    def total(self):
        """How many claims there are, and the sum of all balances."""
        return (int(self.execute("SELECT count(*) FROM processed_event")),
                int(self.execute("SELECT coalesce(sum(balance), 0) FROM account")))

    def drop(self):
        if self.backend == "sqlite":
            for file in WORK.glob(f"{self.name}.db*"):
                file.unlink()
        else:
            self.execute(f"DROP DATABASE {self.name}", self.server)


class Process:
    """A process; its output goes to a file."""

    def __init__(self, name, command):
        self.log = WORK / f"{name}.log"
        environment = {key: value for key, value in os.environ.items()
                       if not key.startswith(("HAPAX_", "TENCENTCLOUD_"))}
        with open(self.log, "w") as log:
            self.child = subprocess.Popen(command, stdout=log, stderr=log, env=environment)

    def cpu_seconds(self):
        fields = Path(f"/proc/{self.child.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def memory_mib(self, key="VmHWM"):
        status = Path(f"/proc/{self.child.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith(key))
        return int(line.split()[1]) / 1024

    def check(self):
        if self.child.poll() is not None:
            raise SystemExit(f"a process ended: {self.log.read_text()[-2000:]}")

    def stop(self):
        if self.child.poll() is None:
            self.child.send_signal(signal.SIGTERM)
        self.child.wait(60)
        return self.log.read_text()


@contextmanager
def running(*arguments):
    process = Process(*arguments)
    try:
        yield process
    finally:
        if process.child.poll() is None:
            process.stop()


@contextmanager
def emulator(*queues, visibility=60):
    port = free_port()
    named = [f"--queue={queue}:visibility_timeout={visibility},max_messages=100000000" for queue in queues or (QUEUE,)]
    with running("emulator", [HAPAX, "emulator", f"--listen=127.0.0.1:{port}", *named]) as process:
        process.endpoint = f"http://127.0.0.1:{port}"
        until(lambda: reachable(port), process)
        yield process


def reachable(port):
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def until(condition, *processes, pause=0.05):
    start = time.monotonic()
    while not condition():
        for process in processes:
            process.check()
        if time.monotonic() - start > DEADLINE_SECONDS:
            raise SystemExit("a part of the benchmark does not come to an end")
        time.sleep(pause)


def tool(*arguments):
    """Runs the tool and returns what it prints, read as JSON."""
    run = subprocess.run([TOOL, *map(str, arguments)], capture_output=True, text=True)
    if run.returncode:
        raise SystemExit(f"{arguments}: {run.stderr}")
    return json.loads(run.stdout.strip().splitlines()[-1])


def send(endpoint, messages, **options):
    flags = [f"--{name.replace('_', '-')}" + ("" if value is True else f"={value}")
             for name, value in options.items() if value is not None and value is not False]
    return tool("send", f"--endpoint={endpoint}", f"--messages={messages}", *flags)


APPLIERS = {
    "sql": """
sql = "UPDATE account SET balance = balance + :points WHERE id = :account_id"
rows = 1
""",
    "batch_sql": """
batch_sql = "UPDATE account SET balance = balance + s.points FROM (SELECT account_id, sum(points) AS points FROM batch GROUP BY account_id) AS s WHERE s.account_id = account.id"
rows = 1
rows_per = ["account_id"]
""",
    "batch_sql mysql": """
batch_sql = "UPDATE account JOIN (SELECT account_id, sum(points) AS points FROM batch GROUP BY account_id) AS s ON s.account_id = account.id SET account.balance = account.balance + s.points"
rows = 1
rows_per = ["account_id"]
""",
}


def applier(backend, kind, suffix="", more=""):
    statement = APPLIERS.get(f"{kind} {backend}", APPLIERS.get(kind))
    return f"""
[[applier]]
event_type = "points.awarded{suffix}"
{more}
[applier.parameters]
account_id = {{ pointer = "/account_id", type = "bigint" }}
points = {{ pointer = "/points", type = "bigint" }}
[[applier.statement]]
{statement}
"""


def configuration(database, endpoint, appliers, queue_keys="", database_keys=""):
    port = free_port()
    file = WORK / f"hapax-{port}.toml"
    file.write_text(f"""
consumer = "bench"
[database]
url = "{database.url}"
{database_keys}
[credentials]
secret_id = "bench"
secret_key = "bench"
[admin]
listen = "127.0.0.1:{port}"
[[queue]]
name = "{QUEUE}"
endpoint = "{endpoint}"
visibility_timeout_seconds = 60
{queue_keys}
{appliers}
""")
    return file, port


@contextmanager
def service(database, endpoint, kind="batch_sql", latencies=False, more="", types=1, **keys):
    """The binary; with an applier in Rust, or with latencies measured, the tool that runs the same library."""
    in_rust = kind == "rust"
    suffixes = ["" if n == 0 else f".{n}" for n in range(types)]
    appliers = "" if in_rust else "".join(applier(database.backend, kind, suffix, more) for suffix in suffixes)
    file, port = configuration(database, endpoint, appliers, **keys)
    command = [HAPAX, "run", f"--config={file}"]
    if in_rust or latencies:
        flags = ["--in-rust"] * in_rust + ["--latencies"] * latencies
        command = [TOOL, "serve", f"--config={file}", *flags]
    with running(f"service-{port}", command) as process:
        process.metrics = f"http://127.0.0.1:{port}/metrics"
        until(lambda: reachable(port), process)
        yield process


def metric(process, name, **labels):
    """The sum of a metric over all its series that have these labels."""
    with urllib.request.urlopen(process.metrics, timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    wanted = [f'{key}="{value}"' for key, value in labels.items()]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines
               if line.split("{")[0] == name and all(label in line for label in wanted))


def settled(process):
    return (metric(process, "hapax_events_total", outcome="applied")
            + metric(process, "hapax_events_total", outcome="duplicate"))


def middle(samples, messages):
    """The samples of (time, messages done, …) between which a tenth to nine tenths of the messages were done."""
    first = next(sample for sample in samples if sample[1] >= messages * 0.1)
    last = [sample for sample in samples if sample[1] <= messages * 0.9][-1]
    if last[1] <= first[1]:
        # Too short a run for a middle.
        first, last = samples[0], samples[-1]
    return first, last


def drain(processes, messages, pause=0.1):
    """Waits until the messages are settled and gone. Between a tenth and nine tenths of them: deliveries a second,
    and processor time of the services for each, in microseconds."""
    samples = []

    def sample():
        samples.append((time.monotonic(), sum(map(settled, processes)), sum(p.cpu_seconds() for p in processes)))
        return samples[-1][1] >= messages

    until(sample, *processes, pause=pause)
    first, last = middle(samples, messages)
    deliveries = last[1] - first[1]
    until(lambda: sum(metric(p, "hapax_deleted_messages_total") for p in processes) >= messages, *processes)
    return {"per_second": deliveries / (last[0] - first[0]),
            "cpu_micros": (last[2] - first[2]) / deliveries * 1e6}
