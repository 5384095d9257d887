import { status as Code, type ServiceError } from "@grpc/grpc-js";

import { ErrorInfo, RetryInfo } from "./gen/google/rpc/error_details.js";
import { Status } from "./gen/google/rpc/status.js";

/** Codes of what may succeed later as it is. Without an ErrorInfo they come from the transport. */
const PASSING = new Set<number>([Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED, Code.CANCELLED, Code.INTERNAL, Code.UNKNOWN]);

/** Reasons that pass although their codes do not tell. */
const PASSING_REASONS = new Set(["NOT_LEADER", "WRITE_TIMEOUT"]);

const ERROR_INFO = "type.googleapis.com/google.rpc.ErrorInfo";
const RETRY_INFO = "type.googleapis.com/google.rpc.RetryInfo";

/** What a broker refuses, or what a connection met. A program goes by `reason`, a person by the message. */
export class Failure extends Error {
  constructor(
    readonly reason: string,
    message: string,
    /** Whether the same request may succeed later without anybody changing anything. */
    readonly retriable: boolean,
    readonly metadata: Readonly<Record<string, string>> = {},
    /** How long the broker asks to wait; 0 if it asks for nothing. */
    readonly retryAfterMs = 0,
  ) {
    super(message);
  }

  /** What this side found out by itself, for good. */
  static permanent(reason: string, message: string): Failure {
    return new Failure(reason, message, false);
  }

  /** What this side found out by itself, and may pass. */
  static passing(reason: string, message: string): Failure {
    return new Failure(reason, message, true);
  }

  /** A call or stream that ended with a status. Its details are in the trailers. */
  static of(error: unknown): Failure {
    if (error instanceof Failure) {
      return error;
    }
    if (!isServiceError(error)) {
      throw error;
    }
    const [details] = error.metadata?.get("grpc-status-details-bin") ?? [];
    if (details instanceof Buffer) {
      return Failure.ofStatus(Status.decode(details));
    }
    const [line = ""] = error.details.split("\n");
    return new Failure(Code[error.code] ?? "UNKNOWN", line || "the call failed", PASSING.has(error.code));
  }

  /** A refusal inside an answer. */
  static ofStatus(status: Status): Failure {
    let reason = Code[status.code] ?? "UNKNOWN";
    let metadata: Record<string, string> = {};
    let retriable = PASSING.has(status.code);
    let retryAfterMs = 0;
    for (const { typeUrl, value } of status.details) {
      if (typeUrl === ERROR_INFO) {
        const info = ErrorInfo.decode(value);
        if (info.domain === "cursus") {
          ({ reason, metadata } = info);
        }
      } else if (typeUrl === RETRY_INFO) {
        const delay = RetryInfo.decode(value).retryDelay;
        retryAfterMs = Number(delay?.seconds ?? 0n) * 1000 + (delay?.nanos ?? 0) / 1e6;
        retriable = true;
      }
    }
    return new Failure(reason, status.message, retriable || PASSING_REASONS.has(reason), metadata, retryAfterMs);
  }

  /** The same failure with more to say about it. */
  with(more: string): Failure {
    return new Failure(this.reason, this.message + more, this.retriable, this.metadata, this.retryAfterMs);
  }

  number(key: string): bigint {
    return BigInt(this.metadata[key] ?? "-1");
  }
}

function isServiceError(error: unknown): error is ServiceError {
  return error instanceof Error && "code" in error && typeof error.code === "number" && "details" in error;
}
