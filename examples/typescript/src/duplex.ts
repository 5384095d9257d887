import type { ClientDuplexStream } from "@grpc/grpc-js";

import { Failure } from "./failure.js";

/**
 * A stream in both directions for code that awaits. Answers are taken from it one by one; while nobody takes them, it
 * holds sixteen at most and the transport holds the broker back.
 */
export class Duplex<Q, A> {
  private readonly answers: AsyncIterator<A>;
  private over = false;

  constructor(private readonly stream: ClientDuplexStream<Q, A>) {
    // Whoever reads gets the error; without a listener it would end the process.
    stream.on("error", () => {});
    stream.on("status", () => {
      this.over = true;
    });
    this.answers = stream[Symbol.asyncIterator]();
  }

  /** The next answer; undefined at the end of the stream. Throws what the broker ended it with. */
  async read(): Promise<A | undefined> {
    try {
      const { done, value } = await this.answers.next();
      return done ? undefined : (value as A);
    } catch (error) {
      throw Failure.of(error);
    }
  }

  /** Opens the conversation: the first request for the first answer, without which the stream is of no use. */
  async exchange(first: Q, withinMs: number): Promise<A> {
    this.stream.write(first);
    let late = false;
    const timer = setTimeout(() => {
      late = true;
      this.cancel();
    }, withinMs);
    try {
      const answer = await this.read();
      if (answer === undefined) {
        throw Failure.passing("UNAVAILABLE", "the broker ended the stream");
      }
      return answer;
    } catch (error) {
      throw late ? Failure.passing("DEADLINE_EXCEEDED", "the broker does not answer") : error;
    } finally {
      clearTimeout(timer);
    }
  }

  /** Sends a request and waits while the transport has no room. On a stream that is over it does nothing. */
  async write(request: Q): Promise<void> {
    if (this.over || this.stream.write(request)) {
      return;
    }
    await new Promise<void>((resolve) => {
      const done = (): void => {
        this.stream.off("drain", done).off("status", done);
        resolve();
      };
      this.stream.on("drain", done).on("status", done);
    });
  }

  /** Says that no more requests follow. */
  end(): void {
    this.stream.end();
  }

  /** Breaks the stream off unless it is over. */
  cancel(): void {
    this.stream.cancel();
  }
}
