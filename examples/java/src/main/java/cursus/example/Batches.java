package cursus.example;

import com.google.protobuf.ByteString;
import cursus.v1.Record;
import cursus.v1.RecordSet;
import java.util.Arrays;
import java.util.concurrent.ThreadLocalRandom;

/** Gathers records into batches, one open batch for each partition, and hands those that are full to a producer. For any thread. */
final class Batches {
  /** Of all open batches together: a topic may have thousands of partitions. */
  private static final long MAX_OPEN_BYTES = 16 * 1024 * 1024;

  private final Producer producer;
  private final int maxRecords;
  private final long maxBytes;
  private final RecordSet.Builder[] open;
  private final long[] openBytes;
  private long totalBytes;
  /** Where records without a key go: one partition for a whole batch, the first by chance. */
  private int keyless;

  Batches(Producer producer, int partitionCount, int maxRecords, long maxBytes) {
    this.producer = producer;
    this.maxRecords = maxRecords;
    this.maxBytes = maxBytes;
    this.open = new RecordSet.Builder[partitionCount];
    this.openBytes = new long[partitionCount];
    this.keyless = ThreadLocalRandom.current().nextInt(partitionCount);
  }

  /** Adds a line: a key, a tab and a value, or a value alone. */
  synchronized void add(byte[] line) throws Failure, InterruptedException {
    int tab = indexOf(line, (byte) '\t');
    Record.Builder record = Record.newBuilder().setValue(ByteString.copyFrom(line, tab + 1, line.length - tab - 1));
    int partition = keyless;
    if (tab >= 0) {
      byte[] key = Arrays.copyOf(line, tab);
      record.setKey(ByteString.copyFrom(key));
      partition = Routing.partition(key, open.length);
    }
    Record built = record.build();
    // With the tag and length that it has inside a set.
    long size = built.getSerializedSize() + 6L;
    if (open[partition] != null && openBytes[partition] + size > maxBytes) {
      close(partition);
    }
    if (open[partition] == null) {
      open[partition] = RecordSet.newBuilder();
    }
    open[partition].addRecords(built);
    openBytes[partition] += size;
    totalBytes += size;
    if (open[partition].getRecordsCount() >= maxRecords) {
      close(partition);
    } else if (totalBytes > MAX_OPEN_BYTES) {
      flush();
    }
  }

  /** Hands over what is gathered, full or not. */
  synchronized void flush() throws Failure, InterruptedException {
    for (int partition = 0; partition < open.length; partition++) {
      if (open[partition] != null) {
        close(partition);
      }
    }
  }

  private void close(int partition) throws Failure, InterruptedException {
    RecordSet records = open[partition].build();
    open[partition] = null;
    totalBytes -= openBytes[partition];
    openBytes[partition] = 0;
    if (partition == keyless) {
      keyless = (keyless + 1) % open.length;
    }
    producer.publish(partition, records);
  }

  private static int indexOf(byte[] line, byte wanted) {
    for (int index = 0; index < line.length; index++) {
      if (line[index] == wanted) {
        return index;
      }
    }
    return -1;
  }
}
