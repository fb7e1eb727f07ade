// Every scenario drives the broker with @azure/service-bus and throws where something is not as
// it should be. Prints one JSON object: each scenario's name with "ok" or what went wrong.
import assert from "node:assert/strict";
import { ServiceBusClient } from "@azure/service-bus";

const [connectionString, ...names] = process.argv.slice(2);
const client = new ServiceBusClient(connectionString, {
  retryOptions: { maxRetries: 1, retryDelayInMs: 50, timeoutInMs: 120000 },
});

async function receive(receiver, count) {
  const found = [];
  while (found.length < count) {
    const more = await receiver.receiveMessages(count - found.length, { maxWaitTimeInMs: 60000 });
    assert.notEqual(more.length, 0, `only ${found.length} of ${count} messages came`);
    found.push(...more);
  }
  return found;
}

async function send(queue, ...messages) {
  const sender = client.createSender(queue);
  await sender.sendMessages(messages.length === 1 ? messages[0] : messages);
  await sender.close();
}

const scenarios = {
  async arrives_as_sent() {
    await send("js-plain", {
      body: { nested: [1, "two"] },
      messageId: "id",
      correlationId: "cor",
      subject: "sub",
      contentType: "application/json",
      applicationProperties: { text: "ä", number: 7, flag: true },
      timeToLive: 60000,
    });
    const receiver = client.createReceiver("js-plain");
    const [got] = await receive(receiver, 1);
    assert.deepEqual(got.body, { nested: [1, "two"] });
    assert.deepEqual(got.applicationProperties, { text: "ä", number: 7, flag: true });
    assert.deepEqual([got.messageId, got.correlationId, got.subject], ["id", "cor", "sub"]);
    assert.deepEqual([got.deliveryCount, got.timeToLive, got.state], [0, 60000, "active"]);
    assert.equal(got.lockToken.length, 36);
    const until = await receiver.renewMessageLock(got);
    assert.ok(until > new Date());
    await receiver.completeMessage(got);
    await receiver.close();
  },
  async batch() {
    const sender = client.createSender("js-batch");
    const batch = await sender.createMessageBatch();
    for (let n = 0; n < 30; n++) assert.ok(batch.tryAddMessage({ body: n }));
    await sender.sendMessages(batch);
    await sender.close();
    const receiver = client.createReceiver("js-batch", { receiveMode: "receiveAndDelete" });
    const bodies = (await receive(receiver, 30)).map((message) => message.body);
    assert.deepEqual(bodies, [...Array(30).keys()]);
    await receiver.close();
  },
  async abandon_defer_dead_letter() {
    await send("js-verbs", { body: "a" }, { body: "d" }, { body: "x" });
    const receiver = client.createReceiver("js-verbs");
    const [first, second, third] = await receive(receiver, 3);
    await receiver.deferMessage(second);
    await receiver.deadLetterMessage(third, {
      deadLetterReason: "R",
      deadLetterErrorDescription: "D",
      more: "yes",
    });
    await receiver.abandonMessage(first, { why: "busy" });
    const [again] = await receive(receiver, 1);
    assert.deepEqual([again.body, again.deliveryCount], ["a", 1]);
    assert.equal(again.applicationProperties.why, "busy");
    await receiver.completeMessage(again);
    const [later] = await receiver.receiveDeferredMessages(second.sequenceNumber);
    assert.equal(later.body, "d");
    await receiver.completeMessage(later);
    await receiver.close();
    const dead = client.createReceiver("js-verbs", { subQueueType: "deadLetter" });
    const [letter] = await receive(dead, 1);
    assert.deepEqual([letter.deadLetterReason, letter.deadLetterErrorDescription], ["R", "D"]);
    assert.equal(letter.applicationProperties.more, "yes");
    await dead.completeMessage(letter);
    await dead.close();
  },
  async schedule_cancel_peek() {
    const sender = client.createSender("js-later");
    const late = new Date(Date.now() + 3600000);
    const numbers = await sender.scheduleMessages([{ body: "kept" }, { body: "gone" }], late);
    await sender.cancelScheduledMessages(numbers[1]);
    const receiver = client.createReceiver("js-later");
    const peeked = (await receiver.peekMessages(5)).map(({ body, state }) => [body, state]);
    assert.deepEqual(peeked, [["kept", "scheduled"]]);
    const soon = new Date(Date.now() + 1500);
    await sender.scheduleMessages({ body: "soon" }, soon);
    await sender.close();
    const [got] = await receive(receiver, 1);
    assert.equal(got.body, "soon");
    assert.ok(Date.now() >= soon.getTime());
    await receiver.completeMessage(got);
    await receiver.close();
  },
  async sessions() {
    await send("js-lanes", { body: 1, sessionId: "s" }, { body: 2, sessionId: "s" });
    const receiver = await client.acceptNextSession("js-lanes");
    assert.equal(receiver.sessionId, "s");
    await receiver.setSessionState(Buffer.from("half way"));
    assert.equal((await receiver.getSessionState()).toString(), "half way");
    assert.ok((await receiver.renewSessionLock()) > new Date());
    for (const message of await receive(receiver, 2)) await receiver.completeMessage(message);
    await assert.rejects(client.acceptSession("js-lanes", "s"), { code: "SessionCannotBeLocked" });
    await receiver.close();
    const again = await client.acceptSession("js-lanes", "s");
    assert.equal((await again.getSessionState()).toString(), "half way");
    await again.close();
  },
  async subscribe() {
    const receiver = client.createReceiver("js-stream");
    const bodies = [];
    const done = new Promise((resolve, reject) => {
      receiver.subscribe({
        async processMessage(message) {
          bodies.push(message.body);
          if (bodies.length === 5) resolve();
        },
        async processError(args) {
          reject(args.error);
        },
      });
    });
    await send("js-stream", ...[0, 1, 2, 3, 4].map((body) => ({ body })));
    await done;
    await receiver.close();
    assert.deepEqual(bodies.sort(), [0, 1, 2, 3, 4]);
  },
  async unknown_queue() {
    await assert.rejects(send("js-none", { body: 1 }), { code: "MessagingEntityNotFound" });
  },
};

const results = {};
for (const name of names) {
  try {
    await scenarios[name]();
    results[name] = "ok";
  } catch (error) {
    results[name] = `${error.code ?? ""} ${error.stack ?? error}`;
  }
}
await client.close();
console.log(JSON.stringify(results));
