package cursus.example;

import java.time.Duration;
import java.util.concurrent.ThreadLocalRandom;

/**
 * Pauses between attempts, and how long to go on without progress. The pauses double, each drawn between half and all of
 * its bound: clients that lost a broker at the same time must not come back at the same time.
 */
final class Retry {
  private static final long FIRST_MS = 50;
  private static final long LONGEST_MS = 2_000;

  private final Duration patience;
  private int failures;
  private long failingSince;

  Retry(Duration patience) {
    this.patience = patience;
  }

  /** Something succeeded that brings the work on. */
  synchronized void progress() {
    failures = 0;
  }

  /** The pause in milliseconds before the next attempt. Throws the failure if it is final or patience is at its end. */
  synchronized long pauseAfter(Failure failure) throws Failure {
    if (!failure.retriable) {
      throw failure;
    }
    long now = System.nanoTime();
    if (failures == 0) {
      failingSince = now;
      System.err.println("warning: " + failure.reason + ": " + failure.getMessage() + "; trying again");
    } else if (now - failingSince >= patience.toNanos()) {
      throw failure.with("; gave up after " + patience.toMillis() / 1000.0 + " s without progress");
    }
    long bound = Math.min(LONGEST_MS, FIRST_MS << Math.min(failures, 10));
    failures++;
    return Math.max(failure.retryAfterMs, ThreadLocalRandom.current().nextLong(bound / 2, bound + 1));
  }

  /** Waits before the next attempt, or throws as {@link #pauseAfter} does. */
  void pause(Failure failure) throws Failure, InterruptedException {
    Thread.sleep(pauseAfter(failure));
  }
}
