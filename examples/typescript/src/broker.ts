import { readFileSync } from "node:fs";

import { type CallOptions, ChannelCredentials, type ClientUnaryCall, Metadata, type ServiceError } from "@grpc/grpc-js";

import { ClusterServiceClient, GetBrokerInfoRequest } from "./gen/cursus/v1/cluster_service.js";
import { ConsumeServiceClient } from "./gen/cursus/v1/consume_service.js";
import { DescribeProducersRequest, PublishServiceClient } from "./gen/cursus/v1/publish_service.js";
import { type OffsetEdge } from "./gen/cursus/v1/records.js";
import { DescribeTopicRequest, type ListedOffset, ListOffsetsRequest, TopicServiceClient } from "./gen/cursus/v1/topic_service.js";
import { Failure } from "./failure.js";
import type { Retry } from "./retry.js";

/** How long a call, or the first answer on a stream, may take. */
export const ANSWER_WITHIN_MS = 10_000;

const OPTIONS = {
  // A batch is delivered whole: above the 64 MiB that a broker takes by default. gRPC's own default is 4 MiB.
  "grpc.max_receive_message_length": 128 * 1024 * 1024,
  // Notices a broker that is gone without a word. Not more often than every 5 s: it would hang up.
  "grpc.keepalive_time_ms": 20_000,
  "grpc.keepalive_timeout_ms": 10_000,
  // A channel that failed to connect fails every call until it tries again: by default after up to two minutes.
  "grpc.initial_reconnect_backoff_ms": 100,
  "grpc.max_reconnect_backoff_ms": 1_000,
};

export interface Tls {
  ca?: string;
  certificate?: string;
  key?: string;
}

type Unary<Q, A> = (
  request: Q,
  metadata: Metadata,
  options: Partial<CallOptions>,
  callback: (error: ServiceError | null, response: A) => void,
) => ClientUnaryCall;

/** The connection to a broker, which the clients of all services share. */
export class Broker {
  readonly cluster: ClusterServiceClient;
  readonly consuming: ConsumeServiceClient;
  readonly publishing: PublishServiceClient;
  readonly topics: TopicServiceClient;

  constructor(address: string, tls: Tls) {
    const credentials = credentialsOf(tls);
    this.cluster = new ClusterServiceClient(address, credentials, OPTIONS);
    this.consuming = new ConsumeServiceClient(address, credentials, OPTIONS);
    this.publishing = new PublishServiceClient(address, credentials, OPTIONS);
    this.topics = new TopicServiceClient(address, credentials, OPTIONS);
  }

  /** Number of partitions of a topic. An unknown topic is a failure for good. */
  async partitionCount(topic: string, retry: Retry): Promise<number> {
    const described = await patiently(retry, () => call(this.topics.describeTopic.bind(this.topics), DescribeTopicRequest.fromPartial({ name: topic })));
    return described.topic?.partitionCount ?? 0;
  }

  /** Where each partition of a topic begins or ends now, in order. */
  async offsets(topic: string, edge: OffsetEdge, retry: Retry): Promise<ListedOffset[]> {
    const request = ListOffsetsRequest.fromPartial({ topic, at: { spec: { $case: "edge", value: edge } } });
    return (await patiently(retry, () => call(this.topics.listOffsets.bind(this.topics), request))).offsets;
  }

  /** The largest record set that the broker takes, in bytes. */
  async maxBatchBytes(retry: Retry): Promise<number> {
    const info = await patiently(retry, () => call(this.cluster.getBrokerInfo.bind(this.cluster), GetBrokerInfoRequest.fromPartial({})));
    return Number(info.maxBatchBytes);
  }

  /** The highest epoch that any partition of a topic knows of a producer; -1 if none knows it. */
  async latestEpoch(topic: string, partitionCount: number, id: Buffer, retry: Retry): Promise<bigint> {
    const describe = this.publishing.describeProducers.bind(this.publishing);
    let latest = -1n;
    for (let partition = 0; partition < partitionCount; partition++) {
      const request = DescribeProducersRequest.fromPartial({ topic, partition, producerIds: [id] });
      const answer = await patiently(retry, () => call(describe, request));
      for (const { known, epoch } of answer.producers) {
        latest = known && epoch > latest ? epoch : latest;
      }
    }
    return latest;
  }

  close(): void {
    for (const client of [this.cluster, this.consuming, this.publishing, this.topics]) {
      client.close();
    }
  }
}

function credentialsOf({ ca, certificate, key }: Tls): ChannelCredentials {
  if (ca === undefined) {
    return ChannelCredentials.createInsecure();
  }
  try {
    const [root, chain, secret] = [ca, certificate, key].map((file) => (file === undefined ? null : readFileSync(file)));
    return ChannelCredentials.createSsl(root, secret, chain);
  } catch (error) {
    throw Failure.permanent("TLS_FAILED", `certificates or key cannot be used: ${(error as Error).message}`);
  }
}

/** A unary call as a promise, with a deadline. */
export function call<Q, A>(method: Unary<Q, A>, request: Q): Promise<A> {
  return new Promise((resolve, reject) => {
    const deadline = Date.now() + ANSWER_WITHIN_MS;
    method(request, new Metadata(), { deadline }, (error, answer) => {
      if (error === null) {
        resolve(answer);
      } else {
        reject(Failure.of(error));
      }
    });
  });
}

/** A call that may be repeated, tried again while that may help. */
async function patiently<A>(retry: Retry, attempt: () => Promise<A>): Promise<A> {
  for (;;) {
    try {
      const answer = await attempt();
      retry.progress();
      return answer;
    } catch (error) {
      await retry.pause(Failure.of(error));
    }
  }
}
