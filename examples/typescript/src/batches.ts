import { Record } from "./gen/cursus/v1/records.js";
import type { Producer } from "./producer.js";
import { partitionOf } from "./routing.js";

const TAB = 0x09;

/** Of all open batches together: a topic may have thousands of partitions. */
const MAX_OPEN_BYTES = 16 * 1024 * 1024;

/** Tags and lengths of a record with key and value, at most. */
const FRAME_BYTES = 18;

interface Open {
  records: Record[];
  bytes: number;
}

/** Gathers records into batches, one open batch for each partition, and hands those that are full to a producer. */
export class Batches {
  private readonly open = new Map<number, Open>();
  private openBytes = 0;
  /** Where records without a key go: one partition for a whole batch, the first by chance. */
  private keyless: number;

  constructor(
    private readonly producer: Producer,
    private readonly partitionCount: number,
    private readonly maxRecords: number,
    private readonly maxBytes: number,
  ) {
    this.keyless = Math.floor(Math.random() * partitionCount);
  }

  /** Adds a line: a key, a tab and a value, or a value alone. */
  async add(line: Buffer): Promise<void> {
    const tab = line.indexOf(TAB);
    const key = tab < 0 ? undefined : line.subarray(0, tab);
    const partition = key === undefined ? this.keyless : partitionOf(key, this.partitionCount);
    const size = line.length + FRAME_BYTES;
    if ((this.open.get(partition)?.bytes ?? 0) + size > this.maxBytes) {
      await this.close(partition);
    }
    let batch = this.open.get(partition);
    if (batch === undefined) {
      batch = { records: [], bytes: 0 };
      this.open.set(partition, batch);
    }
    batch.records.push(Record.fromPartial({ key, value: line.subarray(tab + 1) }));
    batch.bytes += size;
    this.openBytes += size;
    if (batch.records.length >= this.maxRecords) {
      await this.close(partition);
    } else if (this.openBytes > MAX_OPEN_BYTES) {
      await this.flush();
    }
  }

  /** Hands over what is gathered, full or not. */
  async flush(): Promise<void> {
    for (const partition of [...this.open.keys()]) {
      await this.close(partition);
    }
  }

  private async close(partition: number): Promise<void> {
    const batch = this.open.get(partition);
    if (batch === undefined) {
      return;
    }
    this.open.delete(partition);
    this.openBytes -= batch.bytes;
    if (partition === this.keyless) {
      this.keyless = (this.keyless + 1) % this.partitionCount;
    }
    await this.producer.publish(partition, batch.records, batch.bytes);
  }
}
