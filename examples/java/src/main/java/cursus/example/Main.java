package cursus.example;

import cursus.v1.AppendedBatch;
import cursus.v1.OffsetEdge;
import java.io.File;
import java.io.IOException;
import java.nio.file.Path;
import java.time.Duration;
import java.util.concurrent.Callable;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import picocli.CommandLine;
import picocli.CommandLine.Command;
import picocli.CommandLine.Model.CommandSpec;
import picocli.CommandLine.Option;
import picocli.CommandLine.ParameterException;
import picocli.CommandLine.Spec;
import sun.misc.Signal;

/** The command line. */
@Command(
    name = "cursus-example",
    description = "Publishes to and reads from a Cursus broker.",
    mixinStandardHelpOptions = true,
    version = "1.0.0",
    subcommands = {Main.Publish.class, Main.Follow.class, Main.Join.class, Main.Route.class})
public final class Main implements Runnable {
  @Spec CommandSpec spec;

  private Main() {}

  public static void main(String[] arguments) {
    System.exit(
        new CommandLine(new Main())
            .setExecutionExceptionHandler(Main::report)
            .execute(arguments));
  }

  /** Without a command. */
  @Override
  public void run() {
    throw new ParameterException(spec.commandLine(), "a command is missing");
  }

  private static int report(Exception error, CommandLine command, CommandLine.ParseResult parsed) {
    if (error instanceof Failure failure) {
      System.err.println("error: " + failure.reason + ": " + failure.getMessage());
    } else {
      System.err.println("error: " + error);
    }
    return 1;
  }

  private static void onSignal(Runnable action) {
    for (String name : new String[] {"TERM", "INT"}) {
      Signal.handle(new Signal(name), signal -> action.run());
    }
  }

  /** What every command needs to reach a broker. */
  static final class Connection {
    @Option(names = "--broker", paramLabel = "HOST:PORT", defaultValue = "localhost:50051", description = "Default: ${DEFAULT-VALUE}.")
    String address;

    @Option(names = "--tls-ca", paramLabel = "FILE", description = "Certificates to trust; turns TLS on.")
    File ca;

    @Option(names = "--tls-cert", paramLabel = "FILE", description = "This client's certificate.")
    File certificate;

    @Option(names = "--tls-key", paramLabel = "FILE", description = "The key of this client's certificate.")
    File key;

    @Option(names = "--timeout", paramLabel = "SECONDS", defaultValue = "60",
        description = "How long to go on trying without progress. Default: ${DEFAULT-VALUE}.")
    double timeout;

    @Spec(Spec.Target.MIXEE) CommandSpec command;

    Broker open() throws Failure {
      if ((certificate == null) != (key == null) || (certificate != null && ca == null)) {
        throw new ParameterException(command.commandLine(), "--tls-cert and --tls-key go together, and with --tls-ca");
      }
      return new Broker(address, ca, certificate, key);
    }

    Duration patience() {
      return Duration.ofMillis(Math.round(timeout * 1000));
    }
  }

  @Command(name = "publish", description = "Publishes lines from standard input: KEY<TAB>VALUE, or a value alone.", mixinStandardHelpOptions = true)
  static final class Publish implements Callable<Integer> {
    private static final long FULL_BATCH_BYTES = 1024 * 1024;

    /** How long a batch that does not fill up waits for more. */
    private static final long LINGER_MS = 1000;

    @CommandLine.Mixin Connection connection;

    @Option(names = "--topic", required = true, description = "The topic; it must exist.")
    String topic;

    @Option(names = "--producer-id", paramLabel = "NAME",
        description = "Who publishes; a later run of the same name shuts this one out. Default: a new UUID.")
    String producerId;

    @Option(names = "--batch", paramLabel = "N", defaultValue = "500", description = "Records in a batch at most. Default: ${DEFAULT-VALUE}.")
    int batch;

    @Spec CommandSpec command;

    private final AtomicLong published = new AtomicLong();

    @Override
    public Integer call() throws Exception {
      if (batch < 1) {
        throw new ParameterException(command.commandLine(), "--batch must be at least 1");
      }
      try (Broker broker = connection.open()) {
        Retry retry = new Retry(connection.patience());
        int partitionCount = broker.partitionCount(topic, retry);
        long maxBytes = broker.maxBatchBytes(retry);
        try (Producer producer = Producer.begin(broker, topic, partitionCount, producerId, connection.patience(), this::acknowledged)) {
          Batches batches = new Batches(producer, partitionCount, batch, Math.min(maxBytes, FULL_BATCH_BYTES));
          // On a thread of its own, so that a failure ends the program also while nobody types.
          daemon(() -> read(new Lines(System.in, maxBytes), batches, producer)).start();
          Executors.newSingleThreadScheduledExecutor(Publish::daemon)
              .scheduleWithFixedDelay(() -> flush(batches, producer), LINGER_MS, LINGER_MS, TimeUnit.MILLISECONDS);
          producer.awaitAll();
        }
      }
      System.err.println("published " + published + " records");
      return 0;
    }

    private static Thread daemon(Runnable work) {
      Thread thread = new Thread(work);
      thread.setDaemon(true);
      return thread;
    }

    private static void read(Lines lines, Batches batches, Producer producer) {
      try {
        byte[] line;
        while ((line = lines.next()) != null) {
          batches.add(line);
        }
        batches.flush();
        producer.finish();
      } catch (Failure failure) {
        producer.fail(failure);
      } catch (IOException | RuntimeException error) {
        producer.fail(Failure.permanent("INPUT_FAILED", error.toString()));
      } catch (InterruptedException stopped) {
        Thread.currentThread().interrupt();
      }
    }

    private static void flush(Batches batches, Producer producer) {
      try {
        batches.flush();
      } catch (Failure failure) {
        producer.fail(failure);
      } catch (InterruptedException stopped) {
        Thread.currentThread().interrupt();
      }
    }

    private void acknowledged(AppendedBatch place) {
      published.addAndGet(place.getRecordCount());
      System.out.println("partition=" + place.getPartition() + " offset=" + place.getBaseOffset() + " count=" + place.getRecordCount());
    }
  }

  @Command(name = "follow", description = "Prints the records of a topic, and those that come.", mixinStandardHelpOptions = true)
  static final class Follow implements Callable<Integer> {
    enum Edge {
      earliest,
      latest
    }

    @CommandLine.Mixin Connection connection;

    @Option(names = "--topic", required = true, description = "The topic.")
    String topic;

    @Option(names = "--from", defaultValue = "earliest", description = "${COMPLETION-CANDIDATES}. Default: ${DEFAULT-VALUE}.")
    Edge from;

    @Option(names = "--count", paramLabel = "N", description = "Ends after as many records.")
    long count;

    @Override
    public Integer call() throws Exception {
      try (Broker broker = connection.open()) {
        OffsetEdge edge = from == Edge.latest ? OffsetEdge.OFFSET_EDGE_LATEST : OffsetEdge.OFFSET_EDGE_EARLIEST;
        Follower follower = new Follower(broker, topic, connection.patience(), new Records(count));
        onSignal(follower::stop);
        follower.run(edge);
      }
      return 0;
    }
  }

  @Command(name = "member", description = "Prints records as a member of a group, and commits them.", mixinStandardHelpOptions = true)
  static final class Join implements Callable<Integer> {
    @CommandLine.Mixin Connection connection;

    @Option(names = "--topic", required = true, description = "The topic.")
    String topic;

    @Option(names = "--group", required = true, description = "The group.")
    String group;

    @Option(names = "--count", paramLabel = "N", description = "Leaves after as many records.")
    long count;

    @Override
    public Integer call() throws Exception {
      try (Broker broker = connection.open()) {
        Member member = new Member(broker, topic, group, connection.patience(), new Records(count));
        onSignal(() -> leave(member));
        member.run();
      }
      return 0;
    }

    private static void leave(Member member) {
      try {
        member.leave();
      } catch (InterruptedException stopped) {
        Thread.currentThread().interrupt();
      }
    }
  }

  @Command(name = "route", description = "Checks the routing of keys against a file of test vectors.", mixinStandardHelpOptions = true)
  static final class Route implements Callable<Integer> {
    @Option(names = "--vectors", required = true, paramLabel = "FILE", description = "The test vectors.")
    Path vectors;

    @Override
    public Integer call() throws Failure, IOException {
      System.out.println(Vectors.check(vectors) + " vectors ok");
      return 0;
    }
  }
}
