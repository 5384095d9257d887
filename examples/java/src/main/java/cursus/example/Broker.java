package cursus.example;

import cursus.v1.ClusterServiceGrpc;
import cursus.v1.ConsumeServiceGrpc;
import cursus.v1.DescribeTopicRequest;
import cursus.v1.FetchRequest;
import cursus.v1.FetchResponse;
import cursus.v1.GetBrokerInfoRequest;
import cursus.v1.ListOffsetsRequest;
import cursus.v1.ListedOffset;
import cursus.v1.OffsetEdge;
import cursus.v1.OffsetSpec;
import cursus.v1.PublishServiceGrpc;
import cursus.v1.TopicServiceGrpc;
import io.grpc.ChannelCredentials;
import io.grpc.Grpc;
import io.grpc.InsecureChannelCredentials;
import io.grpc.ManagedChannel;
import io.grpc.StatusRuntimeException;
import io.grpc.TlsChannelCredentials;
import java.io.File;
import java.io.IOException;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;

/** The connection to a broker, and the calls that need no stream. */
final class Broker implements AutoCloseable {
  /** How long a call, or the first answer on a stream, may take. */
  static final Duration ANSWER_WITHIN = Duration.ofSeconds(10);

  /** A batch is delivered whole: above the 64 MiB that a broker takes by default. gRPC's own default is 4 MiB. */
  private static final int MAX_MESSAGE_BYTES = 128 * 1024 * 1024;

  private final ManagedChannel channel;

  Broker(String address, File ca, File certificate, File key) throws Failure {
    this.channel =
        Grpc.newChannelBuilder(address, credentials(ca, certificate, key))
            .maxInboundMessageSize(MAX_MESSAGE_BYTES)
            // Notices a broker that is gone without a word. Not more often than every 5 s: it would hang up.
            .keepAliveTime(20, TimeUnit.SECONDS)
            .keepAliveTimeout(10, TimeUnit.SECONDS)
            .build();
  }

  private static ChannelCredentials credentials(File ca, File certificate, File key) throws Failure {
    if (ca == null) {
      return InsecureChannelCredentials.create();
    }
    try {
      TlsChannelCredentials.Builder tls = TlsChannelCredentials.newBuilder().trustManager(ca);
      if (certificate != null) {
        tls.keyManager(certificate, key);
      }
      return tls.build();
    } catch (IOException error) {
      throw Failure.permanent("TLS_FAILED", "a file with a certificate or key cannot be read: " + error.getMessage());
    }
  }

  PublishServiceGrpc.PublishServiceStub publishing() {
    return PublishServiceGrpc.newStub(awake());
  }

  ConsumeServiceGrpc.ConsumeServiceStub consuming() {
    return ConsumeServiceGrpc.newStub(awake());
  }

  /** The channel, ready to connect: after failures it would wait for up to two minutes, and our callers wait themselves. */
  private ManagedChannel awake() {
    channel.resetConnectBackoff();
    return channel;
  }

  /** Number of partitions of a topic. An unknown topic is a failure for good. */
  int partitionCount(String topic, Retry retry) throws Failure, InterruptedException {
    var request = DescribeTopicRequest.newBuilder().setName(topic).build();
    return call(
            retry,
            () ->
                TopicServiceGrpc.newBlockingStub(awake())
                    .withDeadlineAfter(ANSWER_WITHIN)
                    .describeTopic(request))
        .getTopic()
        .getPartitionCount();
  }

  /** The largest record set that the broker takes, in bytes. */
  long maxBatchBytes(Retry retry) throws Failure, InterruptedException {
    var request = GetBrokerInfoRequest.getDefaultInstance();
    return call(
            retry,
            () ->
                ClusterServiceGrpc.newBlockingStub(awake())
                    .withDeadlineAfter(ANSWER_WITHIN)
                    .getBrokerInfo(request))
        .getMaxBatchBytes();
  }

  /** Where each partition of a topic begins or ends now, in order. */
  List<ListedOffset> offsets(String topic, OffsetEdge edge, Retry retry) throws Failure, InterruptedException {
    var request =
        ListOffsetsRequest.newBuilder().setTopic(topic).setAt(OffsetSpec.newBuilder().setEdge(edge)).build();
    return call(
            retry,
            () ->
                TopicServiceGrpc.newBlockingStub(awake())
                    .withDeadlineAfter(ANSWER_WITHIN)
                    .listOffsets(request))
        .getOffsetsList();
  }

  FetchResponse fetch(FetchRequest request) throws Failure {
    try {
      return ConsumeServiceGrpc.newBlockingStub(awake())
          .withDeadlineAfter(ANSWER_WITHIN)
          .fetch(request);
    } catch (StatusRuntimeException error) {
      throw Failure.of(error);
    }
  }

  PublishServiceGrpc.PublishServiceBlockingStub producers() {
    return PublishServiceGrpc.newBlockingStub(awake())
        .withDeadlineAfter(ANSWER_WITHIN);
  }

  /** A call that may be repeated, tried again while that may help. */
  <T> T call(Retry retry, Supplier<T> attempt) throws Failure, InterruptedException {
    while (true) {
      try {
        T answer = attempt.get();
        retry.progress();
        return answer;
      } catch (StatusRuntimeException error) {
        retry.pause(Failure.of(error));
      }
    }
  }

  @Override
  public void close() {
    channel.shutdownNow();
  }
}
