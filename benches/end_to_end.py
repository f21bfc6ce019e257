"""Measures hapax end to end against what its users would otherwise write. Called by benches/run."""

import sys

from parts import Database, drain, emulator, send, service


def peak(backend, kind, messages, accounts=None, duplicates=0, body_bytes=200, **options):
    """A backlog of messages is worked off: the rate in its middle, and what it takes."""
    database = Database(backend)
    sender = dict(accounts=accounts, duplicates_percent=duplicates, body_bytes=body_bytes)
    with emulator() as queue:
        send(queue.endpoint, messages, **sender)
        with service(database, queue.endpoint, kind, **options) as process:
            before = queue.cpu_seconds()
            found = drain([process], messages)
            found["emulator_cpu_micros"] = (queue.cpu_seconds() - before) / messages * 1e6
            found["memory_mib"] = process.memory_mib()
    database.drop()
    return found


if __name__ == "__main__":
    backend, kind, messages = sys.argv[1:4]
    options = dict(option.split("=") for option in sys.argv[4:])
    print(peak(backend, kind, int(messages), **{k: (int(v) if v.isdigit() else v) for k, v in options.items()}))
