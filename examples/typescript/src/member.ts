import { ANSWER_WITHIN_MS, type Broker, call } from "./broker.js";
import { Duplex } from "./duplex.js";
import { Failure } from "./failure.js";
import {
  type AssignedPartition,
  type DeepPartial,
  FetchRequest,
  type SubscribeAssignment,
  type SubscribeCommitted,
  type SubscribedBatches,
  SubscribeRequest,
  type SubscribeResponse,
} from "./gen/cursus/v1/consume_service.js";
import type { Records } from "./records.js";
import { Retry } from "./retry.js";

/** Records that may come unasked. What is printed is granted again, so assignments never queue behind a flood. */
const CREDIT_RECORDS = 10_000n;

/** A partition this member owns, and how far it has come. */
interface Owned {
  epoch: bigint;
  position: bigint;
  /** What the latest commit says; the broker need not have answered it. */
  committed: bigint;
}

/**
 * A member of a consumer group: prints the records of the partitions it owns and commits what it has printed.
 *
 * A commit goes out when the one before it is answered, with all that was printed meanwhile. Before the member lets go of
 * a partition or leaves, it commits what it printed: the broker serves commits, acknowledgements and the end of the stream
 * in their order, so the next owner begins where this one stopped.
 */
export class Member {
  private readonly retry: Retry;
  private readonly owned = new Map<number, Owned>();
  private readonly stopped = new AbortController();
  private stream?: Duplex<SubscribeRequest, SubscribeResponse>;
  private memberId = "";
  private handling = false;
  private leaving = false;
  private resumed = false;
  private commitId = 0n;
  private answeredCommitId = 0n;

  constructor(
    private readonly broker: Broker,
    private readonly topic: string,
    private readonly group: string,
    patienceMs: number,
    private readonly records: Records,
  ) {
    this.retry = new Retry(patienceMs);
  }

  /** Resolves when the member has left: after enough records, or after `leave`. */
  async run(): Promise<void> {
    // A group may wait for a topic that is yet to be created; a person has rather mistyped its name.
    await this.broker.partitionCount(this.topic, this.retry);
    while (!this.leaving) {
      try {
        await this.session();
      } catch (error) {
        const failure = Failure.of(error);
        if (this.leaving && failure.retriable) {
          return; // there is no broker to tell; the session timeout does the rest
        }
        if (failure.reason === "MEMBER_NOT_FOUND") {
          this.memberId = ""; // the session ended while the connection was broken: come back as somebody new
        } else {
          await this.retry.pause(failure, this.stopped.signal);
        }
      }
    }
  }

  /** Has the member commit what is printed and leave the group. */
  leave(): void {
    this.leaving = true;
    this.stopped.abort();
    if (!this.handling) {
      void this.close();
    }
  }

  private async session(): Promise<void> {
    const stream = new Duplex(this.broker.consuming.subscribe());
    try {
      const { response } = await stream.exchange(this.start(), ANSWER_WITHIN_MS);
      if (response?.$case !== "started") {
        throw Failure.passing("INTERNAL", "the stream does not begin with `started`");
      }
      this.memberId = response.value.memberId;
      this.retry.progress();
      this.stream = stream;
      this.resumed = true;
      this.answeredCommitId = this.commitId;
      if (this.leaving) {
        await this.close();
      }
      for (let message = await stream.read(); message !== undefined; message = await stream.read()) {
        await this.handle(message);
      }
      if (!this.leaving) {
        throw Failure.passing("UNAVAILABLE", "the broker ended the stream");
      }
    } finally {
      this.stream = undefined;
      stream.cancel();
    }
  }

  private start(): SubscribeRequest {
    const value = {
      group: this.group,
      topics: [this.topic],
      memberId: this.memberId,
      clientId: "typescript-example",
      grant: { records: CREDIT_RECORDS },
    };
    return SubscribeRequest.fromPartial({ request: { $case: "start", value } });
  }

  /** Commits what is printed, and closes our side: that is leaving. The broker ends the stream when it has done both. */
  private async close(): Promise<void> {
    const stream = this.stream;
    await this.commit();
    stream?.end();
    setTimeout(() => stream?.cancel(), ANSWER_WITHIN_MS).unref();
  }

  private async handle({ response }: SubscribeResponse): Promise<void> {
    const wasLeaving = this.leaving;
    this.handling = true;
    try {
      if (response?.$case === "assignment" && !wasLeaving) {
        await this.assign(response.value);
      } else if (response?.$case === "batches" && !wasLeaving) {
        await this.receive(response.value);
      } else if (response?.$case === "committed") {
        await this.committed(response.value);
      }
    } finally {
      this.handling = false;
    }
    if (this.leaving && !wasLeaving) {
      await this.close();
    }
  }

  private async assign(assignment: SubscribeAssignment): Promise<void> {
    await this.commit(); // for what is taken away now; the broker stores it before it hears the acknowledgement
    const given = new Map(assignment.partitions.map((one) => [one.partition, one]));
    const lost = [...this.owned.keys()].filter((partition) => !given.has(partition));
    if (lost.length > 0) {
      lost.forEach((partition) => this.owned.delete(partition));
      console.error(`revoked [${lost.join()}]`);
    }
    for (const one of given.values()) {
      await this.take(one);
    }
    await this.write({ request: { $case: "assignmentAck", value: { generation: assignment.generation } } });
    this.resumed = false;
    console.error(`assigned [${[...given.keys()].join()}]`);
    await this.commit();
  }

  /** Notes where a partition begins. One that we had before a broken connection goes on where we were. */
  private async take(given: AssignedPartition): Promise<void> {
    const known = this.owned.get(given.partition);
    if (known !== undefined && !this.resumed && known.epoch === given.leaderEpoch) {
      return;
    }
    const ahead =
      known !== undefined && this.resumed && known.position > given.startOffset && (await this.isStored(given, known));
    this.owned.set(given.partition, {
      epoch: given.leaderEpoch,
      position: ahead ? known.position : given.startOffset,
      committed: given.startOffset,
    });
    if (given.truncatedFrom !== undefined) {
      const was = `the group had committed ${given.truncatedFrom}, and the log was cut; going on from ${given.startOffset}`;
      console.error(`warning: partition ${given.partition}: ${was}`);
    }
  }

  /**
   * Whether what we printed is still in the log. The epoch rises whenever a broker was killed, and only the broker knows
   * whether the log lost its end: it answers LOG_TRUNCATED to whoever names the old epoch.
   */
  private async isStored(given: AssignedPartition, known: Owned): Promise<boolean> {
    if (given.leaderEpoch === known.epoch) {
      return true;
    }
    const place = {
      topic: this.topic,
      partition: given.partition,
      offset: known.position,
      leaderEpoch: known.epoch,
      maxBytes: 1,
    };
    const fetch = this.broker.consuming.fetch.bind(this.broker.consuming);
    const answer = await call(fetch, FetchRequest.fromPartial({ partitions: [place], maxRecords: 1 }));
    const error = answer.partitions[0]?.error;
    if (error === undefined) {
      return true;
    }
    const failure = Failure.ofStatus(error);
    if (failure.retriable) {
      throw failure;
    }
    console.error(`warning: partition ${given.partition}: ${failure.reason}: ${failure.message}`);
    return false;
  }

  private async receive({ partition, batches, error }: SubscribedBatches): Promise<void> {
    if (error !== undefined) {
      const failure = Failure.ofStatus(error);
      if (failure.reason !== "TOPIC_NOT_FOUND" && failure.reason !== "PARTITION_NOT_FOUND") {
        throw failure;
      }
      console.error(`warning: partition ${partition}: ${failure.message}`);
      return; // deleted: the next assignment takes it away
    }
    const place = this.owned.get(partition);
    if (place === undefined) {
      return;
    }
    place.position = await this.records.print(partition, batches, place.position);
    const count = batches.reduce((sum, batch) => sum + batch.recordCount, 0);
    await this.write({ request: { $case: "grant", value: { records: BigInt(count) } } });
    if (this.records.complete) {
      this.leaving = true;
    } else if (this.answeredCommitId === this.commitId) {
      await this.commit();
    }
  }

  /** Commits what was printed since the last commit. */
  private async commit(): Promise<void> {
    const offsets = [];
    for (const [partition, place] of this.owned) {
      if (place.position > place.committed) {
        place.committed = place.position;
        offsets.push({
          topic: this.topic,
          partition,
          nextOffset: place.position,
          leaderEpoch: place.epoch,
        });
      }
    }
    if (offsets.length > 0) {
      this.commitId += 1n;
      await this.write({ request: { $case: "commit", value: { commitId: this.commitId, offsets } } });
    }
  }

  private async committed(answer: SubscribeCommitted): Promise<void> {
    this.answeredCommitId = answer.commitId;
    for (const { partition, error } of answer.results) {
      if (error === undefined) {
        continue;
      }
      const failure = Failure.ofStatus(error);
      switch (failure.reason) {
        // Another member has the partition by now, and will print again what this one could not commit.
        case "NOT_OWNER":
        case "GENERATION_MISMATCH":
        case "TOPIC_NOT_FOUND":
        case "PARTITION_NOT_FOUND":
          console.error(`warning: partition ${partition}: ${failure.reason}: ${failure.message}`);
          break;
        // One that may pass too: the group goes on from its last commit, and what we printed is skipped.
        default:
          throw failure;
      }
    }
    if (this.answeredCommitId === this.commitId && !this.leaving) {
      await this.commit();
    }
  }

  private async write(request: DeepPartial<SubscribeRequest>): Promise<void> {
    await this.stream?.write(SubscribeRequest.fromPartial(request));
  }
}
