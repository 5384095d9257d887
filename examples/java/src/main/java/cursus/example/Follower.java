package cursus.example;

import cursus.v1.ConsumeRequest;
import cursus.v1.ConsumeResponse;
import cursus.v1.ConsumeStart;
import cursus.v1.ListedOffset;
import cursus.v1.OffsetEdge;
import cursus.v1.OffsetSpec;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.ArrayBlockingQueue;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;

/** Follows all partitions of a topic, each over a Consume stream of its own that is opened again where it broke. */
final class Follower {
  private static final Duration LOOK_FOR_PARTITIONS = Duration.ofSeconds(10);

  private enum End {
    COMPLETE,
    STOPPED
  }

  private final Broker broker;
  private final String topic;
  private final Duration patience;
  private final Records records;
  /** What ends it first: a Failure or an End. */
  private final BlockingQueue<Object> end = new ArrayBlockingQueue<>(1);

  private volatile boolean over;

  Follower(Broker broker, String topic, Duration patience, Records records) {
    this.broker = broker;
    this.topic = topic;
    this.patience = patience;
    this.records = records;
  }

  /** Ends {@link #run}. For any thread. */
  void stop() {
    end.offer(End.STOPPED);
  }

  /** Returns when as many records are printed as wanted, or when it is stopped. */
  void run(OffsetEdge from) throws Failure, InterruptedException {
    Retry retry = new Retry(patience);
    // Asked for once, and not left to each stream: one that breaks before its first record would begin elsewhere.
    List<ListedOffset> begin = broker.offsets(topic, from, retry);
    System.err.println(
        "following " + topic + begin.stream().map(one -> "" + one.getOffset()).collect(Collectors.joining(",", " from [", "]")));
    begin.forEach(this::follow);
    int known = begin.size();
    while (true) {
      Object ended = end.poll(LOOK_FOR_PARTITIONS.toMillis(), TimeUnit.MILLISECONDS);
      over = ended != null;
      if (ended instanceof Failure failure) {
        throw failure;
      }
      if (over) {
        return;
      }
      // A topic can grow. What is in a new partition was published after we began, so it is read from its beginning.
      if (broker.partitionCount(topic, retry) > known) {
        List<ListedOffset> now = broker.offsets(topic, OffsetEdge.OFFSET_EDGE_EARLIEST, retry);
        now.subList(known, now.size()).forEach(this::follow);
        known = now.size();
      }
    }
  }

  private void follow(ListedOffset begin) {
    Thread thread =
        new Thread(
            () -> {
              try {
                new Reader(begin).run();
                end.offer(End.COMPLETE);
              } catch (Failure failure) {
                end.offer(failure);
              } catch (InterruptedException stopped) {
                Thread.currentThread().interrupt();
              } catch (RuntimeException error) {
                end.offer(Failure.permanent("INTERNAL", error.toString()));
              }
            },
            "partition-" + begin.getPartition());
    thread.setDaemon(true);
    thread.start();
  }

  /** One partition. */
  private final class Reader {
    private final int partition;
    /** The next offset to print, and the leader epoch that it stands in. */
    private long position;
    private long epoch;

    Reader(ListedOffset begin) {
      partition = begin.getPartition();
      position = begin.getOffset();
      epoch = begin.getLeaderEpoch();
    }

    void run() throws Failure, InterruptedException {
      Retry retry = new Retry(patience);
      while (!records.complete()) {
        try {
          session(retry);
        } catch (Failure failure) {
          if (over) {
            return; // the channel is closed under the other partitions
          }
          if (failure.reason.equals("LOG_TRUNCATED")) {
            goBack(failure);
          } else {
            retry.pause(failure);
          }
        }
      }
    }

    private void session(Retry retry) throws Failure, InterruptedException {
      // The epoch lets the broker tell whether the log was cut below us since. No credit is granted: the stream is read
      // one message at a time, and the transport holds the broker back.
      ConsumeStart start =
          ConsumeStart.newBuilder()
              .setTopic(topic)
              .setPartition(partition)
              .setStartAt(OffsetSpec.newBuilder().setOffset(position))
              .setLeaderEpoch(epoch)
              .build();
      try (Duplex<ConsumeRequest, ConsumeResponse> stream = Duplex.open(broker.consuming()::consume)) {
        ConsumeRequest first = ConsumeRequest.newBuilder().setStart(start).build();
        epoch = stream.exchange(first, Broker.ANSWER_WITHIN).getStarted().getLeaderEpoch();
        retry.progress();
        ConsumeResponse response;
        while (!records.complete() && (response = stream.read()) != null) {
          position = records.print(partition, response.getBatches().getBatchesList(), position);
        }
      }
      if (!records.complete()) {
        throw Failure.passing("UNAVAILABLE", "the broker ended the stream");
      }
    }

    private void goBack(Failure truncated) {
      System.err.printf("warning: partition %d: %s%n", partition, truncated.getMessage());
      position = Math.min(position, truncated.number("offset"));
      epoch = truncated.number("leader_epoch");
    }
  }
}
