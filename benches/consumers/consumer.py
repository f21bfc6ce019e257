"""A straightforward consumer with the official SDK and psycopg 3: a transaction a message, deletes in batches.

usage: consumer.py ENDPOINT QUEUE DATABASE_URL THREADS
"""

import json
import sys
import threading

import psycopg
from cmq.account import Account
from cmq.cmq_exception import CMQServerException

BATCH = 16
NO_MESSAGE = 7000


def handle(connection, body):
    event = json.loads(body)
    payload = event["payload"]
    with connection.transaction():
        claimed = connection.execute(
            "INSERT INTO consumed (event_id) VALUES (%s) ON CONFLICT DO NOTHING", (event["event_id"],))
        if claimed.rowcount == 1:
            connection.execute("UPDATE account SET balance = balance + %s WHERE id = %s",
                               (payload["points"], payload["account_id"]))


def consume(endpoint, name, url):
    queue = Account(endpoint, "bench", "bench").get_queue(name)
    with psycopg.connect(url, autocommit=True) as connection:
        while True:
            try:
                messages = queue.batch_receive_message(BATCH, 1)
            except CMQServerException as error:
                if error.code == NO_MESSAGE:
                    return
                raise
            for message in messages:
                handle(connection, message.msgBody)
            queue.batch_delete_message([message.receiptHandle for message in messages])


endpoint, name, url, threads = sys.argv[1:]
workers = [threading.Thread(target=consume, args=(endpoint, name, url)) for _ in range(int(threads))]
for worker in workers:
    worker.start()
for worker in workers:
    worker.join()
