package cursus.example;

import cursus.v1.AssignedPartition;
import cursus.v1.AssignmentAck;
import cursus.v1.CommitOffset;
import cursus.v1.CommitResult;
import cursus.v1.FetchPartition;
import cursus.v1.FetchRequest;
import cursus.v1.FlowGrant;
import cursus.v1.RecordBatch;
import cursus.v1.SubscribeAssignment;
import cursus.v1.SubscribeCommit;
import cursus.v1.SubscribeCommitted;
import cursus.v1.SubscribeRequest;
import cursus.v1.SubscribeResponse;
import cursus.v1.SubscribeStart;
import cursus.v1.SubscribedBatches;
import java.time.Duration;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.stream.Collectors;

/**
 * A member of a consumer group: prints the records of the partitions it owns and commits what it has printed.
 *
 * <p>A commit goes out when the one before it is answered, with all that was printed meanwhile. Before the member lets go
 * of a partition or leaves, it commits what it printed: the broker serves commits, acknowledgements and the end of the
 * stream in their order, so the next owner begins where this one stopped.
 */
final class Member {
  /** Records that may come unasked. What is printed is granted again, so assignments never queue behind a flood. */
  private static final int CREDIT_RECORDS = 10_000;

  /** A partition this member owns, and how far it has come. */
  private static final class Owned {
    long epoch;
    long position;
    /** What the latest commit says; the broker need not have answered it. */
    long committed;
  }

  private final Broker broker;
  private final String topic;
  private final String group;
  private final Retry retry;
  private final Records records;
  private final Map<Integer, Owned> owned = new TreeMap<>();
  private Duplex<SubscribeRequest, SubscribeResponse> stream;
  private String memberId = "";
  private boolean resumed;
  private long commitId;
  private long answeredCommitId;
  private boolean leaving;

  Member(Broker broker, String topic, String group, Duration patience, Records records) {
    this.broker = broker;
    this.topic = topic;
    this.group = group;
    this.retry = new Retry(patience);
    this.records = records;
  }

  /** Returns when the member has left: after enough records, or after {@link #leave}. */
  void run() throws Failure, InterruptedException {
    // A group may wait for a topic that is yet to be created; a person has rather mistyped its name.
    broker.partitionCount(topic, retry);
    while (!isLeaving()) {
      try {
        session();
      } catch (Failure failure) {
        if (failure.reason.equals("MEMBER_NOT_FOUND")) {
          memberId = ""; // the session ended while the connection was broken: come back as somebody new
        }
        if (isLeaving() && failure.retriable) {
          return; // there is no broker to tell; the session timeout does the rest
        }
        if (!failure.reason.equals("MEMBER_NOT_FOUND")) {
          pause(retry.pauseAfter(failure));
        }
      }
    }
  }

  /** Commits what is printed and leaves the group. For any thread; returns when the stream has ended. */
  void leave() throws InterruptedException {
    Duplex<SubscribeRequest, SubscribeResponse> standing;
    synchronized (this) {
      leaving = true;
      notifyAll();
      standing = stream;
      if (standing != null) {
        commit();
        standing.halfClose();
      }
    }
    if (standing != null) {
      standing.awaitEnd(Broker.ANSWER_WITHIN);
    }
  }

  private synchronized boolean isLeaving() {
    return leaving;
  }

  private synchronized void pause(long milliseconds) throws InterruptedException {
    long deadline = System.nanoTime() + milliseconds * 1_000_000;
    for (long left = milliseconds; !leaving && left > 0; left = (deadline - System.nanoTime()) / 1_000_000) {
      wait(left);
    }
  }

  private void session() throws Failure, InterruptedException {
    try (Duplex<SubscribeRequest, SubscribeResponse> opened = Duplex.open(broker.consuming()::subscribe)) {
      memberId = opened.exchange(start(), Broker.ANSWER_WITHIN).getStarted().getMemberId();
      retry.progress();
      synchronized (this) {
        stream = opened;
        resumed = true;
        answeredCommitId = commitId;
        if (leaving) {
          stream.halfClose();
        }
      }
      SubscribeResponse response;
      while ((response = opened.read()) != null) {
        handle(response);
      }
      if (!isLeaving()) {
        throw Failure.passing("UNAVAILABLE", "the broker ended the stream");
      }
    } finally {
      synchronized (this) {
        stream = null;
      }
    }
  }

  private SubscribeRequest start() {
    return SubscribeRequest.newBuilder()
        .setStart(
            SubscribeStart.newBuilder()
                .setGroup(group)
                .addTopics(topic)
                .setMemberId(memberId)
                .setClientId("java-example")
                .setGrant(FlowGrant.newBuilder().setRecords(CREDIT_RECORDS)))
        .build();
  }

  private synchronized void handle(SubscribeResponse response) throws Failure, InterruptedException {
    switch (response.getResponseCase()) {
      case ASSIGNMENT -> assign(response.getAssignment());
      case BATCHES -> receive(response.getBatches());
      case COMMITTED -> committed(response.getCommitted());
      default -> {}
    }
  }

  private void assign(SubscribeAssignment assignment) throws Failure, InterruptedException {
    commit(); // for what is taken away now; the broker stores it before it hears the acknowledgement
    TreeSet<Integer> before = new TreeSet<>(owned.keySet());
    TreeMap<Integer, AssignedPartition> now = new TreeMap<>();
    assignment.getPartitionsList().forEach(one -> now.put(one.getPartition(), one));
    owned.keySet().retainAll(now.keySet());
    if (!now.keySet().containsAll(before)) {
      before.removeAll(now.keySet());
      System.err.println("revoked " + list(before));
    }
    for (AssignedPartition given : now.values()) {
      take(given);
    }
    stream.write(
        SubscribeRequest.newBuilder()
            .setAssignmentAck(AssignmentAck.newBuilder().setGeneration(assignment.getGeneration()))
            .build());
    resumed = false;
    System.err.println("assigned " + list(now.keySet()));
    commit();
  }

  private static String list(Collection<Integer> partitions) {
    return partitions.stream().map(String::valueOf).collect(Collectors.joining(",", "[", "]"));
  }

  /** Notes where a partition begins. One that we had before a broken connection goes on where we were. */
  private void take(AssignedPartition given) throws Failure {
    Owned known = owned.get(given.getPartition());
    if (known != null && !resumed && known.epoch == given.getLeaderEpoch()) {
      return;
    }
    boolean ahead = known != null && resumed && known.position > given.getStartOffset() && isStored(given, known);
    Owned fresh = new Owned();
    fresh.epoch = given.getLeaderEpoch();
    fresh.position = ahead ? known.position : given.getStartOffset();
    fresh.committed = given.getStartOffset();
    owned.put(given.getPartition(), fresh);
    if (given.hasTruncatedFrom()) {
      System.err.printf("warning: partition %d: the group had committed %d, and the log was cut; going on from %d%n",
          given.getPartition(), given.getTruncatedFrom(), given.getStartOffset());
    }
  }

  /**
   * Whether what we printed is still in the log. The epoch rises whenever a broker was killed, and only the broker knows
   * whether the log lost its end: it answers LOG_TRUNCATED to whoever names the old epoch.
   */
  private boolean isStored(AssignedPartition given, Owned known) throws Failure {
    if (given.getLeaderEpoch() == known.epoch) {
      return true;
    }
    var place =
        FetchPartition.newBuilder()
            .setTopic(topic)
            .setPartition(given.getPartition())
            .setOffset(known.position)
            .setLeaderEpoch(known.epoch)
            .setMaxBytes(1);
    var found = broker.fetch(FetchRequest.newBuilder().addPartitions(place).setMaxRecords(1).build()).getPartitions(0);
    if (!found.hasError()) {
      return true;
    }
    Failure failure = Failure.of(found.getError());
    if (failure.retriable) {
      throw failure;
    }
    System.err.printf("warning: partition %d: %s: %s%n", given.getPartition(), failure.reason, failure.getMessage());
    return false;
  }

  private void receive(SubscribedBatches message) throws Failure, InterruptedException {
    if (message.hasError()) {
      Failure failure = Failure.of(message.getError());
      if (failure.reason.equals("TOPIC_NOT_FOUND") || failure.reason.equals("PARTITION_NOT_FOUND")) {
        System.err.printf("warning: partition %d: %s%n", message.getPartition(), failure.getMessage());
        return; // deleted: the next assignment takes it away
      }
      throw failure;
    }
    Owned place = owned.get(message.getPartition());
    if (place == null || leaving) {
      return;
    }
    List<RecordBatch> batches = message.getBatchesList();
    place.position = records.print(message.getPartition(), batches, place.position);
    long count = batches.stream().mapToLong(RecordBatch::getRecordCount).sum();
    stream.write(SubscribeRequest.newBuilder().setGrant(FlowGrant.newBuilder().setRecords(count)).build());
    if (records.complete()) {
      leaving = true;
      commit();
      stream.halfClose();
    } else if (answeredCommitId == commitId) {
      commit();
    }
  }

  /** Commits what was printed since the last commit. */
  private void commit() throws InterruptedException {
    SubscribeCommit.Builder commit = SubscribeCommit.newBuilder();
    owned.forEach(
        (partition, place) -> {
          if (place.position > place.committed) {
            place.committed = place.position;
            commit.addOffsets(
                CommitOffset.newBuilder()
                    .setTopic(topic)
                    .setPartition(partition)
                    .setNextOffset(place.position)
                    .setLeaderEpoch(place.epoch));
          }
        });
    if (commit.getOffsetsCount() > 0) {
      stream.write(SubscribeRequest.newBuilder().setCommit(commit.setCommitId(++commitId)).build());
    }
  }

  private void committed(SubscribeCommitted answer) throws Failure, InterruptedException {
    answeredCommitId = answer.getCommitId();
    for (CommitResult result : answer.getResultsList()) {
      if (!result.hasError()) {
        continue;
      }
      Failure failure = Failure.of(result.getError());
      switch (failure.reason) {
        // Another member has the partition by now, and will print again what this one could not commit.
        case "NOT_OWNER", "GENERATION_MISMATCH", "TOPIC_NOT_FOUND", "PARTITION_NOT_FOUND" ->
            System.err.printf("warning: partition %d: %s: %s%n", result.getPartition(), failure.reason, failure.getMessage());
        // One that may pass too: the group goes on from its last commit, and what we printed is skipped.
        default -> throw failure;
      }
    }
    if (answeredCommitId == commitId) {
      commit();
    }
  }
}
