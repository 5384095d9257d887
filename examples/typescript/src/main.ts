import { Command, CommanderError, InvalidArgumentError, Option } from "commander";

import { Batches } from "./batches.js";
import { Broker } from "./broker.js";
import { Failure } from "./failure.js";
import { Follower } from "./follower.js";
import { OffsetEdge } from "./gen/cursus/v1/records.js";
import { linesOf } from "./lines.js";
import { Member } from "./member.js";
import { endWithReader, flushed } from "./output.js";
import { Producer } from "./producer.js";
import { Records } from "./records.js";
import { Retry } from "./retry.js";
import { checkVectors } from "./routing.js";

const FULL_BATCH_BYTES = 1024 * 1024;

/** How long a batch that does not fill up waits for more. */
const LINGER_MS = 1_000;

interface Connection {
  broker: string;
  tlsCa?: string;
  tlsCert?: string;
  tlsKey?: string;
  timeout: number;
}

interface PublishOptions extends Connection {
  topic: string;
  producerId?: string;
  batch: number;
}

interface FollowOptions extends Connection {
  topic: string;
  from: "earliest" | "latest";
  count?: number;
}

interface MemberOptions extends Connection {
  topic: string;
  group: string;
  count?: number;
}

function whole(text: string): number {
  const value = Number(text);
  if (!Number.isSafeInteger(value) || value < 1) {
    throw new InvalidArgumentError("It has to be a whole number from 1 on.");
  }
  return value;
}

function seconds(text: string): number {
  const value = Number(text);
  if (!Number.isFinite(value) || value < 0) {
    throw new InvalidArgumentError("It has to be a number of seconds.");
  }
  return value;
}

function connect(options: Connection): Broker {
  return new Broker(options.broker, { ca: options.tlsCa, certificate: options.tlsCert, key: options.tlsKey });
}

async function publish(options: PublishOptions): Promise<void> {
  const broker = connect(options);
  const patienceMs = options.timeout * 1000;
  const retry = new Retry(patienceMs);
  const partitionCount = await broker.partitionCount(options.topic, retry);
  const maxBytes = await broker.maxBatchBytes(retry);
  let published = 0;
  const producer = await Producer.begin(broker, options.topic, partitionCount, options.producerId, patienceMs, (place) => {
    published += place.recordCount;
    process.stdout.write(`partition=${place.partition} offset=${place.baseOffset} count=${place.recordCount}\n`);
  });
  const batches = new Batches(producer, partitionCount, options.batch, Math.min(maxBytes, FULL_BATCH_BYTES));
  const lingering = setInterval(() => void batches.flush().catch(() => {}), LINGER_MS); // `failed` tells the failure
  const all = async (): Promise<void> => {
    for await (const line of linesOf(process.stdin, maxBytes)) {
      await batches.add(line);
    }
    await batches.flush();
    await producer.flush();
  };
  // A failure ends the program also while nobody types.
  await Promise.race([all(), producer.failed()]);
  clearInterval(lingering);
  producer.close();
  broker.close();
  console.error(`published ${published} records`);
}

async function follow(options: FollowOptions): Promise<void> {
  const edge = options.from === "latest" ? OffsetEdge.OFFSET_EDGE_LATEST : OffsetEdge.OFFSET_EDGE_EARLIEST;
  const follower = new Follower(connect(options), options.topic, options.timeout * 1000, new Records(options.count));
  const stopped = new Promise<void>((resolve) => onSignal(resolve));
  await Promise.race([follower.run(edge), stopped]);
}

async function join(options: MemberOptions): Promise<void> {
  const member = new Member(connect(options), options.topic, options.group, options.timeout * 1000, new Records(options.count));
  onSignal(() => member.leave());
  await member.run();
}

function onSignal(action: () => void): void {
  process.once("SIGTERM", action).once("SIGINT", action);
}

function commands(): Command {
  const program = new Command("cursus-example").description("Publishes to and reads from a Cursus broker.").version("1.0.0");
  const command = (name: string, description: string): Command =>
    program
      .command(name)
      .description(description)
      .option("--broker <HOST:PORT>", "where the broker is", "localhost:50051")
      .option("--tls-ca <FILE>", "certificates to trust; turns TLS on")
      .option("--tls-cert <FILE>", "this client's certificate")
      .option("--tls-key <FILE>", "the key of this client's certificate")
      .option("--timeout <SECONDS>", "how long to go on trying without progress", seconds, 60)
      .requiredOption("--topic <T>", "the topic; it must exist")
      .hook("preAction", (_, action) => {
        const { tlsCa, tlsCert, tlsKey } = action.opts<Connection>();
        if ((tlsCert === undefined) !== (tlsKey === undefined) || (tlsCert !== undefined && tlsCa === undefined)) {
          action.error("error: --tls-cert and --tls-key go together, and with --tls-ca");
        }
      });
  command("publish", "publish lines from standard input: KEY<TAB>VALUE, or a value alone")
    .option("--producer-id <NAME>", "who publishes; a later run of the same name shuts this one out (default: a new UUID)")
    .option("--batch <N>", "records in a batch at most", whole, 500)
    .action(publish);
  command("follow", "print the records of a topic, and those that come")
    .addOption(new Option("--from <EDGE>", "where to begin").choices(["earliest", "latest"]).default("earliest"))
    .option("--count <N>", "end after as many records", whole)
    .action(follow);
  command("member", "print records as a member of a group, and commit them")
    .requiredOption("--group <G>", "the group")
    .option("--count <N>", "leave after as many records", whole)
    .action(join);
  program
    .command("route")
    .description("check the routing of keys against a file of test vectors")
    .requiredOption("--vectors <FILE>", "the test vectors")
    .action(async ({ vectors }: { vectors: string }) => {
      console.log(`${await checkVectors(vectors)} vectors ok`);
    });
  // Set on every command: those made with `command` above do not inherit what is set later.
  [program, ...program.commands].forEach((one) => one.exitOverride());
  return program;
}

async function main(): Promise<number> {
  endWithReader();
  try {
    await commands().parseAsync();
    return 0;
  } catch (error) {
    if (error instanceof CommanderError) {
      return error.exitCode === 0 ? 0 : 2;
    }
    const { reason, message } = Failure.of(error);
    console.error(`error: ${reason}: ${message}`);
    return 1;
  }
}

const status = await main();
await flushed();
process.exit(status);
