package cursus.example;

import com.google.protobuf.Any;
import com.google.protobuf.InvalidProtocolBufferException;
import com.google.rpc.ErrorInfo;
import com.google.rpc.RetryInfo;
import com.google.rpc.Status;
import io.grpc.Status.Code;
import io.grpc.protobuf.StatusProto;
import java.util.EnumSet;
import java.util.Map;
import java.util.Set;

/**
 * What a broker refuses, or what a connection met. A program goes by {@link #reason}, a person by the message.
 */
final class Failure extends Exception {
  private static final String DOMAIN = "cursus";

  /** Codes of what may succeed later as it is. Without an ErrorInfo they come from the transport. */
  private static final Set<Code> PASSING =
      EnumSet.of(Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED, Code.CANCELLED, Code.INTERNAL, Code.UNKNOWN);

  /** Reasons that pass although their codes do not tell. */
  private static final Set<String> PASSING_REASONS = Set.of("NOT_LEADER", "WRITE_TIMEOUT");

  final String reason;
  final Map<String, String> metadata;
  /** Whether the same request may succeed later without anybody changing anything. */
  final boolean retriable;
  /** How long the broker asks to wait, in milliseconds; 0 if it asks for nothing. */
  final long retryAfterMs;

  private Failure(
      String reason, String message, Map<String, String> metadata, boolean retriable, long retryAfterMs, Throwable cause) {
    super(message, cause);
    this.reason = reason;
    this.metadata = metadata;
    this.retriable = retriable;
    this.retryAfterMs = retryAfterMs;
  }

  /** What this side found out by itself, for good. */
  static Failure permanent(String reason, String message) {
    return new Failure(reason, message, Map.of(), false, 0, null);
  }

  /** What this side found out by itself, and may pass. */
  static Failure passing(String reason, String message) {
    return new Failure(reason, message, Map.of(), true, 0, null);
  }

  /** The same failure with more to say about it. */
  Failure with(String more) {
    return new Failure(reason, getMessage() + more, metadata, retriable, retryAfterMs, this);
  }

  /** A call or stream that ended with a status. Its details are in the trailers. */
  static Failure of(Throwable thrown) {
    if (thrown instanceof Failure failure) {
      return failure;
    }
    Status status = StatusProto.fromThrowable(thrown);
    if (status != null && status.getDetailsCount() > 0) {
      return of(status);
    }
    io.grpc.Status plain = io.grpc.Status.fromThrowable(thrown);
    boolean retriable = PASSING.contains(plain.getCode());
    return new Failure(plain.getCode().name(), describe(plain), Map.of(), retriable, 0, thrown);
  }

  /** A refusal inside an answer. */
  static Failure of(Status status) {
    Code code = io.grpc.Status.fromCodeValue(status.getCode()).getCode();
    String reason = code.name();
    Map<String, String> metadata = Map.of();
    long retryAfterMs = 0;
    boolean retriable = PASSING.contains(code);
    try {
      for (Any detail : status.getDetailsList()) {
        if (detail.is(ErrorInfo.class)) {
          ErrorInfo info = detail.unpack(ErrorInfo.class);
          if (info.getDomain().equals(DOMAIN)) {
            reason = info.getReason();
            metadata = info.getMetadataMap();
          }
        } else if (detail.is(RetryInfo.class)) {
          var delay = detail.unpack(RetryInfo.class).getRetryDelay();
          retryAfterMs = delay.getSeconds() * 1000 + delay.getNanos() / 1_000_000;
          retriable = true;
        }
      }
    } catch (InvalidProtocolBufferException error) {
      return permanent(code.name(), status.getMessage() + " (with details that cannot be read)");
    }
    retriable = retriable || PASSING_REASONS.contains(reason);
    return new Failure(reason, status.getMessage(), metadata, retriable, retryAfterMs, null);
  }

  long number(String key) {
    return Long.parseLong(metadata.getOrDefault(key, "-1"));
  }

  /** gRPC says "io exception" and leaves the rest to the cause, or adds lines about its inner parts. */
  private static String describe(io.grpc.Status status) {
    String text = status.getDescription() == null ? "the call failed" : status.getDescription().lines().findFirst().orElse("");
    Throwable cause = status.getCause();
    while (cause != null && cause.getCause() != null) {
      cause = cause.getCause();
    }
    String detail = cause == null ? null : cause.getMessage();
    return detail == null || text.contains(detail) ? text : text + ": " + detail;
  }
}
