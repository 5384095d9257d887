package cursus.example;

/** Which partition a key belongs to: FNV-1a with 64 bits, modulo the number of partitions. Brokers do the same. */
final class Routing {
  private static final long OFFSET_BASIS = 0xcbf29ce484222325L;
  private static final long PRIME = 0x100000001b3L;

  private Routing() {}

  static long hash(byte[] key) {
    long hash = OFFSET_BASIS;
    for (byte one : key) {
      hash = (hash ^ (one & 0xff)) * PRIME;
    }
    return hash;
  }

  static int partition(byte[] key, int partitionCount) {
    // The hash is unsigned, and Java's long is not.
    return (int) Long.remainderUnsigned(hash(key), partitionCount);
  }
}
