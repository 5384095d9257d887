import { setTimeout as sleep } from "node:timers/promises";

import type { Failure } from "./failure.js";

const FIRST_MS = 50;
const LONGEST_MS = 2_000;

/**
 * Pauses between attempts, and how long to go on without progress. The pauses double, each drawn between half and all of
 * its bound: clients that lost a broker at the same time must not come back at the same time.
 */
export class Retry {
  private failures = 0;
  private failingSince = 0;

  constructor(private readonly patienceMs: number) {}

  /** Something succeeded that brings the work on. */
  progress(): void {
    this.failures = 0;
  }

  /** The pause before the next attempt. Throws the failure if it is final or patience is at its end. */
  pauseAfter(failure: Failure): number {
    if (!failure.retriable) {
      throw failure;
    }
    const now = performance.now();
    if (this.failures === 0) {
      this.failingSince = now;
      console.error(`warning: ${failure.reason}: ${failure.message}; trying again`);
    } else if (now - this.failingSince >= this.patienceMs) {
      throw failure.with(`; gave up after ${this.patienceMs / 1000} s without progress`);
    }
    const bound = Math.min(LONGEST_MS, FIRST_MS * 2 ** Math.min(this.failures, 10));
    this.failures += 1;
    return Math.max(failure.retryAfterMs, bound / 2 + (Math.random() * bound) / 2);
  }

  /** Waits before the next attempt, unless aborted, or throws as `pauseAfter` does. */
  async pause(failure: Failure, signal?: AbortSignal): Promise<void> {
    const pauseMs = this.pauseAfter(failure);
    await sleep(pauseMs, undefined, { signal }).catch((error: unknown) => {
      if (!signal?.aborted) {
        throw error;
      }
    });
  }
}
