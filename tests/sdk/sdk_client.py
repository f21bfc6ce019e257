"""Drives a CMQ endpoint with the official Python SDK.

usage: sdk_client.py ENDPOINT SECRET_ID SECRET_KEY produce QUEUE COUNT
       sdk_client.py ENDPOINT SECRET_ID SECRET_KEY consume QUEUE
"""

import json
import sys

from cmq.account import Account
from cmq.cmq_exception import CMQServerException
from cmq.queue import Message, QueueMeta

BATCH = 16
ACCOUNTS = 10


def event(number, reordered=False):
    event_id = f"evt-{number}"
    if reordered:
        payload = {"points": float(number), "account_id": number % ACCOUNTS + 1}
        body = {"payload": payload, "event_type": "points.awarded", "event_id": event_id}
        return json.dumps(body, indent=1)
    payload = {"account_id": number % ACCOUNTS + 1, "points": number}
    body = {"event_id": event_id, "event_type": "points.awarded", "payload": payload}
    return json.dumps(body, separators=(",", ":"))


def produce(queue, count):
    """Each event once, every third a second time with other key order, spacing and number form."""
    bodies = [event(number) for number in range(count)]
    bodies += [event(number, reordered=True) for number in range(0, count, 3)]
    single, batched = bodies[::5], [body for index, body in enumerate(bodies) if index % 5]
    for body in single:
        assert queue.send_message(Message(body)).msgId
    for start in range(0, len(batched), BATCH):
        messages = [Message(body) for body in batched[start : start + BATCH]]
        assert len(queue.batch_send_message(messages)) == len(messages)
    print(len(bodies))


def refused(call, *arguments):
    try:
        call(*arguments)
    except CMQServerException as error:
        return error.code
    raise AssertionError("the call should have been refused")


def consume(queue):
    meta = QueueMeta()
    meta.visibilityTimeout = 60
    queue.create(meta)
    assert queue.get_attributes().visibilityTimeout == 60
    queue.send_message(Message("single"))
    message = queue.receive_message(0)
    assert message.msgBody == "single" and message.dequeueCount == 1
    assert message.nextVisibleTime - message.enqueueTime == 60
    queue.delete_message(message.receiptHandle)
    assert refused(queue.delete_message, message.receiptHandle) == 4000
    queue.batch_send_message([Message(f"batched {n}") for n in range(BATCH)])
    messages = queue.batch_receive_message(BATCH, 0)
    assert sorted(m.msgBody for m in messages) == sorted(f"batched {n}" for n in range(BATCH))
    handles = [m.receiptHandle for m in messages]
    queue.batch_delete_message(handles)
    assert refused(queue.batch_delete_message, handles) == 6020
    assert refused(queue.receive_message, 1) == 7000
    attributes = queue.get_attributes()
    assert attributes.activeMsgNum == attributes.inactiveMsgNum == 0
    queue.delete()
    assert refused(queue.receive_message, 0) == 4440


def main():
    endpoint, secret_id, secret_key, command, name, *rest = sys.argv[1:]
    for method, sign in (("POST", "sha256"), ("GET", "sha1"), ("POST", "sha1"), ("GET", "sha256")):
        account = Account(endpoint, secret_id, secret_key)
        account.set_sign(sign)
        account.cmq_client.set_method(method)
        queue = account.get_queue(name)
        if command == "produce":
            return produce(queue, int(rest[0]))
        consume(queue)


if __name__ == "__main__":
    main()
