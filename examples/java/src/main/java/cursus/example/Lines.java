package cursus.example;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStream;

/** Lines of bytes, which need not be text, of a bounded length. */
final class Lines {
  private final InputStream in;
  private final long maxBytes;
  private final byte[] buffer = new byte[1 << 16];
  private int at;
  private int end;

  Lines(InputStream in, long maxBytes) {
    this.in = in;
    this.maxBytes = maxBytes;
  }

  /** The next line without its end; null after the last. */
  byte[] next() throws IOException, Failure {
    ByteArrayOutputStream line = new ByteArrayOutputStream();
    while (true) {
      if (at == end) {
        at = 0;
        end = Math.max(0, in.read(buffer));
        if (end == 0) {
          return line.size() == 0 ? null : line.toByteArray();
        }
      }
      int stop = at;
      while (stop < end && buffer[stop] != '\n') {
        stop++;
      }
      line.write(buffer, at, stop - at);
      if (line.size() > maxBytes) {
        throw Failure.permanent("RECORD_TOO_LARGE", "a line has more than the " + maxBytes + " bytes that the broker takes");
      }
      at = Math.min(stop + 1, end);
      if (stop < end) {
        return line.toByteArray();
      }
    }
  }
}
