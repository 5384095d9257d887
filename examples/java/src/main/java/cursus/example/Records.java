package cursus.example;

import com.github.luben.zstd.ZstdInputStream;
import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import cursus.v1.Record;
import cursus.v1.RecordBatch;
import cursus.v1.RecordSet;
import java.io.BufferedWriter;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStreamWriter;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.zip.GZIPInputStream;
import org.apache.commons.compress.compressors.lz4.FramedLZ4CompressorInputStream;
import org.apache.commons.compress.compressors.snappy.FramedSnappyCompressorInputStream;

/** Unpacks batches and prints their records as lines of JSON. */
final class Records {
  /** A few bytes can unpack to gigabytes. */
  private static final int MAX_UNPACKED_BYTES = 128 * 1024 * 1024;

  private final Gson json = new GsonBuilder().serializeNulls().disableHtmlEscaping().create();
  private final BufferedWriter out = new BufferedWriter(new OutputStreamWriter(System.out, StandardCharsets.UTF_8), 1 << 16);
  private final long limit;
  private long printed;

  /** Prints up to {@code limit} records, 0 for any number. */
  Records(long limit) {
    this.limit = limit;
  }

  /** Whether as many records as wanted are printed. */
  synchronized boolean complete() {
    return limit > 0 && printed >= limit;
  }

  /**
   * Prints the records of whole batches from an offset on, since the first batch may begin before it, and tells the
   * offset that follows the last printed one. Returns when all are handed to the operating system.
   */
  synchronized long print(int partition, List<RecordBatch> batches, long from) throws Failure {
    long next = from;
    try {
      for (RecordBatch batch : batches) {
        if (batch.getBaseOffset() + batch.getRecordCount() <= next) {
          continue;
        }
        if (batch.getBaseOffset() > next) {
          System.err.printf("warning: partition %d: offsets %d to %d were deleted before they were read%n",
              partition, next, batch.getBaseOffset() - 1);
        }
        long offset = batch.getBaseOffset();
        for (Record record : unpack(batch)) {
          if (offset >= next) {
            if (complete()) {
              return next;
            }
            out.write(line(partition, offset, record));
            out.write('\n');
            printed++;
            next = offset + 1;
          }
          offset++;
        }
      }
      return next;
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    } finally {
      flush();
    }
  }

  private void flush() {
    try {
      out.flush();
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
  }

  private String line(int partition, long offset, Record record) {
    Map<String, Object> fields = new LinkedHashMap<>();
    fields.put("partition", partition);
    fields.put("offset", offset);
    // Absent is not empty: no key, and for a value a tombstone.
    fields.put("key", record.hasKey() ? record.getKey().toStringUtf8() : null);
    fields.put("value", record.hasValue() ? record.getValue().toStringUtf8() : null);
    return json.toJson(fields);
  }

  private static List<Record> unpack(RecordBatch batch) throws Failure {
    String place = "the batch at offset " + batch.getBaseOffset();
    List<Record> unpacked;
    try {
      unpacked = switch (batch.getCodec()) {
        case CODEC_UNSPECIFIED, CODEC_NONE -> batch.getRecords().getRecordsList();
        case CODEC_GZIP -> parse(new GZIPInputStream(packed(batch)));
        case CODEC_ZSTD -> parse(new ZstdInputStream(packed(batch)));
        case CODEC_LZ4 -> parse(new FramedLZ4CompressorInputStream(packed(batch)));
        case CODEC_SNAPPY -> parse(new FramedSnappyCompressorInputStream(packed(batch)));
        default -> throw Failure.permanent("UNKNOWN_CODEC", place + " is compressed with a codec unknown to this program");
      };
    } catch (IOException error) {
      throw Failure.permanent("CORRUPT_BATCH", place + " cannot be unpacked: " + error.getMessage());
    }
    if (unpacked.size() != batch.getRecordCount()) {
      throw Failure.permanent(
          "CORRUPT_BATCH", place + " holds " + unpacked.size() + " records and not " + batch.getRecordCount());
    }
    return unpacked;
  }

  private static InputStream packed(RecordBatch batch) {
    return batch.getCompressedRecords().newInput();
  }

  private static List<Record> parse(InputStream unpacking) throws IOException {
    try (unpacking) {
      byte[] plain = unpacking.readNBytes(MAX_UNPACKED_BYTES + 1);
      if (plain.length > MAX_UNPACKED_BYTES) {
        throw new IOException("it has more than " + MAX_UNPACKED_BYTES + " bytes");
      }
      return RecordSet.parseFrom(plain).getRecordsList();
    }
  }
}
