"""Measures hapax end to end, and what its users would otherwise write, in one run. Called by benches/run.

Every figure is the median of some runs; what is compared is measured in turns, so that a machine that gets
slower or faster does so for all.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

import report
from parts import (ACCOUNTS, HAPAX, QUEUE, ROOT, TARGET, TOOL, Database, drain, emulator, metric, middle, running,
                   send, service, settled, tool, until)

PGBENCH = str(Path(os.environ["TEST_POSTGRES_BIN"]) / "pgbench")
HERE = Path(__file__).resolve().parent
CLIENTS = (1, 4, 16, 32)
PGBENCH_SCRIPT = r"""
\set account random(1, {accounts})
BEGIN;
INSERT INTO claim VALUES ('evt-' || nextval('claims'), '\x{digest}');
UPDATE account SET balance = balance + 1 WHERE id = :account;
COMMIT;
"""
PARTS = ("throughput", "duplicates", "latency", "rows", "growth", "backlog", "micro")


def log(*words):
    print(time.strftime("%H:%M:%S"), *words, flush=True)


@contextmanager
def database(backend, **options):
    made = Database(backend, **options)
    try:
        yield made
    finally:
        made.drop()


def peak(backend, kind, messages, prepared=None, processes=1, send_options=None, **options):
    """A backlog is worked off: the rate in its middle, and what it costs."""
    with ExitStack() as stack:
        target = prepared or stack.enter_context(database(backend))
        queue = stack.enter_context(emulator())
        send(queue.endpoint, messages, **(send_options or {}))
        before = queue.cpu_seconds()
        services = [stack.enter_context(service(target, queue.endpoint, kind, **options)) for _ in range(processes)]
        found = drain(services, messages)
        found["emulator_cpu_micros"] = (queue.cpu_seconds() - before) / messages * 1e6
        found["memory_mib"] = max(process.memory_mib() for process in services)
        found["batch_events"] = (sum(metric(p, "hapax_batch_events_sum") for p in services)
                                 / sum(metric(p, "hapax_batch_events_count") for p in services))
        failed = sum(metric(p, "hapax_events_total", outcome="failed") for p in services)
        held = sum(metric(p, "hapax_held_messages_total") for p in services)
        if failed and backend == "sqlite" or held:
            raise SystemExit(f"{backend} {kind}: {failed} tries failed, {held} messages were held")
    return found


def best(runs):
    return max(runs, key=lambda run: run["per_second"])


def pgbench(seconds):
    with database("postgres") as target:
        target.execute("CREATE TABLE claim (event_id text PRIMARY KEY, payload_digest bytea NOT NULL);"
                       "CREATE SEQUENCE claims")
        script = Path(os.environ["BENCH_WORK"]) / "pgbench.sql"
        script.write_text(PGBENCH_SCRIPT.format(accounts=ACCOUNTS, digest="07" * 32))

        def run(clients):
            command = [PGBENCH, "-n", "-M", "prepared", "-c", clients, "-j", 2, "-T", seconds, "-f", script, target.url]
            output = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True).stdout
            line = next(line for line in output.splitlines() if line.startswith("tps"))
            return {"clients": clients, "per_second": float(line.split()[2])}

        return best([run(clients) for clients in CLIENTS])


def one_by_one(backend, seconds):
    with database(backend) as target:
        clients = (1, 4) if backend == "sqlite" else CLIENTS
        return best([tool("one-by-one", f"--url={target.url}", f"--clients={count}", f"--seconds={seconds}")
                     for count in clients])


def consumer(command, messages, clients):
    """Somebody's consumer, until it has done all messages."""
    with database("postgres") as target, emulator() as queue:
        target.execute("CREATE TABLE consumed (event_id text PRIMARY KEY)")
        send(queue.endpoint, messages)
        samples = []
        with running("consumer", [*command, queue.endpoint, QUEUE, target.url, str(clients)]) as process:
            def sample():
                samples.append((time.monotonic(), int(target.execute("SELECT count(*) FROM consumed"))))
                return samples[-1][1] >= messages
            until(sample, process, pause=0.25)
            process.child.wait(60)
        first, last = middle(samples, messages)
        return {"clients": clients, "per_second": (last[1] - first[1]) / (last[0] - first[0])}


def consumers(size):
    python = [os.environ["BENCH_PYTHON"], str(HERE / "consumers" / "consumer.py")]
    node = ["node", os.environ["BENCH_NODE"] + "/consumer.mjs"]
    return {"python": lambda: best([consumer(python, size // 10, clients) for clients in (1, 4, 16)]),
            "node": lambda: best([consumer(node, size // 5, clients) for clients in (1, 4, 16)])}


def throughput(size, seconds):
    """What is compared with each other, by name: a function that measures it once."""
    runs = {"pgbench": lambda: pgbench(seconds), **consumers(size)}
    runs["mysql one by one"] = lambda: one_by_one("mysql", seconds)
    runs["sqlite one by one"] = lambda: one_by_one("sqlite", seconds)
    for backend in ("postgres", "mysql", "sqlite"):
        for kind, part in (("batch_sql", 1), ("sql", 2), ("rust", 2)):
            def run(backend=backend, kind=kind, count=size // part, more="", **send_options):
                return peak(backend, kind, count, more=more, send_options=send_options)
            runs[f"{backend} {kind}"] = run
            if kind == "rust":
                continue
            runs[f"{backend} {kind}, hot account"] = lambda run=run: run(accounts=1)
            if kind == "sql":
                runs[f"{backend} {kind}, hot account, partition_key"] = lambda run=run: run(
                    accounts=1, more='partition_key = "/account_id"')
        runs[f"{backend} batch_sql, 10 KB bodies"] = (
            lambda backend=backend: peak(backend, "batch_sql", size // 5, send_options={"body_bytes": 10_000}))
    return runs


def duplicates(size):
    """Deliveries of which some are copies, beside the same without."""
    runs = {}
    for backend in ("postgres", "mysql", "sqlite"):
        for kind, part in (("batch_sql", 1), ("sql", 2)):
            for name, percent in ((f"{backend} {kind}", 0), (f"{backend} {kind}, 30 % duplicates", 30)):
                runs[name] = lambda backend=backend, kind=kind, count=size // part, percent=percent: peak(
                    backend, kind, count, send_options={"duplicates_percent": percent})
    return runs


def in_turns(runs, rounds):
    found = {name: [] for name in runs}
    for turn in range(rounds):
        for name, run in runs.items():
            found[name].append(run())
            log(f"round {turn + 1}", name, {key: round(value, 1) for key, value in found[name][-1].items()})
    def median(results):
        return {key: statistics.median(result[key] for result in results) for key in results[0]}
    return {name: {**median(results), "runs": [round(result["per_second"]) for result in results]}
            for name, results in found.items()}


def sustained(size):
    """What goes through while a producer on the same machine sends as fast as it can."""
    with database("postgres") as target, emulator() as queue, service(
            target, queue.endpoint, latencies=True) as process:
        with running("sender", [TOOL, "send", f"--endpoint={queue.endpoint}", f"--messages={size}"]):
            # The half of them, so that the producer still sends when they are done.
            return drain([process], size // 2)


def latencies(rate, seconds):
    messages = int(rate * seconds)
    with database("postgres") as target, emulator() as queue:
        with service(target, queue.endpoint, latencies=True) as process:
            send(queue.endpoint, messages, rate=rate)
            until(lambda: settled(process) >= messages
                  and metric(process, "hapax_deleted_messages_total") >= messages, process)
            output = process.stop()
    return json.loads(output.strip().splitlines()[-1])


def lone(count):
    """Events that come one by one to an idle service, and the round trips that they need at least."""
    with database("postgres") as target, emulator(QUEUE, "bare") as queue:
        bare = tool("round-trips", f"--url={target.url}", f"--endpoint={queue.endpoint}", f"--count={count}")
        with service(target, queue.endpoint, latencies=True) as process:
            send(queue.endpoint, count, rate=20, batch=1)
            until(lambda: metric(process, "hapax_deleted_messages_total") >= count, process)
            output = process.stop()
    return {"bare_micros": bare, **json.loads(output.strip().splitlines()[-1])}


def idle(seconds):
    with database("postgres") as target, emulator() as queue, service(target, queue.endpoint) as process:
        time.sleep(2)
        before = process.cpu_seconds()
        time.sleep(seconds)
        return {"percent_of_a_core": (process.cpu_seconds() - before) / seconds * 100,
                "memory_mib": process.memory_mib("VmRSS")}


def backlog(messages):
    """Memory along the way through a long backlog."""
    with database("postgres") as target, emulator() as queue:
        send(queue.endpoint, messages)
        with service(target, queue.endpoint) as process:
            samples, start = [], time.monotonic()
            def sample():
                samples.append((settled(process), round(process.memory_mib("VmRSS"), 1)))
                return samples[-1][0] >= messages
            until(sample, process, pause=0.5)
            rate = messages / (time.monotonic() - start)
        claims, total = target.total()
        assert claims == messages, (claims, messages)
    at = lambda part: next(memory for done, memory in samples if done >= messages * part)
    return {"messages": messages, "per_second": rate,
            "memory_mib": {f"{part:.0%}": at(part) for part in (0.1, 0.25, 0.5, 0.75, 1.0)}}


def claims_before(target, rows, first):
    """Claims of other events, spread over the index."""
    for start in range(first, rows, 1_000_000):
        target.execute(
            "INSERT INTO processed_event (consumer, event_id, event_type, payload_digest, message_id, processed_at) "
            "SELECT 'bench', md5(i::text), 'points.awarded', decode(repeat('07', 32), 'hex'), 'Msg-' || i, now() "
            f"FROM generate_series({start}, {min(rows, start + 1_000_000) - 1}) AS i")
    target.execute("VACUUM ANALYZE processed_event")
    target.execute("CHECKPOINT")


def growth_of_rows(size, most, rounds):
    found = {}
    with database("postgres") as target:
        peak("postgres", "batch_sql", 1_000, prepared=target)
        first, number = 0, 1
        for rows in (10_000, 1_000_000, 10_000_000):
            if rows > most:
                break
            claims_before(target, rows, first)
            first, runs = rows, []
            for _ in range(rounds):
                options = {"random_ids": True, "first": number * 10_000_000}
                runs.append(peak("postgres", "batch_sql", size, prepared=target, send_options=options)["per_second"])
                number += 1
            found[rows] = statistics.median(runs)
            log("rows", rows, [round(run) for run in runs])
    return found


def growth(size, rounds):
    """How the rate changes with shards, processes and event types."""
    def of(name, values, run):
        found = {}
        for _ in range(rounds):
            for value in values:
                found.setdefault(value, []).append(run(value)["per_second"])
                log(name, value, round(found[value][-1]))
        return {value: statistics.median(runs) for value, runs in found.items()}
    pool = lambda shards: f"pool_size = {max(8, shards + 1)}"
    return {
        "shards (batch_sql)": of("shards", (1, 2, 4, 8, 16, 64), lambda n: peak(
            "postgres", "batch_sql", size, more=f"shards = {n}", database_keys=pool(n))),
        "shards (sql)": of("shards", (1, 2, 4, 8, 16, 64), lambda n: peak(
            "postgres", "sql", size // 2, more=f"shards = {n}", database_keys=pool(n))),
        "processes": of("processes", (1, 2, 4), lambda n: peak("postgres", "batch_sql", size, processes=n)),
        "event types": of("types", (1, 5, 20, 50), lambda n: peak(
            "postgres", "batch_sql", size, types=n, send_options={"types": n})),
    }


def micro(quick):
    """The pieces, by criterion: nanoseconds by name."""
    times = ["--warm-up-time=0.1", "--measurement-time=0.2"] if quick else ["--warm-up-time=1", "--measurement-time=3"]
    subprocess.run(["cargo", "bench", "--locked", "--features=mysql", "--bench=micro", "--", "--sample-size=50", *times],
                   cwd=ROOT, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    found = {}
    for file in sorted((TARGET.parent / "criterion").glob("**/new/estimates.json")):
        name = json.loads((file.parent / "benchmark.json").read_text())["full_id"]
        found[name] = json.loads(file.read_text())["median"]["point_estimate"]
    return found


def machine():
    model = next((line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
                  if line.startswith("model name")), platform.machine())
    version = lambda *command: subprocess.run(command, capture_output=True, text=True).stdout.strip().splitlines()[0]
    return {"cores": os.cpu_count(), "processor": model, "date": time.strftime("%Y-%m-%d"),
            "versions": ["PostgreSQL " + version(PGBENCH, "--version").split()[2],
                         "MariaDB " + version(os.environ["TEST_MYSQL_SERVER"], "--version").split("Ver ")[1].split("-")[0],
                         version(HAPAX, "--version"), "Node " + version("node", "--version")]}


def latency(size, seconds, rounds, quick):
    rate = statistics.median(sustained(5 * size)["per_second"] for _ in range(rounds))
    log("sustained", round(rate))
    return {"sustained_per_second": rate,
            "at": {part: latencies(rate * part / 100, seconds * 2) for part in (10, 50, 90)},
            "lone": lone(50 if quick else 300), "idle": idle(2 if quick else 30)}


def measurements(quick, size, seconds, rounds):
    return {"throughput": lambda: in_turns(throughput(size, seconds), rounds),
            "duplicates": lambda: in_turns(duplicates(size), rounds),
            "latency": lambda: latency(size, seconds, rounds, quick),
            "rows": lambda: growth_of_rows(size, 10_000 if quick else 10_000_000, rounds),
            "growth": lambda: growth(size, max(1, rounds - 1)),
            "backlog": lambda: backlog(size if quick else 1_000_000),
            "micro": lambda: micro(quick)}


def main():
    arguments = argparse.ArgumentParser(description="The benchmarks of hapax.")
    arguments.add_argument("--quick", action="store_true", help="every part, but short: figures mean nothing")
    arguments.add_argument("--only", choices=PARTS, action="append")
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--results", type=Path, default=HERE / "results")
    given = arguments.parse_args()
    size, seconds, rounds = (10_000, 1, 1) if given.quick else (120_000, 5, given.rounds)
    file = given.results / "results.json"
    given.results.mkdir(exist_ok=True)
    found = json.loads(file.read_text()) if file.exists() else {}
    found["machine"] = machine()
    for part, measure in measurements(given.quick, size, seconds, rounds).items():
        if not given.only or part in given.only:
            found[part] = measure()
            log(part, found[part])
            file.write_text(json.dumps(found, indent=1) + "\n")
    report.write(json.loads(file.read_text()), given.results)


if __name__ == "__main__":
    main()
