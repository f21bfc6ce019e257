"""Turns results.json into a table (README.md) and plots (SVG)."""

import matplotlib

matplotlib.use("svg")
matplotlib.rcParams.update({"svg.hashsalt": "hapax", "font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
import matplotlib.pyplot as plt  # noqa: E402

OWN, OTHERS = "#1f6f8b", "#b8b8b8"
BASELINE = {"postgres": "pgbench", "mysql": "mysql one by one", "sqlite": "sqlite one by one"}
NAMES = {"pgbench": "pgbench, one transaction an event", "python": "Python consumer (psycopg 3, official SDK)",
         "node": "Node consumer (pg)", "mysql one by one": "MariaDB, one transaction an event",
         "sqlite one by one": "SQLite, one transaction an event"}
DATABASES = {"postgres": "PostgreSQL", "mysql": "MariaDB", "sqlite": "SQLite"}


def name_of(key):
    if key in NAMES:
        return NAMES[key]
    backend, rest = key.split(" ", 1)
    rest = rest.replace("rust", "applier in Rust", 1)
    return f"hapax, {DATABASES[backend]}, {rest}"


def number(value):
    return f"{value:,.0f}"


def throughput(found):
    lines = ["| what | deliveries/s | of the baseline | service CPU a delivery | peak memory | events a transaction |",
             "|---|--:|--:|--:|--:|--:|"]
    for key, result in found.items():
        backend = key.split(" ")[0]
        baseline = found[BASELINE.get(backend, "pgbench")]["per_second"]
        clients = f" (best: {result['clients']:.0f} clients)" if "clients" in result else ""
        cost = [f"{result['cpu_micros']:.1f} µs", f"{result['memory_mib']:.0f} MiB", f"{result['batch_events']:.0f}"] \
            if "cpu_micros" in result else [""] * 3
        cells = [name_of(key) + clients, number(result["per_second"]), f"{result['per_second'] / baseline:.2f}", *cost]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def ratios(found):
    rate = lambda key: found[key]["per_second"]
    wanted = [("PostgreSQL, batch_sql : best pgbench", "postgres batch_sql", "pgbench", "≥ 4"),
              ("PostgreSQL, batch_sql : Python consumer", "postgres batch_sql", "python", "≥ 10"),
              ("PostgreSQL, batch_sql : Node consumer", "postgres batch_sql", "node", ""),
              ("PostgreSQL, applier in Rust : best pgbench", "postgres rust", "pgbench", "≥ 1.5"),
              ("MariaDB, batch_sql : one transaction an event", "mysql batch_sql", "mysql one by one", "≥ 3"),
              ("SQLite, batch_sql : one transaction an event", "sqlite batch_sql", "sqlite one by one", "≥ 4"),
              ("SQLite, sql : one transaction an event", "sqlite sql", "sqlite one by one", "")]
    for backend in DATABASES:
        for kind in ("batch_sql", "sql"):
            key = f"{backend} {kind}"
            for what in ("hot account", "hot account, partition_key"):
                if f"{key}, {what}" in found:
                    wanted.append((f"{DATABASES[backend]}, {kind}: {what} : without", f"{key}, {what}", key, "≥ 0.5"))
    lines = ["| ratio | aim | measured |", "|---|---|--:|"]
    return lines + [f"| {text} | {aim} | {rate(one) / rate(other):.2f} |" for text, one, other, aim in wanted]


def copies(found):
    lines = ["| what | without, deliveries/s | 30 % duplicates | ratio (aim ≥ 1) |", "|---|--:|--:|--:|"]
    for key in (key for key in found if "," not in key):
        without, beside = found[key]["per_second"], found[f"{key}, 30 % duplicates"]["per_second"]
        lines.append(f"| {name_of(key)} | {number(without)} | {number(beside)} | {beside / without:.2f} |")
    return lines


def milliseconds(part):
    return f"{part['p50'] / 1000:.1f} | {part['p99'] / 1000:.1f}"


def latency(found):
    lines = [f"A producer on the same machine that sends as fast as it can gets {number(found['sustained_per_second'])} "
             "events/s through. At parts of that:", "",
             "| load | send to commit, ms: p50 | p99 | commit to delete, ms: p50 | p99 |", "|---|--:|--:|--:|--:|"]
    for part, times in found["at"].items():
        lines.append(f"| {part} % | {milliseconds(times['send_to_commit_micros'])} "
                     f"| {milliseconds(times['commit_to_delete_micros'])} |")
    alone, bare = found["lone"]["send_to_commit_micros"], found["lone"]["bare_micros"]
    return lines + ["", f"A lone event is committed {alone['p50'] / 1000:.2f} ms (p50; p99 {alone['p99'] / 1000:.2f} ms) after "
                    f"it is sent; the bare round trips that it needs (SendMessage, the answer to a waiting poll, one transaction) "
                    f"take {bare['p50'] / 1000:.2f} ms (p99 {bare['p99'] / 1000:.2f} ms): a ratio of "
                    f"{alone['p50'] / bare['p50']:.2f}.", "",
                    f"Idle, the service takes {found['idle']['percent_of_a_core']:.2f} % of a core and "
                    f"{found['idle']['memory_mib']:.0f} MiB."]


def growth(found):
    lines = []
    for what, values in {**found.get("growth", {}), "claims in the table": found.get("rows", {})}.items():
        if values:
            lines += [f"| {what} | " + " | ".join(number(int(value)) for value in values) + " |",
                      "|---|" + "--:|" * len(values),
                      "| events/s | " + " | ".join(number(rate) for rate in values.values()) + " |", ""]
    if "backlog" in found:
        past = found["backlog"]
        lines += [f"A backlog of {number(past['messages'])} messages is worked off at {number(past['per_second'])} events/s. "
                  "Memory of the service after a part of it:", "",
                  "| part | " + " | ".join(past["memory_mib"]) + " |", "|---|" + "--:|" * len(past["memory_mib"]),
                  "| MiB | " + " | ".join(f"{value:.0f}" for value in past["memory_mib"].values()) + " |"]
    return lines


def plot_throughput(found, folder):
    keys = [key for key in found if "," not in key][::-1]
    figure, axes = plt.subplots(figsize=(8, 0.34 * len(keys) + 0.8))
    rates = [found[key]["per_second"] for key in keys]
    colours = [OWN if name_of(key).startswith("hapax") else OTHERS for key in keys]
    bars = axes.barh([name_of(key) for key in keys], rates, color=colours)
    axes.bar_label(bars, [number(rate) for rate in rates], padding=3)
    axes.set_xlabel("events a second, durable commits")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.margins(x=0.12)
    save(figure, folder / "throughput.svg")


def plot_growth(found, folder):
    panels = {**found["growth"], "claims in the table": found["rows"]}
    figure, all_axes = plt.subplots(1, len(panels), figsize=(2.4 * len(panels), 2.4), sharey=True)
    for axes, (what, values) in zip(all_axes, panels.items()):
        axes.plot([int(value) for value in values], list(values.values()), color=OWN, marker="o", markersize=3)
        axes.set_xscale("log")
        label = (lambda value: f"$10^{len(value) - 1}$") if what.startswith("claims") else str
        axes.set_xticks([int(value) for value in values], [label(value) for value in values])
        axes.minorticks_off()
        axes.set_xlabel(what)
    all_axes[0].set_ylabel("events/s")
    all_axes[0].set_ylim(bottom=0)
    all_axes[0].yaxis.set_major_formatter("{x:,.0f}")
    save(figure, folder / "growth.svg")


def save(figure, file):
    figure.tight_layout()
    figure.savefig(file, metadata={"Date": None})
    plt.close(figure)


def write(found, folder):
    machine = found["machine"]
    lines = ["# Benchmarks", "",
             f"Made by `benches/run` on {machine['date']}: {machine['cores']} cores ({machine['processor']}), "
             f"{', '.join(machine['versions'])}. Everything (queue, service, database, producer) shares these cores; commits are "
             "durable. Absolute figures say little, ratios within a run more. Medians of the rounds. "
             "Parts can be run one by one; what is compared is from one run.", ""]
    if "throughput" in found:
        lines += ["## Throughput", "", "![events a second](throughput.svg)", "",
                  "A backlog of events is worked off; each adds points to one of 100,000 accounts (bodies of 200 bytes).", "",
                  *throughput(found["throughput"]), "", *ratios(found["throughput"]), ""]
        plot_throughput(found["throughput"], folder)
    if "duplicates" in found:
        lines += ["### Duplicates", "", "30 % of the deliveries are copies of one of the 1,000 messages before; measured beside the same without.", "",
                  *copies(found["duplicates"]), ""]
    if "latency" in found:
        lines += ["## Latency (PostgreSQL, batch_sql)", "", *latency(found["latency"]), ""]
    if "growth" in found and "rows" in found:
        lines += ["## How it grows (PostgreSQL)", "", "![growth](growth.svg)", "", *growth(found)]
        plot_growth(found, folder)
    if "micro" in found:
        lines += ["", "## Pieces (criterion)", "", "| what | time |", "|---|--:|"]
        lines += [f"| {name.replace('/', ', ')} | {nanos / 1000:,.2f} µs |" for name, nanos in found["micro"].items()]
    (folder / "README.md").write_text("\n".join(lines).rstrip() + "\n")
