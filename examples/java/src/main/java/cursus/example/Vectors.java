package cursus.example;

import com.google.gson.Gson;
import com.google.gson.JsonParseException;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HexFormat;
import java.util.List;

/** The test vectors of key routing, which all clients share. */
final class Vectors {
  private static final class Document {
    List<Vector> vectors;
  }

  private static final class Vector {
    String key;
    String hash;
    int partition_count;
    int partition;
  }

  private Vectors() {}

  /** Checks a file of vectors and tells how many there are. The first wrong one is a failure that names it. */
  static int check(Path file) throws Failure {
    List<Vector> vectors = read(file);
    for (Vector vector : vectors) {
      byte[] key = HexFormat.of().parseHex(vector.key);
      String hash = HexFormat.of().toHexDigits(Routing.hash(key));
      int partition = Routing.partition(key, vector.partition_count);
      if (!hash.equals(vector.hash) || partition != vector.partition) {
        throw Failure.permanent(
            "WRONG_VECTOR",
            String.format(
                "key %s over %d partitions: hash %s and partition %d here, %s and %d in the file",
                vector.key, vector.partition_count, hash, partition, vector.hash, vector.partition));
      }
    }
    return vectors.size();
  }

  private static List<Vector> read(Path file) throws Failure {
    try {
      Document document = new Gson().fromJson(Files.readString(file), Document.class);
      if (document != null && document.vectors != null && !document.vectors.isEmpty()) {
        return document.vectors;
      }
      throw Failure.permanent("INVALID_ARGUMENT", file + " holds no vectors");
    } catch (IOException | JsonParseException error) {
      throw Failure.permanent("INVALID_ARGUMENT", file + " cannot be read: " + error.getMessage());
    }
  }
}
