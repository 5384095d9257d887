package cursus.example;

import io.grpc.stub.ClientCallStreamObserver;
import io.grpc.stub.ClientResponseObserver;
import io.grpc.stub.StreamObserver;
import java.time.Duration;
import java.util.concurrent.TimeUnit;
import java.util.function.Function;

/**
 * A stream in both directions for code that blocks. At most one answer waits to be read; the next is asked for when it
 * was taken, so a slow reader holds the broker back. Requests wait until the transport has room. Any thread may write.
 *
 * <p>gRPC's own blocking stub for streams (BlockingV2Stub) is still marked as experimental, takes requests from one thread
 * only, and in earlier versions drops the trailers of a stream that fails, and with them its ErrorInfo.
 */
final class Duplex<Q, A> implements ClientResponseObserver<Q, A>, AutoCloseable {
  private ClientCallStreamObserver<Q> requests;
  private A answer;
  private boolean ended;
  private boolean halfClosed;
  private Failure failure;

  private Duplex() {}

  /** Opens a stream: {@code Duplex.open(stub::consume)}. */
  static <Q, A> Duplex<Q, A> open(Function<StreamObserver<A>, StreamObserver<Q>> method) {
    Duplex<Q, A> stream = new Duplex<>();
    method.apply(stream);
    return stream;
  }

  /** The next answer; null at the end of the stream. Throws what the broker ended it with. */
  A read() throws Failure, InterruptedException {
    return read(null);
  }

  /** As {@link #read()}, and fails if nothing comes in time. */
  synchronized A read(Duration within) throws Failure, InterruptedException {
    long deadline = within == null ? 0 : System.nanoTime() + within.toNanos();
    while (answer == null && !ended) {
      if (within == null) {
        wait();
        continue;
      }
      long left = deadline - System.nanoTime();
      if (left <= 0) {
        throw Failure.passing("DEADLINE_EXCEEDED", "the broker does not answer");
      }
      TimeUnit.NANOSECONDS.timedWait(this, left);
    }
    if (answer != null) {
      A taken = answer;
      answer = null;
      requests.request(1);
      return taken;
    }
    if (failure != null) {
      throw failure;
    }
    return null;
  }

  /** Opens the conversation: the first request for the first answer, without which the stream is of no use. */
  A exchange(Q first, Duration within) throws Failure, InterruptedException {
    synchronized (this) {
      // Without waiting for the transport: it may never have room if the broker cannot be reached.
      requests.onNext(first);
    }
    A opened = read(within);
    if (opened == null) {
      throw Failure.passing("UNAVAILABLE", "the broker ended the stream");
    }
    return opened;
  }

  /** Sends a request once the transport has room. On a stream that has ended it does nothing: reading tells why. */
  synchronized void write(Q request) throws InterruptedException {
    while (!ended && !requests.isReady()) {
      wait();
    }
    if (!ended && !halfClosed) {
      requests.onNext(request);
    }
  }

  /** Says that no more requests follow. */
  synchronized void halfClose() {
    if (!ended && !halfClosed) {
      halfClosed = true;
      requests.onCompleted();
    }
  }

  /** Waits for the end of the stream and breaks it off if that takes too long. */
  synchronized void awaitEnd(Duration within) throws InterruptedException {
    long deadline = System.nanoTime() + within.toNanos();
    for (long left = within.toNanos(); !ended && left > 0; left = deadline - System.nanoTime()) {
      TimeUnit.NANOSECONDS.timedWait(this, left);
    }
    close();
  }

  /** Breaks the stream off unless it has ended. */
  @Override
  public synchronized void close() {
    if (!ended) {
      requests.cancel("the client is done with it", null);
    }
  }

  @Override
  public void beforeStart(ClientCallStreamObserver<Q> stream) {
    requests = stream;
    requests.disableAutoRequestWithInitial(1);
    requests.setOnReadyHandler(this::wake);
  }

  private synchronized void wake() {
    notifyAll();
  }

  @Override
  public synchronized void onNext(A next) {
    answer = next;
    notifyAll();
  }

  @Override
  public synchronized void onError(Throwable error) {
    failure = Failure.of(error);
    ended = true;
    notifyAll();
  }

  @Override
  public synchronized void onCompleted() {
    ended = true;
    notifyAll();
  }
}
