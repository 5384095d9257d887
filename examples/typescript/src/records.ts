import { promisify } from "node:util";
import { gunzip } from "node:zlib";

import { Decompress } from "fzstd";

import { Codec, type Record, type RecordBatch, RecordSet } from "./gen/cursus/v1/records.js";
import { Failure } from "./failure.js";
import { print } from "./output.js";

/** A few bytes can unpack to gigabytes. */
const MAX_UNPACKED_BYTES = 128 * 1024 * 1024;

const unzip = promisify(gunzip) as (packed: Buffer, options: { maxOutputLength: number }) => Promise<Buffer>;

/** Unpacks batches and prints their records as lines of JSON. */
export class Records {
  private printed = 0;

  /** Prints up to `limit` records, undefined for any number. */
  constructor(private readonly limit?: number) {}

  /** Whether as many records as wanted are printed. */
  get complete(): boolean {
    return this.limit !== undefined && this.printed >= this.limit;
  }

  /**
   * Prints the records of whole batches from an offset on, since the first batch may begin before it, and tells the offset
   * that follows the last printed one. Resolves when standard output has taken them.
   */
  async print(partition: number, batches: RecordBatch[], from: bigint): Promise<bigint> {
    let next = from;
    for (const batch of batches) {
      if (batch.baseOffset + BigInt(batch.recordCount) <= next) {
        continue;
      }
      if (batch.baseOffset > next) {
        console.error(`warning: partition ${partition}: offsets ${next} to ${batch.baseOffset - 1n} were deleted before they were read`);
      }
      const lines: string[] = [];
      let offset = batch.baseOffset;
      for (const record of await unpack(batch)) {
        if (offset >= next && !this.complete) {
          lines.push(show(partition, offset, record));
          this.printed += 1;
          next = offset + 1n;
        }
        offset += 1n;
      }
      if (lines.length > 0) {
        await print(lines.join("\n"));
      }
    }
    return next;
  }
}

/** Absent is not empty: no key, and for a value a tombstone. */
function show(partition: number, offset: bigint, { key, value }: Record): string {
  const text = JSON.stringify({ key: key?.toString() ?? null, value: value?.toString() ?? null });
  // An offset may be larger than JSON.stringify takes.
  return `{"partition":${partition},"offset":${offset},${text.slice(1)}`;
}

async function unpack(batch: RecordBatch): Promise<Record[]> {
  const place = `the batch at offset ${batch.baseOffset}`;
  let set = batch.records;
  try {
    switch (batch.codec) {
      case Codec.CODEC_UNSPECIFIED:
      case Codec.CODEC_NONE:
        break;
      case Codec.CODEC_GZIP:
        set = RecordSet.decode(await unzip(batch.compressedRecords, { maxOutputLength: MAX_UNPACKED_BYTES }));
        break;
      case Codec.CODEC_ZSTD:
        set = RecordSet.decode(unpackZstd(batch.compressedRecords));
        break;
      default:
        throw Failure.permanent("UNKNOWN_CODEC", `${place} is compressed with ${Codec[batch.codec] ?? batch.codec}, for which this program has no library`);
    }
  } catch (error) {
    throw error instanceof Failure ? error : Failure.permanent("CORRUPT_BATCH", `${place} cannot be unpacked: ${(error as Error).message}`);
  }
  const records = set?.records ?? [];
  if (records.length !== batch.recordCount) {
    throw Failure.permanent("CORRUPT_BATCH", `${place} holds ${records.length} records and not ${batch.recordCount}`);
  }
  return records;
}

function unpackZstd(packed: Buffer): Buffer {
  const parts: Uint8Array[] = [];
  let size = 0;
  const decompress = new Decompress((part) => {
    parts.push(part);
    size += part.length;
    if (size > MAX_UNPACKED_BYTES) {
      throw new Error(`it has more than ${MAX_UNPACKED_BYTES} bytes`);
    }
  });
  decompress.push(packed, true);
  return Buffer.concat(parts);
}
