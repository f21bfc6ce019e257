// A straightforward consumer with pg: a transaction a message, deletes in batches. There is no official
// Node SDK for CMQ's data flow, so requests are signed here.
//
// usage: consumer.mjs ENDPOINT QUEUE DATABASE_URL CONNECTIONS

import { createHmac, randomInt } from "node:crypto";
import http from "node:http";
import pg from "pg";

const PATH = "/v2/index.php";
const BATCH = 16;
const NO_MESSAGE = 7000;
const [endpoint, queue, url, connections] = process.argv.slice(2);
const { host, hostname, port } = new URL(endpoint);
const agent = new http.Agent({ keepAlive: true });

function call(action, parameters) {
  const signed = {
    Action: action,
    Nonce: randomInt(2 ** 47),
    SecretId: "bench",
    SignatureMethod: "HmacSHA256",
    Timestamp: Math.floor(Date.now() / 1000),
    queueName: queue,
    ...parameters,
  };
  const text = Object.keys(signed).sort().map((name) => `${name}=${signed[name]}`).join("&");
  signed.Signature = createHmac("sha256", "bench").update(`POST${host}${PATH}?${text}`).digest("base64");
  const body = new URLSearchParams(signed).toString();
  const headers = { "Content-Type": "application/x-www-form-urlencoded", "Content-Length": body.length };
  return new Promise((resolve, reject) => {
    const request = http.request({ hostname, port, path: PATH, method: "POST", headers, agent }, (answer) => {
      const chunks = [];
      answer.on("data", (chunk) => chunks.push(chunk));
      answer.on("end", () => resolve(JSON.parse(Buffer.concat(chunks))));
    });
    request.on("error", reject);
    request.end(body);
  });
}

async function handle(client, body) {
  const { event_id, payload } = JSON.parse(body);
  await client.query("BEGIN");
  const claimed = await client.query({
    name: "claim",
    text: "INSERT INTO consumed (event_id) VALUES ($1) ON CONFLICT DO NOTHING",
    values: [event_id],
  });
  if (claimed.rowCount === 1) {
    await client.query({
      name: "award",
      text: "UPDATE account SET balance = balance + $1 WHERE id = $2",
      values: [payload.points, payload.account_id],
    });
  }
  await client.query("COMMIT");
}

async function consume() {
  const client = new pg.Client(url);
  await client.connect();
  for (;;) {
    const answer = await call("BatchReceiveMessage", { numOfMsg: BATCH, pollingWaitSeconds: 1 });
    if (answer.code === NO_MESSAGE) break;
    if (answer.code !== 0) throw new Error(answer.message);
    for (const message of answer.msgInfoList) await handle(client, message.msgBody);
    const handles = answer.msgInfoList.map((message, n) => [`receiptHandle.${n}`, message.receiptHandle]);
    await call("BatchDeleteMessage", Object.fromEntries(handles));
  }
  await client.end();
}

await Promise.all(Array.from({ length: Number(connections) }, consume));
agent.destroy();
