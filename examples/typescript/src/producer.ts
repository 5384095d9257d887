import { randomUUID } from "node:crypto";

import { type ClientDuplexStream, status as Code } from "@grpc/grpc-js";

import { ANSWER_WITHIN_MS, type Broker } from "./broker.js";
import { Failure } from "./failure.js";
import {
  Acks,
  type AppendedBatch,
  type PublishOutcome,
  PublishStreamRequest,
  type PublishStreamResponse,
} from "./gen/cursus/v1/publish_service.js";
import { Codec, type Record } from "./gen/cursus/v1/records.js";
import { Retry } from "./retry.js";

/** The broker recognises a repetition among the last 64 batches of a producer in a partition: stay well below. */
const MAX_IN_FLIGHT = 32;
const MAX_QUEUED_BYTES = 32 * 1024 * 1024;

interface Batch {
  request: PublishStreamRequest;
  partition: number;
  count: number;
  bytes: number;
}

/** One stream, and how much of the queue is on it. */
interface Attempt {
  call: ClientDuplexStream<PublishStreamRequest, PublishStreamResponse>;
  /** Unknown until the broker has answered `open`. */
  windowBytes?: number;
  /** The transport has no room. */
  blocked: boolean;
  sent: number;
  sentBytes: number;
  waitingSince: number;
}

/**
 * Publishes batches over one stream after another, so that each is stored exactly once and in order.
 *
 * Every batch has an identity: producer id, epoch, and the sequence of its first record, counted from 0 in each
 * partition. Batches wait in one queue until they are answered. Answers come in the order of requests, so an answer
 * always means the head. When a stream breaks, nobody knows what was stored: everything in the queue is sent again, with
 * the same numbers and bytes, and the broker recognises what it has.
 */
export class Producer {
  /** Unanswered batches, oldest first. */
  private readonly queue: Batch[] = [];
  private queuedBytes = 0;
  private readonly nextSequence = new Map<number, bigint>();
  private readonly retry: Retry;
  private readonly watching: NodeJS.Timeout;
  private attempt?: Attempt;
  private reconnecting?: NodeJS.Timeout;
  private failure?: Failure;
  private waiting: (() => void)[] = [];
  private turn: Promise<void> = Promise.resolve();

  private constructor(
    private readonly broker: Broker,
    private readonly topic: string,
    private readonly id: Buffer,
    private readonly epoch: bigint,
    patienceMs: number,
    private readonly onAcknowledged: (place: AppendedBatch) => void,
  ) {
    this.retry = new Retry(patienceMs);
    this.watching = setInterval(() => this.watch(), 1_000);
  }

  /**
   * Begins a session of a producer, under a new id if it has no name. Under a name that was used before it has a higher
   * epoch, which shuts out what may be left of the earlier session.
   */
  static async begin(
    broker: Broker,
    topic: string,
    partitionCount: number,
    name: string | undefined,
    patienceMs: number,
    onAcknowledged: (place: AppendedBatch) => void,
  ): Promise<Producer> {
    const id = Buffer.from(name ?? randomUUID());
    const known = name === undefined ? -1n : await broker.latestEpoch(topic, partitionCount, id, new Retry(patienceMs));
    return new Producer(broker, topic, id, known + 1n, patienceMs, onAcknowledged);
  }

  /** Takes a batch, and waits while too many are unanswered. Throws what ended the producer. */
  publish(partition: number, records: Record[], bytes: number): Promise<void> {
    // One after the other: numbers are given and batches queued in the order of the calls.
    const taken = this.turn.then(() => this.take(partition, records, bytes));
    this.turn = taken.catch(() => {});
    return taken;
  }

  private async take(partition: number, records: Record[], bytes: number): Promise<void> {
    const firstSequence = this.nextSequence.get(partition) ?? 0n;
    this.nextSequence.set(partition, firstSequence + BigInt(records.length));
    const value = {
      topic: this.topic,
      partition,
      acks: Acks.ACKS_ALL,
      producer: { id: this.id, epoch: this.epoch, firstSequence },
      codec: Codec.CODEC_NONE,
      recordCount: records.length,
      records: { records },
    };
    const request = PublishStreamRequest.fromPartial({ request: { $case: "publish", value } });
    while (!this.failure && this.queue.length > 0 && this.isFull(bytes)) {
      await this.change();
    }
    this.throwIfFailed();
    this.queue.push({ request, partition, count: records.length, bytes });
    this.queuedBytes += bytes;
    this.send();
  }

  private isFull(bytes: number): boolean {
    return this.queue.length >= MAX_IN_FLIGHT || this.queuedBytes + bytes > MAX_QUEUED_BYTES;
  }

  /** Waits until everything is acknowledged. Throws what ended the producer. */
  async flush(): Promise<void> {
    while (!this.failure && this.queue.length > 0) {
      await this.change();
    }
    this.throwIfFailed();
  }

  /** Waits for what ends the producer, and throws it. */
  async failed(): Promise<never> {
    for (;;) {
      this.throwIfFailed();
      await this.change();
    }
  }

  close(): void {
    clearInterval(this.watching);
    clearTimeout(this.reconnecting);
    this.attempt?.call.end();
    this.attempt = undefined;
  }

  private throwIfFailed(): void {
    if (this.failure) {
      throw this.failure;
    }
  }

  /** Resolves when something was answered or has failed. */
  private change(): Promise<void> {
    return new Promise((resolve) => this.waiting.push(resolve));
  }

  private changed(): void {
    const waiting = this.waiting;
    this.waiting = [];
    waiting.forEach((resolve) => resolve());
  }

  /** Puts on the wire what the transport and the broker's window have room for, and opens a stream if there is none. */
  private send(): void {
    if (this.attempt === undefined) {
      if (this.reconnecting === undefined && !this.failure && this.queue.length > 0) {
        this.attempt = this.open();
      }
      return;
    }
    const attempt = this.attempt;
    for (let batch = this.queue[attempt.sent]; batch && this.hasRoom(attempt, batch); batch = this.queue[attempt.sent]) {
      if (attempt.sent === 0) {
        attempt.waitingSince = performance.now();
      }
      attempt.sent += 1;
      attempt.sentBytes += batch.bytes;
      attempt.blocked = !attempt.call.write(batch.request);
    }
  }

  private hasRoom(attempt: Attempt, batch: Batch): boolean {
    if (attempt.windowBytes === undefined || attempt.blocked) {
      return false;
    }
    // The window is open for one batch however large.
    return attempt.sent === 0 || attempt.sentBytes + batch.bytes <= attempt.windowBytes;
  }

  private open(): Attempt {
    const call = this.broker.publishing.publishStream();
    const attempt: Attempt = { call, blocked: false, sent: 0, sentBytes: 0, waitingSince: performance.now() };
    // What comes on a stream that was given up is ignored.
    const current = (action: () => void) => (): void => {
      if (this.attempt === attempt) {
        action();
      }
    };
    call.on("data", (response: PublishStreamResponse) => current(() => this.receive(attempt, response))());
    call.on("error", (error) => current(() => this.ended(Failure.of(error)))());
    call.on("status", ({ code }) => {
      if (code === Code.OK) {
        current(() => this.ended(Failure.passing("UNAVAILABLE", "the broker ended the stream")))();
      }
    });
    call.on("drain", current(() => {
      attempt.blocked = false;
      this.send();
    }));
    call.write(PublishStreamRequest.fromPartial({ request: { $case: "open", value: { clientId: "typescript-example" } } }));
    return attempt;
  }

  private receive(attempt: Attempt, { response }: PublishStreamResponse): void {
    if (response?.$case === "opened") {
      attempt.windowBytes = Number(response.value.windowBytes);
      attempt.waitingSince = performance.now();
    } else if (response?.$case === "outcomes") {
      for (const outcome of response.value.outcomes) {
        if (this.attempt === attempt) {
          this.settle(attempt, outcome);
        }
      }
    }
    if (this.attempt === attempt) {
      this.send();
    }
  }

  private settle(attempt: Attempt, { outcome }: PublishOutcome): void {
    const head = this.queue[0];
    if (head === undefined || attempt.sent === 0 || outcome === undefined) {
      this.giveUp(Failure.passing("INTERNAL", "the broker answers what was not asked"));
      return;
    }
    if (outcome.$case === "refused") {
      // One that may pass leaves a hole that those behind it are refused for, so all of them begin anew.
      this.giveUp(Failure.ofStatus(outcome.value));
      return;
    }
    const [place] = outcome.value.appended;
    if (place === undefined || place.partition !== head.partition || place.recordCount !== head.count) {
      this.giveUp(Failure.passing("INTERNAL", "the broker's answers are out of step"));
      return;
    }
    this.queue.shift();
    this.queuedBytes -= head.bytes;
    attempt.sent -= 1;
    attempt.sentBytes -= head.bytes;
    attempt.waitingSince = performance.now();
    this.retry.progress();
    this.onAcknowledged(place);
    this.changed();
  }

  private ended(why: Failure): void {
    if (this.queue.length === 0 && why.retriable) {
      this.attempt = undefined; // nothing is lost; the next batch opens a new one
      return;
    }
    this.giveUp(why);
  }

  /** Gives a stream up. Everything unanswered is sent again on the next one. */
  private giveUp(cause: Failure): void {
    const call = this.attempt?.call;
    this.attempt = undefined;
    call?.cancel();
    try {
      const pauseMs = this.retry.pauseAfter(cause);
      this.reconnecting = setTimeout(() => {
        this.reconnecting = undefined;
        this.send();
      }, pauseMs);
    } catch (error) {
      this.failure = Failure.of(error);
    }
    this.changed();
  }

  /** Gives up a stream that stands and does not answer. */
  private watch(): void {
    const attempt = this.attempt;
    if (attempt === undefined || (attempt.windowBytes !== undefined && attempt.sent === 0)) {
      return;
    }
    if (performance.now() - attempt.waitingSince > ANSWER_WITHIN_MS) {
      this.giveUp(Failure.passing("DEADLINE_EXCEEDED", "the broker does not answer"));
    }
  }
}
