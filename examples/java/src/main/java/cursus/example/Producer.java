package cursus.example;

import com.google.protobuf.ByteString;
import cursus.v1.Acks;
import cursus.v1.AppendedBatch;
import cursus.v1.Codec;
import cursus.v1.DescribeProducersRequest;
import cursus.v1.ProducerIdentity;
import cursus.v1.PublishOutcome;
import cursus.v1.PublishRequest;
import cursus.v1.PublishStreamOpen;
import cursus.v1.PublishStreamOpened;
import cursus.v1.PublishStreamRequest;
import cursus.v1.PublishStreamResponse;
import cursus.v1.RecordSet;
import io.grpc.stub.ClientCallStreamObserver;
import io.grpc.stub.ClientResponseObserver;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.UUID;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;

/**
 * Publishes batches over one stream after another, so that each is stored exactly once and in order.
 *
 * <p>Every batch has an identity: producer id, epoch, and the sequence of its first record, counted from 0 in each
 * partition. Batches wait in one queue until they are answered. Answers come in the order of requests, so an answer
 * always means the head. When a stream breaks, nobody knows what was stored: everything in the queue is sent again, with
 * the same numbers and bytes, and the broker recognises what it has.
 *
 * <p>All state is guarded by this object's monitor; gRPC's callbacks, the timer and the publishing thread take it.
 */
final class Producer implements AutoCloseable {
  /** The broker recognises a repetition among the last 64 batches of a producer in a partition: stay well below. */
  private static final int MAX_IN_FLIGHT = 32;

  private static final long MAX_QUEUED_BYTES = 32 * 1024 * 1024;

  private record Batch(PublishStreamRequest request, int partition, int count, int size) {}

  private final Broker broker;
  private final String topic;
  private final ByteString id;
  private final long epoch;
  private final long[] nextSequence;
  private final Consumer<AppendedBatch> onAcknowledged;
  private final Retry retry;
  private final ScheduledExecutorService timer =
      Executors.newSingleThreadScheduledExecutor(
          task -> {
            Thread thread = new Thread(task, "producer-timer");
            thread.setDaemon(true);
            return thread;
          });

  /** Unanswered batches, oldest first. The first {@code stream.sent} of them are on the wire. */
  private final List<Batch> queue = new ArrayList<>();

  private long queuedBytes;
  private Stream stream;
  private boolean reconnecting;
  private boolean finished;
  private Failure failure;

  private Producer(
      Broker broker, String topic, int partitionCount, ByteString id, long epoch, Duration patience, Consumer<AppendedBatch> onAcknowledged) {
    this.broker = broker;
    this.topic = topic;
    this.id = id;
    this.epoch = epoch;
    this.nextSequence = new long[partitionCount];
    this.onAcknowledged = onAcknowledged;
    this.retry = new Retry(patience);
    timer.scheduleWithFixedDelay(this::watch, 1, 1, TimeUnit.SECONDS);
  }

  /**
   * Begins a session of a producer, under a new id if it has no name. Under a name that was used before it has a higher
   * epoch, which shuts out what may be left of the earlier session.
   */
  static Producer begin(
      Broker broker, String topic, int partitionCount, String name, Duration patience, Consumer<AppendedBatch> onAcknowledged)
      throws Failure, InterruptedException {
    if (name == null) {
      ByteString unique = ByteString.copyFromUtf8(UUID.randomUUID().toString());
      return new Producer(broker, topic, partitionCount, unique, 0, patience, onAcknowledged);
    }
    ByteString id = ByteString.copyFromUtf8(name);
    long epoch = 0;
    Retry retry = new Retry(patience);
    for (int partition = 0; partition < partitionCount; partition++) {
      var request = DescribeProducersRequest.newBuilder().setTopic(topic).setPartition(partition).addProducerIds(id).build();
      var known = broker.call(retry, () -> broker.producers().describeProducers(request)).getProducers(0);
      if (known.getKnown()) {
        epoch = Math.max(epoch, known.getEpoch() + 1);
      }
    }
    return new Producer(broker, topic, partitionCount, id, epoch, patience, onAcknowledged);
  }

  /** Takes a batch, and waits while too many are unanswered. Throws what ended the producer. */
  synchronized void publish(int partition, RecordSet records) throws Failure, InterruptedException {
    int count = records.getRecordsCount();
    PublishRequest.Builder request =
        PublishRequest.newBuilder()
            .setTopic(topic)
            .setPartition(partition)
            .setAcks(Acks.ACKS_ALL)
            .setProducer(ProducerIdentity.newBuilder().setId(id).setEpoch(epoch).setFirstSequence(nextSequence[partition]))
            .setCodec(Codec.CODEC_NONE)
            .setRecordCount(count)
            .setRecords(records);
    nextSequence[partition] += count;
    int size = records.getSerializedSize();
    while (failure == null && !queue.isEmpty() && (queue.size() >= MAX_IN_FLIGHT || queuedBytes + size > MAX_QUEUED_BYTES)) {
      wait();
    }
    throwIfFailed();
    queue.add(new Batch(PublishStreamRequest.newBuilder().setPublish(request).build(), partition, count, size));
    queuedBytes += size;
    send();
  }

  /** Says that nothing more will be published. */
  synchronized void finish() {
    finished = true;
    notifyAll();
  }

  /** Says that something else went wrong, and ends the producer. */
  synchronized void fail(Failure cause) {
    if (failure == null) {
      failure = cause;
    }
    notifyAll();
  }

  /** Waits until everything there will be is acknowledged. Throws what ended the producer. */
  synchronized void awaitAll() throws Failure, InterruptedException {
    while (failure == null && !(finished && queue.isEmpty())) {
      wait();
    }
    throwIfFailed();
  }

  private void throwIfFailed() throws Failure {
    if (failure != null) {
      throw failure;
    }
  }

  @Override
  public synchronized void close() {
    timer.shutdownNow();
    if (stream != null) {
      stream.requests.onCompleted();
      stream = null;
    }
  }

  /** Puts on the wire what the transport and the broker's window have room for, and opens a stream if there is none. */
  private void send() {
    if (stream == null) {
      if (!reconnecting && failure == null && !queue.isEmpty()) {
        stream = new Stream();
        broker.publishing().publishStream(stream);
        stream.requests.onNext(
            PublishStreamRequest.newBuilder().setOpen(PublishStreamOpen.newBuilder().setClientId("java-example")).build());
      }
      return;
    }
    while (stream.canSend()) {
      stream.send(queue.get(stream.sent));
    }
  }

  private synchronized void reconnect() {
    reconnecting = false;
    send();
  }

  /** Gives a stream up. Everything unanswered is sent again on the next one. */
  private void giveUp(Failure cause) {
    if (stream != null) {
      stream.requests.cancel("given up", null);
      stream = null;
    }
    try {
      long pause = retry.pauseAfter(cause);
      reconnecting = true;
      timer.schedule(this::reconnect, pause, TimeUnit.MILLISECONDS);
    } catch (Failure last) {
      failure = last;
    }
    notifyAll();
  }

  /** Gives up a stream that stands and does not answer. */
  private synchronized void watch() {
    if (stream != null && stream.isOverdue()) {
      giveUp(Failure.passing("DEADLINE_EXCEEDED", "the broker does not answer"));
    }
  }

  private void settle(PublishOutcome outcome) {
    if (stream.sent == 0) {
      giveUp(Failure.passing("INTERNAL", "the broker answers what was not asked"));
      return;
    }
    Batch head = queue.get(0);
    if (outcome.hasRefused()) {
      // One that may pass leaves a hole that those behind it are refused for, so all of them begin anew.
      giveUp(Failure.of(outcome.getRefused()));
      return;
    }
    AppendedBatch place = outcome.getPublished().getAppended(0);
    if (place.getPartition() != head.partition || place.getRecordCount() != head.count) {
      giveUp(Failure.passing("INTERNAL", "the broker's answers are out of step"));
      return;
    }
    queue.remove(0);
    queuedBytes -= head.size;
    stream.answered(head);
    retry.progress();
    onAcknowledged.accept(place);
    notifyAll();
  }

  /** One stream. What comes on one that was given up is ignored. */
  private final class Stream implements ClientResponseObserver<PublishStreamRequest, PublishStreamResponse> {
    private ClientCallStreamObserver<PublishStreamRequest> requests;
    private long windowBytes = -1;
    private int sent;
    private long sentBytes;
    private long waitingSince = System.nanoTime();

    @Override
    public void beforeStart(ClientCallStreamObserver<PublishStreamRequest> stream) {
      requests = stream;
      stream.setOnReadyHandler(this::onReady);
    }

    private void onReady() {
      synchronized (Producer.this) {
        if (stream == this) {
          Producer.this.send();
        }
      }
    }

    boolean canSend() {
      // The window is open for one batch however large.
      return windowBytes >= 0
          && sent < queue.size()
          && requests.isReady()
          && (sent == 0 || sentBytes + queue.get(sent).size <= windowBytes);
    }

    void send(Batch batch) {
      if (sent == 0) {
        waitingSince = System.nanoTime();
      }
      sent++;
      sentBytes += batch.size;
      requests.onNext(batch.request);
    }

    void answered(Batch batch) {
      sent--;
      sentBytes -= batch.size;
      waitingSince = System.nanoTime();
    }

    boolean isOverdue() {
      boolean waiting = windowBytes < 0 || sent > 0;
      return waiting && System.nanoTime() - waitingSince > Broker.ANSWER_WITHIN.toNanos();
    }

    @Override
    public void onNext(PublishStreamResponse response) {
      synchronized (Producer.this) {
        if (response.hasOpened()) {
          opened(response.getOpened());
        }
        for (PublishOutcome outcome : response.getOutcomes().getOutcomesList()) {
          if (stream == this) {
            settle(outcome);
          }
        }
        if (stream == this) {
          Producer.this.send();
        }
      }
    }

    private void opened(PublishStreamOpened answer) {
      windowBytes = answer.getWindowBytes();
      waitingSince = System.nanoTime();
    }

    @Override
    public void onError(Throwable error) {
      ended(Failure.of(error));
    }

    @Override
    public void onCompleted() {
      ended(Failure.passing("UNAVAILABLE", "the broker ended the stream"));
    }

    private void ended(Failure why) {
      synchronized (Producer.this) {
        if (stream != this) {
          return;
        }
        stream = null;
        if (queue.isEmpty() && why.retriable) {
          return; // nothing is lost; the next batch opens a new one
        }
        giveUp(why);
      }
    }
  }
}
