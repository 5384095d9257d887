import { ANSWER_WITHIN_MS, type Broker } from "./broker.js";
import { Duplex } from "./duplex.js";
import { ConsumeRequest } from "./gen/cursus/v1/consume_service.js";
import { OffsetEdge } from "./gen/cursus/v1/records.js";
import type { ListedOffset } from "./gen/cursus/v1/topic_service.js";
import { Failure } from "./failure.js";
import type { Records } from "./records.js";
import { Retry } from "./retry.js";

const LOOK_FOR_PARTITIONS_MS = 10_000;

/** gRPC for Node reads up to sixteen messages ahead of us, so they should be small: this bounds the memory we need. */
const MAX_RESPONSE_BYTES = 128 * 1024;

/** Follows all partitions of a topic, each over a Consume stream of its own that is opened again where it broke. */
export class Follower {
  constructor(
    private readonly broker: Broker,
    private readonly topic: string,
    private readonly patienceMs: number,
    private readonly records: Records,
  ) {}

  /** Resolves when as many records are printed as wanted. */
  async run(from: OffsetEdge): Promise<void> {
    const retry = new Retry(this.patienceMs);
    // Asked for once, and not left to each stream: one that breaks before its first record would begin elsewhere.
    const begin = await this.broker.offsets(this.topic, from, retry);
    console.error(`following ${this.topic} from [${begin.map(({ offset }) => offset).join()}]`);
    await new Promise<void>((resolve, reject) => {
      const follow = (start: ListedOffset): void => {
        new PartitionReader(this.broker, this.topic, start, this.records).run(new Retry(this.patienceMs)).then(resolve, reject);
      };
      begin.forEach(follow);
      this.lookForPartitions(begin.length, follow).catch(reject);
    });
  }

  /** A topic can grow. What is in a new partition was published after we began, so it is read from its beginning. */
  private async lookForPartitions(known: number, follow: (start: ListedOffset) => void): Promise<void> {
    const retry = new Retry(this.patienceMs);
    for (;;) {
      await new Promise((resolve) => setTimeout(resolve, LOOK_FOR_PARTITIONS_MS).unref());
      if ((await this.broker.partitionCount(this.topic, retry)) > known) {
        const now = await this.broker.offsets(this.topic, OffsetEdge.OFFSET_EDGE_EARLIEST, retry);
        now.slice(known).forEach(follow);
        known = now.length;
      }
    }
  }
}

/** One partition. */
class PartitionReader {
  private readonly partition: number;
  /** The next offset to print, and the leader epoch that it stands in. */
  private position: bigint;
  private epoch: bigint;

  constructor(
    private readonly broker: Broker,
    private readonly topic: string,
    start: ListedOffset,
    private readonly records: Records,
  ) {
    this.partition = start.partition;
    this.position = start.offset;
    this.epoch = start.leaderEpoch;
  }

  async run(retry: Retry): Promise<void> {
    while (!this.records.complete) {
      try {
        await this.session(retry);
      } catch (error) {
        const failure = Failure.of(error);
        if (failure.reason === "LOG_TRUNCATED") {
          this.goBack(failure);
        } else {
          await retry.pause(failure);
        }
      }
    }
  }

  private async session(retry: Retry): Promise<void> {
    const stream = new Duplex(this.broker.consuming.consume());
    try {
      const { response } = await stream.exchange(this.start(), ANSWER_WITHIN_MS);
      if (response?.$case !== "started") {
        throw Failure.passing("INTERNAL", "the stream does not begin with `started`");
      }
      this.epoch = response.value.leaderEpoch;
      retry.progress();
      while (!this.records.complete) {
        const message = await stream.read();
        if (message === undefined) {
          throw Failure.passing("UNAVAILABLE", "the broker ended the stream");
        }
        if (message.response?.$case === "batches") {
          this.position = await this.records.print(this.partition, message.response.value.batches, this.position);
        }
      }
    } finally {
      stream.cancel();
    }
  }

  /**
   * The epoch lets the broker tell whether the log was cut below us since. No credit is granted: while we do not read, the
   * transport holds the broker back.
   */
  private start(): ConsumeRequest {
    const start = {
      topic: this.topic,
      partition: this.partition,
      startAt: { spec: { $case: "offset" as const, value: this.position } },
      leaderEpoch: this.epoch,
      maxResponseBytes: MAX_RESPONSE_BYTES,
    };
    return ConsumeRequest.fromPartial({ request: { $case: "start", value: start } });
  }

  private goBack(truncated: Failure): void {
    console.error(`warning: partition ${this.partition}: ${truncated.message}`);
    const end = truncated.number("offset");
    this.position = end < this.position ? end : this.position;
    this.epoch = truncated.number("leader_epoch");
  }
}
